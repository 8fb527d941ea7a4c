"""What is started often, and waited for, imports no more than it needs: each of these packages takes time to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson

import curate

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
