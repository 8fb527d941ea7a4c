"""What is started often, and waited for, imports no more than it needs: each of these packages takes time to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import curate

ROOT = Path(__file__).parents[2]
LOADED = "sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
HEAVY = {"aiohttp", "gcsfs", "fsspec", "google", "pandas", "ray", "sklearn", "tenacity", "torch"}


def test_status_imports_no_engine(tmp_path: Path) -> None:
    """`curate status` of an output on disk imports Arrow, and neither Ray nor what talks to buckets."""
    out = tmp_path / "out"
    assert curate.range(5).write_parquet(out, backend="inline").state == "complete"
    program = (
        "import sys, contextlib, io, json\n"
        f"sys.argv = ['curate', 'status', {str(out)!r}]\n"
        "from curate.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main()\n"
        f"print(json.dumps({LOADED}))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(orjson.loads(ran.stdout))
    assert {"curate", "pyarrow", "rich"} <= loaded
    assert not loaded & HEAVY


def test_a_process_for_one_row_imports_no_engine() -> None:
    """The process in which a row's parser runs is started for every worker, and anew after each crash."""
    program = f"import sys, json, curate.pipeline.sandbox_process\nprint(json.dumps({LOADED}))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert not set(orjson.loads(ran.stdout)) & HEAVY


@pytest.mark.slow
def test_a_job_that_says_what_it_is_imports_no_engine(tmp_path: Path) -> None:
    """`python jobs/NAME.py --help`, and a wrong option, answer at once."""
    for name in ("toxicity", "dedup_exact"):
        program = (
            "import sys, contextlib, io, json\n"
            f"from curate.cli.main import main\n"
            f"sys.argv = ['curate', 'run', '{name}', '--help']\n"
            "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
            "    main()\n"
            f"print(json.dumps({LOADED}))"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=tmp_path)
        # pyarrow.parquet imports fsspec, which takes 7 ms.
        assert not set(orjson.loads(ran.stdout)) & (HEAVY - {"fsspec"})


@pytest.mark.slow
def test_a_job_by_default_imports_no_ray(tmp_path: Path) -> None:
    """Where there is no cluster to join, neither the driver does, nor a worker."""
    program = (
        "import sys, json, curate\n"
        "found = curate.range(5).map(lambda _: {'ray': 'ray' in __import__('sys').modules})\n"
        "assert found.write_json('out').state == 'complete'\n"
        "assert found.write_json('out').dispatched == 0\n"
        "workers = curate.read_json('out').unique('ray')\n"
        f"print(json.dumps([workers, {LOADED}]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=tmp_path)
    workers, loaded = orjson.loads(ran.stdout)
    assert workers == [False]
    assert "ray" not in loaded


JOB = """
import sys

from curate.job.shapes import TextJob


class Passing(TextJob):
    \"\"\"Pass texts through, and say what is imported.\"\"\"

    version = "1"

    def process(self, batch):
        import sys

        found = {name.partition(".")[0] for name in sys.modules} | {name for name in sys.modules if "." in name}
        for name in HEAVY & found:
            self.count(f"imports {name}")
        return self.passed_through(batch, text=True)


HEAVY = {heavy!r}

if __name__ == "__main__":
    try:
        Passing.main()
    finally:
        import json

        found = {name.partition(".")[0] for name in sys.modules} | {name for name in sys.modules if "." in name}
        print(json.dumps(sorted(HEAVY & found)))
"""
OF_NO_RUN = {
    *(HEAVY - {"fsspec"}),
    *("asyncio", "datasets", "google_crc32c", "pandas", "rich", "structlog", "urllib.request"),
    *("curate.stores.gcs", "curate.stores.s3", "curate.backends.ray.backend", "curate.cli", "curate.pages"),
}
"""What a run on disk imports neither before its plan nor before its first row."""


def _job(folder: Path) -> Path:
    job = folder / "passing.py"
    job.write_text(JOB.replace("{heavy!r}", repr(OF_NO_RUN)))
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_bytes(b'{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n')
    return job


def _run(job: Path, *options: str) -> tuple[set[str], dict[str, int]]:
    """Returns what the driver has imported that it should not have, and what workers have counted."""
    command = [sys.executable, str(job), "--input", "in", "--output", "out", *options]
    ran = subprocess.run(command, capture_output=True, check=True, cwd=job.parent)
    summary = orjson.loads((job.parent / "out" / "_curate" / "summary.json").read_bytes())
    return set(orjson.loads(ran.stdout)), summary["counters"]


@pytest.mark.slow
def test_a_finished_job_is_seen_to_be_one_without_what_it_does_not_need(tmp_path: Path) -> None:
    """What a job imports before it can say that there is nothing to do: neither pandas, for which Arrow looks, nor what
    writes logs, reaches services, or runs tasks."""
    job = _job(tmp_path)
    _run(job, "--backend", "inline")
    driver, _ = _run(job, "--backend", "local")
    assert not driver


@pytest.mark.slow
def test_a_worker_imports_little_before_its_first_row(tmp_path: Path) -> None:
    """Nor does the driver, beside what shows and logs how the run goes."""
    driver, workers = _run(_job(tmp_path), "--backend", "local")
    assert driver <= {"structlog", "rich", "asyncio"}
    assert not {name for name in workers if name not in ("imports structlog", "imports rich", "imports asyncio")}


@pytest.mark.slow
def test_no_job_imports_pandas_for_arrow(tmp_path: Path) -> None:
    """Arrow does so where it infers a type of Python values, or makes an array of NumPy itself: 0.3 s in each process.
    Some jobs with exchanges, and with the rules that look at texts in most ways."""
    table = pa.table({"id": [str(n) for n in range(8)], "text": ["One line of words.\nAnd another one, of words."] * 8})
    for number in range(2):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    program = f"""
import json, sys
from curate.jobs import decontaminate, dedup_exact, dedup_minhash, paragraphs, quality, shuffle, split
where = {str(tmp_path)!r}
told = {{}}
for job in (
    dedup_exact.DedupExact(),
    dedup_minhash.DedupMinhash(),
    paragraphs.Paragraphs(),
    shuffle.Shuffle(shards=2),
    split.Split(),
    decontaminate.Decontaminate(sets=[where + "/0.parquet"], set_columns=["text"], n=5),
    quality.Quality(rules=["gopher", "gopher-repetition", "c4", "fineweb", "dolma"], annotate=True),
):
    name = type(job).__name__
    ended = job.run(input=where + "/*.parquet", output=f"{{where}}/{{name}}", backend="inline")
    told[name] = [str(ended.state), "pandas" in sys.modules]
print(json.dumps(told))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT)
    told = orjson.loads(ran.stdout.splitlines()[-1])
    assert told == {name: ["complete", False] for name in told}


@pytest.mark.slow
def test_arrow_knows_of_pandas_once_the_program_does() -> None:
    """In whatever order both are imported; and what needs pandas imports it."""
    program = (
        "import sys, curate, pyarrow as pa\n"
        "from curate.late_pandas import import_pandas_late\n"
        "import_pandas_late()\n"
        "assert pa.array([1], pa.int64()).to_pylist() == [1]\n"
        "assert 'pandas' not in sys.modules\n"
        "import pandas as pd\n"
        "assert pa.array(pd.Series([1.0, float('nan')])).null_count == 1\n"
        "assert pa.array(pd.Series([pd.NA, 'a'], dtype=object)).null_count == 1\n"
        "assert pa.array(pd.Categorical(['a'])).type.value_type in (pa.string(), pa.large_string())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    program = (
        "import sys, pyarrow as pa\n"
        "from curate.late_pandas import import_pandas_late\n"
        "import_pandas_late()\n"
        "assert pa.table({'n': pa.array([1], pa.int64())}).to_pandas()['n'].tolist() == [1]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_class_of_a_job_imports_nothing_that_plans() -> None:
    """Every worker imports it before its first row: what plans and drives a job is as much again."""
    program = (
        "import sys, json, curate\n"
        "class Own(curate.TextJob):\n    version = '1'\n    def process(self, batch): return batch\n"
        "class Files(curate.FileJob):\n    version = '1'\n    def process_file(self, file): return []\n"
        "Own(), Files()\n"
        "print(json.dumps(sorted({name.split('.')[1] for name in sys.modules if name.startswith('curate.')})))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(orjson.loads(ran.stdout))
    assert {"job", "pipeline"} <= loaded
    assert not loaded & {"cli", "dataset", "driver", "graph", "plan", "reduce", "streaming"}
