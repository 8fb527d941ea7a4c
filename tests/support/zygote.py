"""Runs job files in forked children, so that a hundred runs take a hundred forks rather than a hundred imports.

Reads a JSON list of requests a line from standard input, which run at once. Each has `argv` (a job file and its
arguments), `env` (all of it), `out` and `err` (paths), and when to kill: `kill_operation` (a number) with `kill_when`
(before or after it), or `kill_after_s`. Answers with one line, the exit codes as `subprocess` gives them. The kinds of
its operations go to the file that `trace` names.

An operation is a call of a store, and for the local store each call of the system that changes something as well.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from curate.ledger import run_log
from curate.stores.local import LocalStore, LocalWriter

for module in (
    *("curate.cli.main", "curate.driver.stage_run", "curate.job", "curate.job.command", "curate.backends.inline"),
    *("curate.graph.entry", "curate.observe.browse", "curate.stores.gcs", "curate.stores.s3.client"),
    *("curate.stores.s3.store", "pyarrow.compute", "pyarrow.json", "pyarrow.parquet", "tenacity"),
):
    importlib.import_module(module)
# The first array imports pandas, which takes longer than a run.
pa.array([])
# Asked once by a process, so by each child.
run_log._versions()

OPERATIONS = [
    *((LocalStore, name) for name in ("list", "stat", "read", "open", "writer", "publish", "replace", "delete")),
    (LocalWriter, "publish"),
    *((os, name) for name in ("link", "unlink", "replace", "makedirs")),
    (shutil, "rmtree"),
]
# A kill loses nothing that was written, synced or not; hundreds of runs would wait for the disk.
os.fsync = lambda _: None


def kind_of(owner: Any, name: str, args: tuple[Any, ...]) -> str:
    """Returns what an operation does, and to what: but for numbers and hashes, so that those of two shards are one."""
    if name == "answer":
        request = args[1]
        where = (request.bucket, request.key) if hasattr(request, "bucket") else (request.path, request.args)
        subject = f"{request.method} {' '.join(map(str, where))} {request.params}"
    elif name in ("link", "replace") and owner is os:
        subject = str(args[1])
    else:
        subject = str(next((getattr(one, "uri", one) for one in args if isinstance(getattr(one, "uri", one), str)), ""))
    return re.sub(r"[0-9]+", "#", re.sub(r"[0-9a-f]{8,}", "#", f"{owner.__name__}.{name} {subject}"))


def hook(number: int | None, when: str, trace: str | None) -> None:
    """Makes the process kill itself at an operation; writes the kinds of all to `trace`, if named."""
    # What a run writes by the clock, it would write before other operations each time.
    run_log.FIRST_SEGMENT_S = 3600.0
    numbers = itertools.count()
    told = open(trace, "a", buffering=1) if trace is not None else None  # noqa: SIM115

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @contextlib.contextmanager
        def counted(args: Sequence[Any]) -> Iterator[None]:
            mine = next(numbers)
            if told is not None:
                told.write(f"{kind_of(owner, name, args)}\n")
            if mine == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                yield
            finally:
                if mine == number and when == "after":
                    os.kill(os.getpid(), signal.SIGKILL)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with counted(args):
                return original(*args, **kwargs)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with counted(args):
                return await original(*args, **kwargs)

        setattr(owner, name, awaited if inspect.iscoroutinefunction(original) else wrapped)

    for owner, name in OPERATIONS:
        wrap(owner, name)
    if "STORAGE_EMULATOR_HOST" in os.environ:
        wrap(sys.modules["curate.stores.gcs"]._Client, "answer")
    if "AWS_ENDPOINT_URL" in os.environ:
        wrap(sys.modules["curate.stores.s3.client"].Client, "answer")


def child(request: dict[str, Any]) -> None:
    """Runs the job file; never returns."""
    code = 70
    try:
        for stream, path in ((1, request["out"]), (2, request["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(request["env"])
        hook(request.get("kill_operation"), request.get("kill_when", ""), request.get("trace"))
        sys.argv = request["argv"]
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Says that it is there, in a line; then answers requests until standard input ends."""
    # A child that collects garbage would look at all that was imported, and so copy every page of it.
    gc.collect()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        pids, kills, began_s = [], [], time.monotonic()
        for request in json.loads(line):
            pids.append(os.fork())
            if not pids[-1]:
                child(request)
            if request.get("kill_after_s") is not None:
                kills.append((request["kill_after_s"], pids[-1]))
        for after_s, pid in sorted(kills):
            time.sleep(max(0.0, began_s + after_s - time.monotonic()))
            os.kill(pid, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        sys.stdout.write(f"{json.dumps(codes)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
