"""One contender of `scripts/bench report`: describes a corpus on one core, by the Python that has what it needs.

    python report_run.py curate|duckdb|data-juicer SMALL SOURCE FOLDER

It describes the small corpus, so that all is imported, prints "ready", waits for a line on standard input, describes
the source, and prints as JSON what that took: seconds, seconds of CPU of the process and its children, in its own code
and in the system's, the most memory that it had, and the rows that it counted.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def curate(source: str, folder: Path) -> int:
    """Everything that `curate report` tells, of all columns."""
    from curate.report.make import make_report, wanted

    return int(make_report(wanted(source, work=str(folder), backend="inline"))["rows"])


def duckdb(source: str, folder: Path) -> int:
    """Of all columns: ends, mean, quantiles, different values, nulls; nothing of a text but its ends."""
    import duckdb

    del folder
    with duckdb.connect(config={"threads": 1}) as connection:
        found: Any = connection.sql(f"SUMMARIZE SELECT * FROM read_parquet('{source}/*.parquet')").fetchall()
    return int(found[0][10])


def data_juicer(source: str, folder: Path) -> int:
    """The lengths of one column of texts, with their mean, ends and quartiles, and drawings of these."""
    from data_juicer.config import init_configs  # type: ignore[import-not-found]
    from data_juicer.core import Analyzer  # type: ignore[import-not-found]

    folder.mkdir(parents=True)
    recipe = {"dataset_path": source, "export_path": f"{folder}/out.jsonl", "np": 1, "text_keys": "text"}
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({**recipe, "process": [{"text_length_filter": {}}]}))
    analyzer = Analyzer(init_configs(["--config", str(path)]))
    analyzer.run()
    return int(analyzer.overall_result.loc["count", "text_len"])


CONTENDERS: dict[str, Callable[[str, Path], int]] = {
    "curate": curate,
    "duckdb": duckdb,
    "data-juicer": data_juicer,
}


def used() -> tuple[float, float]:
    """Returns the seconds of CPU of this process and of its children that ended: in their code, in the system's."""
    both = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime for one in both), sum(one.ru_stime for one in both)


def main(name: str, small: str, source: str, folder: Path) -> None:
    # Whoever prints in between prints elsewhere.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    describe = CONTENDERS[name]
    describe(small, folder / "small")
    print("ready", file=told, flush=True)
    sys.stdin.readline()
    user_s, system_s = used()
    started = time.perf_counter()
    rows = describe(source, folder / "all")
    seconds = time.perf_counter() - started
    user_after_s, system_after_s = used()
    # Not getrusage, which starts from the memory of the process that forked this one.
    peak_kib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    found = {"seconds": seconds, "user_s": user_after_s - user_s, "system_s": system_after_s - system_s}
    print(json.dumps({**found, "peak_mib": peak_kib / 1024, "rows": rows}), file=told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
