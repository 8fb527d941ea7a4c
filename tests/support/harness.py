"""What the end-to-end tests share: a small corpus, processes that run jobs, and what is left when they are gone."""

from __future__ import annotations

import atexit
import contextlib
import gzip
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.emulator import Emulator
from tests.support.fakes import NEVER_S
from tests.support.moto_server import MotoServer
from tests.support.ray_head import for_workers
from tests.support.sweeps import Sweep

ROOT = Path(__file__).parents[2]
CURATION = "tests/e2e/jobs/curation.py"
LENGTHS = "tests/e2e/jobs/lengths.py"
"""The same job with an extra output."""
_LEDGER = re.compile(
    r"_curate/(job\.json|summary\.json|plan/\d{5}\.parquet|schema/[a-z-]+\.arrow|(quarantine|samples)/[0-9a-f]+\.jsonl\.zst"
    r"|runs/[0-9TZ.]+-[0-9a-f]+/(run\.json|heartbeat\.json|events-\d{6}\.jsonl\.zst|failures/\d{6}\.jsonl\.zst"
    r"|logs/[^/]+-\d{6}\.jsonl\.zst)|tmp/.*|replaced/\d{5}-\d{6}\.jsonl\.zst)"
)


def rows(file: str, n: int, rng: random.Random) -> list[dict[str, Any]]:
    """Returns the rows of one input."""
    texts = (
        "aside {}",
        "short {}",
        "a text that is long enough to be kept, number {}",
        "ein längerer Text {}, übrigens",
    )
    weights = (1, 20, 60, 40)
    return [
        {"file": file, "id": k, "text": rng.choices(texts, weights)[0].format(k), "edited": rng.choice([False, 1.5])}
        for k in range(n)
    ]


SIZES = (120, 3, 60, 0, 200, 1, 75, 40)
BAD_LINES = (b'{"file": "x", "id": ', b"\xff\xfe", b'{"file": "x", "id": 1, "text": null}')


def corpus(seed: int = 1, sizes: tuple[int, ...] = SIZES) -> dict[str, bytes]:
    """Returns inputs of very unequal size and three formats, one of them empty, with a few lines that are no JSON."""
    return {
        name: encoded(_suffix(name), data, bad_lines=_has_bad_lines(number))
        for number, (name, data) in enumerate(corpus_rows(seed, sizes).items())
    }


def corpus_rows(seed: int = 1, sizes: tuple[int, ...] = SIZES) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of each input of a corpus, without its bad lines."""
    rng = random.Random(seed)
    suffixes = (".jsonl.gz", ".jsonl", ".parquet")
    names = [f"{2020 + number % 2}/RC-{number:02d}{suffixes[number % 3]}" for number in range(len(sizes))]
    return {name: rows(name, size, rng) for name, size in zip(names, sizes, strict=True)}


def bad_lines(sizes: tuple[int, ...] = SIZES) -> int:
    """Returns how many lines of a corpus are no rows; Parquet has none."""
    names = corpus_rows(sizes=(0,) * len(sizes))
    bad = [name for number, name in enumerate(names) if _has_bad_lines(number) and _suffix(name) != ".parquet"]
    return len(BAD_LINES) * len(bad)


def _has_bad_lines(number: int) -> bool:
    return number % 4 == 1


def _suffix(name: str) -> str:
    return name[name.index(".") :]


def encoded(suffix: str, data: list[dict[str, Any]], *, bad_lines: bool = False) -> bytes:
    """Returns rows as the bytes of a file."""
    if suffix == ".parquet":
        sink = pa.BufferOutputStream()
        columns = {name: [row[name] for row in data] for name in ("file", "id", "text")}
        schema = pa.schema([("file", pa.string()), ("id", pa.int64()), ("text", pa.string())])
        pq.write_table(pa.table(columns, schema=schema), sink, row_group_size=64)
        return sink.getvalue().to_pybytes()
    lines = [json.dumps(row, ensure_ascii=False).encode() for row in data]
    if bad_lines:
        lines += BAD_LINES
    text = b"".join(line + b"\n" for line in lines)
    return gzip.compress(text, mtime=0) if suffix.endswith(".gz") else text


def write_files(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Writes files below a directory, which is returned."""
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        assert self.out.strip(), f"nothing was printed; exit code {self.code}\n{self.err}"
        value: dict[str, Any] = json.loads(self.out)
        return value


_resting: list[subprocess.Popen[str]] = []
"""Zygotes that nobody uses now."""


Killed = tuple[Path, str]
"""A copy of an output in which a run was killed, and before which operation."""


class Zygote:
    """Runs jobs in forks of a process that has imported everything; they can be killed at a numbered operation.

    The process serves one test after the other, and ends with this one.
    """

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._env = dict(env or {})

    def __enter__(self) -> Self:
        self._process = _resting.pop() if _resting else _zygote()
        return self

    def __exit__(self, *raised: object) -> None:
        if raised == (None, None, None):
            _resting.append(self._process)
            return
        # It may be in the middle of a request.
        _end(self._process)

    def run(self, *argv: str, **request: Any) -> Ended:
        """Runs one job file with arguments, to its end or to its kill."""
        (ended,) = self.together([{"argv": argv, **request}])
        return ended

    def together(self, requests: Sequence[Mapping[str, Any]]) -> list[Ended]:
        """Runs job files with arguments (`argv`) at once, each to its end or to its kill."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        texts = [(self._folder / f"out-{number}", self._folder / f"err-{number}") for number in range(len(requests))]
        streams = [{"out": str(out), "err": str(err), "env": os.environ | self._env} for out, err in texts]
        asked = [{**own, **one} for own, one in zip(streams, requests, strict=True)]
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the zygote died"
        codes = json.loads(answer)
        return [Ended(code, out.read_text(), err.read_text()) for code, (out, err) in zip(codes, texts, strict=True)]

    def operations(self, *argv: str) -> list[str]:
        """Runs one job file and returns the kinds of the storage operations that it took, in order."""
        trace = self._folder / "operations"
        trace.unlink(missing_ok=True)
        ended = self.run(*argv, trace=str(trace))
        assert ended.code == 0, ended.err
        return trace.read_text().splitlines()

    def killed(self, old: Path, sweep: Sweep, most: int, *argv: str, options: Sequence[str] = ()) -> Iterator[Killed]:
        """Runs a job on copies of an output, each killed before another one of its operations; yields each copy, and
        where that was. What a run leaves that nobody kills is beside them, in `count`."""
        count = old.with_name("count")
        shutil.rmtree(count, ignore_errors=True)
        shutil.copytree(old, count)
        operations = self.operations(*argv, str(count), *options)
        for number in sweep(operations, most):
            out, where = old.with_name(f"killed-{number}"), f"before operation {number}, {operations[number]}"
            shutil.copytree(old, out)
            ended = self.run(*argv, str(out), *options, kill_operation=number, kill_when="before")
            assert ended.code == -9, f"{where}: {ended.code} {ended.err}"
            yield out, where
            shutil.rmtree(out)


def _zygote() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.zygote"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, process)
    # So that runs that are asked for at once begin at once.
    assert process.stdout is not None
    assert process.stdout.readline(), "the zygote did not start"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=NEVER_S)


@dataclass(frozen=True)
class Place:
    """Where a test's inputs and outputs are: a local folder, or a bucket of the emulator."""

    root: str
    """URI, without a slash at its end."""
    emulator: Emulator | MotoServer | None = None

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment to get there."""
        return self.emulator.environ if self.emulator else {}

    def write(self, prefix: str, files: Mapping[str, bytes]) -> str:
        """Writes files below a prefix; returns its URI."""
        if self.emulator is None:
            write_files(Path(self.root) / prefix, files)
        else:
            for name, data in files.items():
                self.emulator.put(f"{self.root}/{prefix}/{name}", data)
        return f"{self.root}/{prefix}"

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Returns every object below a prefix by its name relative to it; without what goes while a run is there."""
        if self.emulator is None:
            top = Path(self.root) / prefix
            return dict(_contents(top))
        start = f"{self.root}/{prefix}/"
        return {uri[len(start) :]: data for uri, data in self.emulator.objects().items() if uri.startswith(start)}

    def delete(self, uri: str) -> None:
        """Removes one object."""
        if self.emulator is None:
            Path(uri).unlink()
        else:
            self.emulator.remove(uri)


def files_below(top: Path) -> list[Path]:
    """Returns the files below a folder, which others may change meanwhile: `rglob` fails where a folder goes."""
    return [Path(folder, name) for folder, _, names in os.walk(top) for name in names]


def _contents(top: Path) -> Iterator[tuple[str, bytes]]:
    for path in files_below(top):
        with contextlib.suppress(FileNotFoundError):
            yield str(path.relative_to(top)), path.read_bytes()


def outputs(objects: Mapping[str, bytes]) -> dict[str, str]:
    """Returns the digests of all outputs, and of what they set aside, by name."""
    return {
        name: hashlib.sha256(data).hexdigest()
        for name, data in objects.items()
        if not name.startswith("_curate/") or name.startswith("_curate/quarantine/")
    }


def strangers(objects: Mapping[str, bytes]) -> list[str]:
    """Returns the names under `_curate/` that the ledger's layout does not know."""
    return [name for name in objects if name.startswith("_curate/") and not _LEDGER.fullmatch(name)]


def totals(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a result that must not depend on what was killed: all that tells of the whole job."""
    return {key: result[key] for key in ("rows", "counters", "bytes", "state")} | {
        "shards": {key: result["shards"][key] for key in ("total", "done", "failed")}
    }


def job_summary(objects: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns `summary.json`, without the run that wrote it."""
    value: dict[str, Any] = json.loads(objects["_curate/summary.json"])
    del value["run_id"]
    return value


def check_same(found: Mapping[str, bytes], expected: Mapping[str, bytes], where: Any = "") -> None:
    """Checks that two jobs have the same outputs, rows set aside and summary, whichever runs made them."""
    others = outputs(found).items() ^ outputs(expected).items()
    assert not others, (where, sorted(others))
    ended, whole = job_summary(found), job_summary(expected)
    assert ended == whole, (where, ended, whole)


def balanced(counts: Mapping[str, Any]) -> bool:
    """Returns whether in + created = out + dropped + quarantined."""
    gone = sum(counts["dropped"].values()) + counts["quarantined"]
    return bool(counts["in"] + counts["created"] == counts["out"] + gone)


def executions(trace: Path) -> Counter[str]:
    """Returns how often each shard was begun."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    return Counter(line.split()[0] for line in lines)


def workers(trace: Path) -> set[int]:
    """Returns the processes that began shards."""
    return {int(line.split()[1]) for line in trace.read_text().splitlines()} if trace.exists() else set()


def marked(mark: str) -> dict[int, str]:
    """Returns the processes with this in their environment, which children inherit, and their command lines."""
    found = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(process.name)] = words.decode(errors="replace")[:100]
    return found


LINGERING: list[str] = []
"""Marks of drivers whose agents may not have ended yet."""
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray/dashboard/agent.py", "runtime_env/agent/main.py")


def wait_for_agents() -> None:
    """Waits until nothing is left of any driver that was waited for."""
    while LINGERING:
        _wait_for_end(LINGERING.pop())


def _wait_for_end(mark: str, but: tuple[str, ...] = ()) -> None:
    def left() -> list[str]:
        return [line for line in marked(mark).values() if not any(one in line for one in but)]

    until = time.monotonic() + NEVER_S
    while found := left():
        assert time.monotonic() < until, f"still there long after their driver: {found}"
        time.sleep(0.1)


def end_all(mark: str) -> None:
    """Kills the processes with this in their environment."""
    while left := marked(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def json_line(text: str) -> dict[str, Any]:
    """Returns the last line of a text that is a JSON object with a state: a result among other output."""
    found = [line for line in text.splitlines() if line.startswith('{"job"') and '"run_id"' in line]
    assert found, text
    value: dict[str, Any] = json.loads(found[-1])
    return value


@dataclass
class Driver:
    """A job as a process of its own, in a session of its own."""

    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = ROOT
    errors: Path | None = None
    """Where standard error goes, to be read while the process runs."""

    def __enter__(self) -> Self:
        # Children inherit it, whatever session they are in.
        self.mark = f"CURATE_TEST_DRIVER={uuid.uuid4().hex}"
        errors = subprocess.PIPE if self.errors is None else self.errors.open("w")
        environ = os.environ | dict(self.env) | dict([self.mark.split("=")])
        self.process = subprocess.Popen(
            [sys.executable, *self.argv],
            cwd=self.cwd,
            env=environ | for_workers(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        if not isinstance(errors, int):
            errors.close()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=NEVER_S)

    def signal(self, number: signal.Signals) -> bool:
        """Sends a signal to the process alone; returns whether there was one to send it to."""
        if self.process.poll() is not None or not alive(self.process.pid):
            return False
        self.process.send_signal(number)
        return True

    def interrupt_group(self) -> None:
        """What Ctrl-C does: SIGINT for the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, timeout_s: float = NEVER_S) -> Ended:
        """Waits for the process to end by itself."""
        out, err = self.process.communicate(timeout=timeout_s)
        return Ended(self.process.returncode, out, err or (self.errors.read_text() if self.errors else ""))

    def wait_for_word(self, word: str) -> None:
        """Waits until this is on standard error, which goes to `errors`."""
        assert self.errors is not None
        path = self.errors
        wait_until(lambda: word in path.read_text() or not self.running(), f"it says {word!r}")

    def running(self) -> bool:
        """Returns whether the process has not ended yet."""
        return self.process.poll() is None

    def wait_for_children(self) -> None:
        """Waits until all that the process started has ended too, as the cluster of a run does with its driver.

        But for agents of Ray's, which do nothing more: one whose raylet ended while both were starting looks for the
        cluster for a minute. That they end, too, is seen when all tests have run.
        """
        _wait_for_end(self.mark, but=_AGENTS)
        LINGERING.append(self.mark)


def run(*argv: str, env: Mapping[str, str] | None = None, timeout_s: float = NEVER_S) -> Ended:
    """Runs a Python file as a process of its own, to its end: on the inline backend, one that a zygote forks."""
    if argv[0].endswith(".py") and "--backend inline" in " ".join(argv):
        with tempfile.TemporaryDirectory() as folder, Zygote(Path(folder), env) as zygote:
            return zygote.run(*argv)
    with Driver(list(argv), env or {}) as driver:
        return driver.end(timeout_s)


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = NEVER_S, every_s: float = 0.02) -> Any:
    """Returns the first true value of a condition, looking again and again."""
    until = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until, f"{what}: not within {deadline_s} s"
        time.sleep(every_s)
    return value


def alive(pid: int) -> bool:
    """Returns whether a process lives; one that nobody has asked for its end does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
