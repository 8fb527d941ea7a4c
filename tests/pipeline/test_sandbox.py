"""A function in a process of its own: what a row does there costs that row, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import curate
from curate.errors import BadRow, ConfigError, RetryLater
from curate.pipeline import sandbox, sandbox_process
from curate.pipeline.remote_error import RemoteError
from curate.pipeline.sandbox import Sandboxed
from curate.units import MIB
from tests.job.inline import quarantined
from tests.support.examples import examples
from tests.support.fakes import NEVER_S

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 0.25
"""What rows may take of the processor where one hangs. Elsewhere the time is long enough for the slowest machine."""
SLOW = "took longer than 0.25 s of the processor"
WAITED = "took longer than 2.5 s, with less than 0.25 s of the processor"


class Odd(Exception):
    """Of two arguments, which is told by both."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what, number)
        self.number = number


class Unsendable(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.lock = threading.Lock()


def act(row: dict[str, Any]) -> Any:
    """Does what a row says, and notes that it was run."""
    if "log" in row:
        with open(row["log"], "a") as log:
            log.write(f"{row['n']}\n")
    match row.get("do", "well"):
        case "well":
            return {"n": row["n"], "pid": os.getpid()}
        case "return":
            return row["value"]
        case "what":
            row["array"][0] = 7
            return row
        case "big":
            return {"n": row["n"], "text": "x" * row["size"], "got": len(row.get("text", ""))}
        case "hungry":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, resource.RLIM_INFINITY))
            held = []
            while True:
                held.append(bytearray(4096))
        case "exit":
            os._exit(row.get("status", 3))
        case "sys.exit":
            sys.exit(row["status"])
        case "kill":
            os.kill(os.getpid(), row.get("signal", signal.SIGSEGV))
        case "hang":
            while True:
                pass
        case "compute":
            until = time.process_time() + row["cpu_s"]
            while time.process_time() < until:
                pass
            return {"n": row["n"]}
        case "be stopped":
            Path(row["fifo"]).write_text(str(os.getpid()))
            return {"n": row["n"]}
        case "hang in C":
            return re.match("(a*)*b", "a" * 40)
        case "wait":
            time.sleep(1000)
        case "hang in a thread":
            threading.Thread(target=act, args=({"do": "hang"},), daemon=True).start()
            time.sleep(1000)
        case "hang with children":
            children = [subprocess.Popen(["sleep", "1000"]).pid, os.fork()]
            if not children[1]:
                time.sleep(1000)
            Path(row["pids"]).write_text(f"{os.getpid()} {children[0]} {children[1]}")
            time.sleep(1000)
        case "leave a child":
            if not os.fork():
                time.sleep(1000)
            os._exit(3)
        case "bad":
            raise BadRow(row["reason"])
        case "odd":
            raise Odd("is odd", row["n"])
        case "unsendable":
            raise Unsendable("holds a lock")
        case "later":
            raise RetryLater(12.5, "the service is down")
        case "lock":
            return threading.Lock()
        case "print":
            print(row["text"], end=row.get("end", "\n"), file=getattr(sys, row.get("to", "stdout")))
            return os.write(1, row.get("raw", b""))
        case "print and die":
            print(row["text"])  # noqa: T201
            os._exit(3)
        case "memory":
            return len(bytearray(row["size"]))
    raise AssertionError(row)


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandboxed]:
    confined = Sandboxed(act, 60.0)
    yield confined
    confined.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Sandboxed]:
    confined = Sandboxed(act, TIMEOUT_S)
    yield confined
    confined.close()


def told(results: Iterator[Any]) -> list[Any]:
    """Returns what each row became: its number, or why it is bad."""
    return [one.reason if isinstance(one, BadRow) else one["n"] for one in results]


def apply_row(confined: Sandboxed, row: dict[str, Any]) -> Any:
    """Returns what the function returns for a row; raises why it is bad."""
    (result,) = confined.results([row])
    if isinstance(result, BadRow):
        raise result
    return result


def gone(pid: int) -> bool:
    """Returns whether a process is over, or becomes so in some seconds; one that waits to be reaped is."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        select.select([], [], [], 0.01)
    return False


# What a row can do to its process


@pytest.mark.slow
def test_large_values_arrive_as_they_were(shared: Sandboxed) -> None:
    """In any number and size, also behind a row that dies; arrays can be written to."""
    rows: list[dict[str, Any]] = []
    for n, size in enumerate([0, 1, 4095, 4096, 4097, 65_536, 300_000, 3 * MIB]):
        values = {"one": bytes([n]) * size, "other": os.urandom(size), "nested": [b"x" * size], "text": "é" * size}
        rows.append({"n": n, "do": "what", "array": np.zeros(size + 1), **values})
        rows.append({"n": -1, "do": "exit", "one": b"y" * size})
    results = list(shared.results(rows))
    assert all(isinstance(result, BadRow) for result in results[1::2])
    for row, result in zip(rows[::2], results[::2], strict=True):
        for name in ("one", "other", "nested", "text"):
            assert result[name] == row[name]
            assert type(result[name]) is type(row[name])
        assert result["array"][0] == 7
        assert not row["array"].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"do": "exit"}, "the parser's process ended itself: exit status 3"),
        ({"do": "exit", "status": 0}, "the parser's process ended itself: exit status 0"),
        ({"do": "sys.exit", "status": 4}, "the parser's process ended itself: exit status 4"),
        ({"do": "sys.exit", "status": None}, "the parser's process ended itself: exit status 0"),
        ({"do": "sys.exit", "status": "so long"}, "the parser's process ended itself: exit status 1"),
        ({"do": "kill"}, "the parser's process died: SIGSEGV"),
        ({"do": "kill", "signal": signal.SIGKILL}, "the parser's process died: SIGKILL"),
        ({"do": "kill", "signal": signal.SIGABRT}, "the parser's process died: SIGABRT"),
        ({"do": "bad", "reason": "no title"}, "no title"),
        ({"do": "bad", "reason": "\udce9"}, "\udce9"),
    ],
)
def test_a_row_costs_itself(shared: Sandboxed, row: dict[str, Any], reason: str) -> None:
    """Those before and behind it are there, in order; alone, it raises."""
    rows = [{"n": n} for n in range(5)]
    rows[2] = {"n": 2, **row}
    assert told(shared.results(rows)) == [0, 1, reason, 3, 4]
    with pytest.raises(BadRow) as caught:
        apply_row(shared, {"n": 2, **row})
    assert caught.value.reason == reason


BAD = {
    "exit": "the parser's process ended itself: exit status 3",
    "kill": "the parser's process died: SIGSEGV",
    "bad": "it says so",
}


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.sampled_from(["well", "well", "well", *BAD]), max_size=40))
def test_any_pattern_of_bad_rows_gives_exactly_the_other_results(
    shared: Sandboxed, tmp_path_factory: pytest.TempPathFactory, pattern: list[str]
) -> None:
    """And no row was run twice, nor left out; a process is started for those that end one, and for no other."""
    log = tmp_path_factory.mktemp("log") / "rows"
    rows = [{"n": n, "do": do, "reason": "it says so", "log": str(log)} for n, do in enumerate(pattern)]
    before, deaths = shared.children, sum(do in ("exit", "kill") for do in pattern)
    assert told(shared.results(rows)) == [BAD.get(do, n) for n, do in enumerate(pattern)]
    assert (log.read_text().split() if rows else []) == [str(n) for n in range(len(rows))]
    # The one for the first row, where the last row before had ended it.
    assert deaths - 1 <= shared.children - before <= deaths + 1


@pytest.mark.slow
def test_no_process_before_the_first_row_and_one_for_all() -> None:
    """It is another one, it stays, and it is replaced when it was ended between two batches: that costs no row."""
    confined = Sandboxed(act)
    assert list(confined.results([])) == []
    assert (confined.children, confined._keeper) == (0, None)
    pids = {one["pid"] for _ in range(3) for one in confined.results([{"n": 1}, {"n": 2}])}
    assert (len(pids), confined.children, os.getpid() in pids) == (1, 1, False)
    os.kill(pid := pids.pop(), signal.SIGKILL)
    assert gone(pid)
    assert told(confined.results([{"n": 1}, {"n": 2}])) == [1, 2]
    assert confined.children == 2
    confined.close()


@pytest.mark.slow
def test_a_process_that_is_killed_from_outside_costs_the_row_at_work(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def kill() -> None:
        while not (pids.exists() and len(numbers := pids.read_text().split()) == 3):
            select.select([], [], [], 0.01)
        os.kill(int(numbers[0]), signal.SIGKILL)

    patient = Sandboxed(act, 60.0)
    killer = threading.Thread(target=kill)
    killer.start()
    rows = [{"n": 0}, {"n": 1, "do": "hang with children", "pids": str(pids)}, {"n": 2}]
    assert told(patient.results(rows)) == [0, "the parser's process died: SIGKILL", 2]
    killer.join()
    assert all(gone(int(pid)) for pid in pids.read_text().split())
    patient.close()


@pytest.mark.slow
def test_a_keeper_that_is_killed_is_replaced() -> None:
    """It runs no row, so it costs none; of the row at work then, how its process ended is not known."""
    confined = Sandboxed(act)
    assert told(confined.results([{"n": 0}])) == [0]
    assert confined._keeper is not None
    confined._keeper._process.kill()
    confined._keeper._process.wait()
    assert told(confined.results([{"n": 1}, {"n": 2, "do": "exit"}, {"n": 3}])) == [
        1,
        "the parser's process died",
        3,
    ]
    confined.close()


# Time and memory


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("what", "reason"), [("hang", SLOW), ("hang in C", SLOW), ("hang in a thread", SLOW), ("wait", WAITED)]
)
def test_a_row_that_hangs_costs_itself(
    what: str, reason: str, hasty: Sandboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == SLOW:
        # Where there is much to do, it gets its time of the processor by and by.
        monkeypatch.setattr(sandbox, "WAITS", 1000)
    rows = [{"n": 0}, {"do": what}, {"n": 2}, {"n": 3}, {"do": what}, {"n": 5}]
    assert told(hasty.results(rows)) == [0, reason, 2, 3, reason, 5]


@pytest.mark.slow
def test_a_hang_takes_its_children_along(hasty: Sandboxed, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    rows = [{"n": 1, "do": "hang with children", "pids": str(pids)}, {"n": 2, "do": "leave a child"}, {"n": 3}]
    assert told(hasty.results(rows)) == [WAITED, BAD["exit"], 3]
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_a_row_that_gets_no_processor_is_no_bad_row(
    hasty: Sandboxed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is stopped for longer than the row may take of the processor, as on a machine with too much to do."""
    monkeypatch.setattr(sandbox, "WAITS", 1000)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    stopped = threading.Thread(target=stop_for_a_while, args=(fifo, 2 * TIMEOUT_S))
    stopped.start()
    assert told(hasty.results([{"n": 0}, {"n": 1, "do": "be stopped", "fifo": str(fifo)}, {"n": 2}])) == [0, 1, 2]
    stopped.join()


def stop_for_a_while(fifo: Path, seconds: float) -> None:
    """Stops the process that writes its number to a FIFO, and lets it go on."""
    pid = int(fifo.read_text())
    os.kill(pid, signal.SIGSTOP)
    select.select([], [], [], seconds)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_time_counts_for_a_row_and_not_for_all(hasty: Sandboxed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows may take longer together; and who takes the results late takes no time from the rows behind."""
    monkeypatch.setattr(sandbox, "WAITS", 1000)
    rows = [{"n": n, "do": "compute", "cpu_s": TIMEOUT_S / 2} for n in range(4)]
    taken = []
    for one in hasty.results(rows):
        select.select([], [], [], TIMEOUT_S)
        taken.append(one["n"])
    assert taken == [0, 1, 2, 3]


def test_memory_that_is_not_there_is_raised(shared: Sandboxed) -> None:
    """What the function raises then is no word about the row."""
    with pytest.raises(MemoryError):
        apply_row(shared, {"do": "memory", "size": 1 << 62})


@pytest.mark.slow
def test_memory_that_a_row_has_filled_is_raised() -> None:
    """Nothing is left then to tell it with, but what the row holds."""
    with pytest.raises(MemoryError):
        apply_row(Sandboxed(act), {"do": "hungry"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timeout_s": 0}, "timeout_s=0: expected seconds above 0"),
        ({"timeout_s": float("nan")}, "timeout_s=nan: expected seconds above 0"),
    ],
)
def test_limits_that_are_none_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sandboxed(act, **given)


# What is raised


def test_an_exception_is_raised_when_its_row_is_reached(shared: Sandboxed, tmp_path: Path) -> None:
    """It is what was raised, with the traceback as a note; those behind it are not run, and the process lives on."""
    log = tmp_path / "rows"
    rows = [{"n": n, "log": str(log)} for n in range(50)]
    rows[2]["do"] = "odd"
    pid = apply_row(shared, {"n": 0})["pid"]
    results = shared.results(rows)
    assert [next(results)["n"], next(results)["n"]] == [0, 1]
    with pytest.raises(Odd) as caught:
        next(results)
    assert (caught.value.args, caught.value.number) == (("is odd", 2), 2)
    (note,) = caught.value.__notes__
    assert note.startswith("in a separate process:\nTraceback")
    assert f'File "{__file__}"' in note
    assert list(results) == []
    assert [one["pid"] for one in shared.results([{"n": 7, "log": str(log)}, {"n": 8}])] == [pid, pid]
    assert log.read_text().split() == ["0", "1", "2", "7"]


def test_an_exception_keeps_what_it_means(shared: Sandboxed) -> None:
    with pytest.raises(RetryLater, match=r"run again in 12\.5 s: the service is down"):
        apply_row(shared, {"do": "later"})


def test_an_exception_that_cannot_be_sent_is_told(shared: Sandboxed) -> None:
    with pytest.raises(RemoteError, match="Unsendable: holds a lock") as caught:
        apply_row(shared, {"do": "unsendable"})
    failure = caught.value.raised.failure
    assert failure.frame.startswith("tests/pipeline/test_sandbox.py:")
    assert failure.frame.endswith("in act")


def test_a_result_that_cannot_be_sent_is_an_error(shared: Sandboxed) -> None:
    with pytest.raises(TypeError, match="what was returned, lock, cannot be sent to another process"):
        apply_row(shared, {"do": "lock"})


def test_a_function_that_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to a separate process: .*; open files, locks"):
        apply_row(Sandboxed(lambda _: lock), {})


class FailsToLoad:
    """Cannot be made again from what it was pickled as."""

    def __call__(self, row: dict[str, Any]) -> None:
        del row

    def __reduce__(self) -> Any:
        return int, ("no number",)


class EndsLoading(FailsToLoad):
    """Ends the process that makes it."""

    def __reduce__(self) -> Any:
        return os._exit, (5,)


def test_a_function_that_does_not_load_says_why() -> None:
    with pytest.raises(ValueError, match="no number") as caught:
        apply_row(Sandboxed(FailsToLoad()), {})
    assert "while FailsToLoad was loaded in a separate process" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match=r"EndsLoading could not start.*exit status 5"):
        apply_row(Sandboxed(EndsLoading()), {})


# What goes back and forth


def test_closures_and_what_only_this_program_has(shared: Sandboxed) -> None:
    """Functions that no import finds travel by value; values of all kinds come back as they are."""
    add = 40

    def inner(row: dict[str, Any]) -> Any:
        return row["n"] + add

    confined = Sandboxed(inner)
    assert list(confined.results([{"n": n} for n in range(3)])) == [40, 41, 42]
    confined.close()
    for value in (None, b"\0", {"a": [1.5, {"b": None}]}, "\ud800", (), float("inf")):
        assert apply_row(shared, {"do": "return", "value": value}) == value


def test_rows_and_results_larger_than_any_buffer(shared: Sandboxed) -> None:
    """Both ways at once, over and over: neither side waits for the other for ever."""
    sizes = [3 * MIB, 10, 0, 2 * MIB, 700_000, 5]
    rows = [{"n": n, "do": "big", "size": size, "text": "y" * size} for n, size in enumerate(sizes)]
    assert [(len(one["text"]), one["got"]) for one in shared.results(rows)] == [(size, size) for size in sizes]


def test_many_rows_in_order_around_one_that_dies(shared: Sandboxed) -> None:
    rows: list[dict[str, Any]] = [{"n": n} for n in range(20_000)]
    rows[11_111]["do"] = "exit"
    assert told(shared.results(iter(rows))) == [*range(11_111), BAD["exit"], *range(11_112, 20_000)]


def test_who_leaves_early_gets_none_of_those_results_later(shared: Sandboxed) -> None:
    results = shared.results([{"n": n} for n in range(1000)])
    assert next(results)["n"] == 0
    results.close()
    assert told(shared.results([{"n": -1}])) == [-1]
    left = shared.results([{"n": n} for n in range(1000)])
    assert next(left)["n"] == 0
    assert told(shared.results([{"n": -1}])) == [-1]
    with pytest.raises(RuntimeError, match="other rows were begun before"):
        next(left)


@pytest.mark.slow
def test_what_is_printed_there_is_printed_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Python and beneath it, in order, before the result is there; also what a row said before it died."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    confined = Sandboxed(act)
    for text in ("first ☃", "x" * 300_000):
        apply_row(confined, {"do": "print", "text": text, "raw": b"raw \xff\n"})
        assert capsys.readouterr().out == f"{text}\nraw \ufffd\n"
    apply_row(confined, {"do": "print", "text": "no end of line", "end": ""})
    assert capsys.readouterr().out == "no end of line"
    apply_row(confined, {"do": "print", "text": "wrong", "end": ".", "to": "stderr"})
    assert capsys.readouterr().err == "wrong."
    assert told(confined.results([{"do": "print and die", "text": "last words"}])) == [BAD["exit"]]
    assert capsys.readouterr().out == "last words\n"
    assert told(confined.results([{"do": "kill"}])) == [BAD["kill"]]
    assert "Fatal Python error: Segmentation fault" in capsys.readouterr().err
    confined.close()


# What is left behind


def processes(confined: Sandboxed) -> list[int]:
    """Returns the keeper and the child."""
    assert confined._keeper is not None
    return [confined._keeper._process.pid, apply_row(confined, {"n": 0})["pid"]]


def leave_nothing_behind() -> None:
    """Fails where a process or an open file stays: after `close`, after which it can be used again, and unclosed."""
    Sandboxed(act).close()
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    confined = Sandboxed(act)
    for _ in range(2):
        apply_row(confined, {"n": 0})
        pids = processes(confined)
        confined.close()
        assert all(gone(pid) for pid in pids)
    apply_row(confined, {"n": 0})
    pids = processes(confined)
    results = confined.results([{"n": 1, "do": "hang"}])
    del confined, results
    assert all(gone(pid) for pid in pids)
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.slow
def test_nothing_is_left_behind() -> None:
    """Neither processes nor open files, seen in a process in which nobody else opens any."""
    program = "from tests.pipeline.test_sandbox import leave_nothing_behind as check; check()"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=NEVER_S, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["returns", "is killed", "is killed at work"])
def test_nothing_outlives_the_worker(how: str, tmp_path: Path) -> None:
    """However it ends, and even with a row that hangs where no signal handler of Python runs."""
    program = f"""
import os, signal
from pathlib import Path
from curate.pipeline.sandbox import Sandboxed

def act(row):
    Path(row["pids"]).write_text(f"{{os.getpid()}} {{os.getppid()}}")
    if row["hang"]:
        os.kill(row["parent"], signal.SIGKILL)
        import re
        re.match("(a+)+b", "a" * 60)

confined = Sandboxed(act)
row = {{"pids": {str(tmp_path / "pids")!r}, "hang": {how == "is killed at work"}, "parent": os.getpid()}}
list(confined.results([row]))
if {how == "is killed"}:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=NEVER_S)
    assert ran.returncode == (0 if how == "returns" else -signal.SIGKILL)
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_a_worker_that_is_killed_before_it_has_an_answer_is_no_error_of_the_child() -> None:
    """A traceback of a process that nobody needs any more would be the last that is seen of the run."""
    program = """
import socket
from curate.pipeline.sandbox_process import _run

(link, worker), (bell, _), (control, _) = (socket.socketpair() for _ in range(3))
link.send(b"an answer")
worker.close()
_run(control, [link.detach(), bell.detach()], print)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=NEVER_S, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("", "")


# As a step of a dataset


def square(row: dict[str, Any]) -> dict[str, Any]:
    """Ends its process for one row, and takes too long for another."""
    match row["id"]:
        case 7:
            os.kill(os.getpid(), signal.SIGSEGV)
        case 13:
            act({"do": "hang"})
        case 17:
            raise BadRow("seventeen")
    return {"id": row["id"], "square": row["id"] ** 2}


REASONS = ["seventeen", "the parser's process died: SIGSEGV", SLOW]


@pytest.mark.ray(0)
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inline", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.ray_lane])])
def test_rows_that_end_the_parser_are_in_quarantine(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others are in the output; the run is complete, and nothing is left of it."""
    monkeypatch.setattr(sandbox, "WAITS", 1000)
    if backend == "ray":
        request.getfixturevalue("on_ray")
    ds = curate.range(50).map(square, isolate=True, timeout_s=TIMEOUT_S)
    summary = ds.write_parquet(tmp_path / "out", backend=backend)
    assert (summary.state, summary.books.rows_out, summary.books.quarantined) == ("complete", 47, 3)
    expected = [{"id": n, "square": n * n} for n in range(50) if n not in (7, 13, 17)]
    assert curate.read_parquet(tmp_path / "out").take_all() == expected
    assert sorted(row["reason"] for row in quarantined(tmp_path / "out")) == REASONS


def test_the_end_of_an_answer_that_is_longer_than_its_socket_is_rung_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads when it rings, all that is there then, gets all of it."""
    monkeypatch.setattr(sandbox_process, "RING_S", 60.0)
    (near, far), (bell, ring) = socket.socketpair(), socket.socketpair()
    taken = 0

    class Room:
        def poll(self, *_: Any) -> list[Any]:
            """Reads at the ring, where the child waits for room."""
            nonlocal taken
            while select.select([bell], [], [], 0)[0]:
                bell.recv(4096)
                while select.select([near], [], [], 0)[0]:
                    taken += len(near.recv(1 << 16))
            return []

    with near, far, bell, ring:
        answers = sandbox_process._Answers(far, ring)
        answers._room = Room()  # type: ignore[assignment]
        answers.send(b"R", bytes(3_000_000))
        answers.at_rest()
        Room().poll()
    assert taken == 3_000_000 + sandbox_process.HEADER.size
