"""Before a job is called complete, its outputs are looked at once more: what others did to them is found and mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from curate.backends.inline import InlineBackend
from curate.driver.stage_run import MOST_ROUNDS, RunStoppedError
from curate.errors import JobReplacedError, PermissionDenied, TransientStorageError
from curate.ledger.summary import RunState
from curate.observe.run_totals import DISTURBED
from curate.runtime.protocol import Message, PoolSpec, Resources, TaskFinished
from curate.storage.protocol import Store
from curate.stores.open import open_store
from tests.support.harness import Place, corpus, encoded, strangers
from tests.support.workbench import Bench, NoBackend, complete, open_in_driver

FILES = corpus(sizes=(60, 3, 40, 0))
NAMES = [name.split(".")[0] + ".parquet" for name in sorted(FILES)]
LEFT = "_curate/quarantine/0123456789abcdef.jsonl.zst"


class AtTheEnd(InlineBackend):
    """An inline backend on which something happens when every task of a round has ended, `times` times."""

    def __init__(self, happens: Callable[[], object], times: int = 1) -> None:
        super().__init__()
        self._happens = happens
        self._left = times
        self._launched = 0
        self.starts = 0

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
        self.starts += 1
        return super().start(resources, pools)

    def launch(self, task: int, payload: Any, pieces: int, **more: Any) -> None:
        self._launched += task >= 0
        super().launch(task, payload, pieces, **more)

    def poll(self, timeout_s: float) -> list[Message | TaskFinished]:
        news = super().poll(timeout_s)
        self._launched -= sum(isinstance(one, TaskFinished) and one.task >= 0 for one in news)
        if (
            news
            and not self._launched
            and any(isinstance(one, TaskFinished) and one.task >= 0 for one in news)
            and self._left
        ):
            self._left -= 1
            self._happens()
        return news


@pytest.fixture
def foreign(bench: Bench) -> bytes:
    """The first output as a job of other parameters makes it."""
    bench.parameters = {"short": 25}
    complete(bench.run(output="other"))
    bench.parameters = {}
    return bench.objects("other")[NAMES[0]]


def check_same_as_fresh(bench: Bench) -> None:
    bench.check_as_fresh()
    assert not strangers(bench.objects())
    assert complete(bench.run(backend=NoBackend())).calls.put == 0


@pytest.mark.ci(3)
@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "foreign"])
def test_what_was_disturbed_is_done_again(bench: Bench, foreign: bytes, replaced: bool) -> None:
    """By the same run: an output that somebody removed, or that a zombie of other parameters has put in its place."""

    def disturb() -> None:
        bench.place.delete(f"{bench.place.root}/out/{NAMES[0]}")
        if replaced:
            bench.place.write("out", {NAMES[0]: foreign})

    bench.begun()
    backend = AtTheEnd(disturb)
    ended = complete(bench.run(backend=backend))
    assert (ended.total, ended.skipped, ended.attempts, backend.starts) == (len(FILES), 0, len(FILES) + 1, 2)
    # The look at the first rows, the first try, and the second one; the others once, but for the empty one, which has
    # no rows to begin.
    first, *others = sorted(name for name in FILES if "03" not in name)
    assert bench.begun() == [first] * 3 + others
    assert len([name for name in bench.objects() if name.endswith("run.json")]) == 1
    status = bench.status()
    assert (status.state, status.done, status.failed) == ("complete", len(FILES), 0)
    check_same_as_fresh(bench)


def test_an_earlier_output_is_looked_at_too(bench: Bench, foreign: bytes) -> None:
    """It was there, and right, when this run began."""
    complete(bench.run())
    bench.place.delete(f"{bench.place.root}/out/{NAMES[2]}")

    def disturb() -> None:
        bench.place.delete(f"{bench.place.root}/out/{NAMES[0]}")
        bench.place.write("out", {NAMES[0]: foreign})

    ended = complete(bench.run(backend=AtTheEnd(disturb)))
    assert (ended.skipped, ended.attempts) == (len(FILES) - 1, 2)
    check_same_as_fresh(bench)


def test_an_output_that_another_driver_made_again_counts(bench: Bench) -> None:
    """It is this job's, and another object than the one that was seen: the books are those of what is there."""
    complete(bench.run(output="fresh"))
    data = bench.objects("fresh")[NAMES[0]]

    def again() -> None:
        bench.place.delete(f"{bench.place.root}/out/{NAMES[0]}")
        bench.place.write("out", {NAMES[0]: data})

    ended = complete(bench.run(backend=AtTheEnd(again)))
    assert ended.attempts == len(FILES)
    check_same_as_fresh(bench)


def test_it_does_not_go_on_for_ever(bench: Bench) -> None:
    """Somebody removes outputs as fast as they are made: the run ends, not complete, and says so."""
    backend = AtTheEnd(lambda: bench.place.delete(f"{bench.place.root}/out/{NAMES[0]}"), times=100)
    ended = bench.run(backend=backend)
    assert (ended.state, ended.done, ended.failed) == (RunState.FAILED, len(FILES) - 1, 1)
    assert ended.state.exit_code == 1
    assert backend.starts == MOST_ROUNDS + 1
    assert ended.attempts == len(FILES) + MOST_ROUNDS
    assert [group.error for group in ended.failures] == [DISTURBED.error]
    assert "_curate/summary.json" not in bench.objects()
    status = bench.status()
    assert status.state == "failed"
    # What is told is told of the outputs that are there: the rows of the one that is gone were counted, too.
    source = bench.source
    bench.source = bench.place.write("few", {name: FILES[name] for name in sorted(FILES)[1:]})
    others = complete(bench.run(output="others"))
    assert (ended.books, ended.bytes_in, ended.bytes_out) == (others.books, others.bytes_in, others.bytes_out)
    assert status.rows == others.books.rows()
    bench.source = source
    complete(bench.run())
    check_same_as_fresh(bench)


def test_a_summary_that_a_zombie_left_is_replaced(bench: Bench, foreign: bytes) -> None:
    """Of another identity, published when this job's own had not been yet. It would never be believed, nor replaced."""
    assert foreign
    summary = bench.objects("other")["_curate/summary.json"]
    ended = complete(bench.run(backend=AtTheEnd(lambda: bench.place.write("out", {"_curate/summary.json": summary}))))
    assert ended.calls.delete == 1
    check_same_as_fresh(bench)


def test_a_ledger_that_is_gone_is_nobody_s(bench: Bench) -> None:
    """Without `job.json` a driver does not know whose output it is: it ends, and adds nothing. The next one goes on."""

    def lose() -> None:
        bench.place.delete(f"{bench.place.root}/out/_curate/job.json")

    with pytest.raises(JobReplacedError, match=r"job\.json was removed while"):
        bench.run(backend=AtTheEnd(lose))
    assert "_curate/summary.json" not in bench.objects()


def test_it_costs_one_listing(bench: Bench) -> None:
    """A run that did something: inputs, outputs, outputs again; one that did a part, or nothing, does not look."""
    bench.run(limit=1)  # which may ask what the bucket keeps, once in a process
    assert bench.run(limit=2).calls.list == 2
    assert complete(bench.run()).calls.list == 3
    assert complete(bench.run()).calls.list == 2


# Rows set aside that no output names


def test_quarantine_that_nobody_names_is_swept(bench: Bench) -> None:
    """When the job is complete, and not before; what outputs name stays."""
    bench.run(limit=1)
    bench.place.write("out", {LEFT: b"of an attempt that was killed"})
    bench.run(limit=2)
    assert LEFT in bench.objects()
    complete(bench.run())
    assert LEFT not in bench.objects()
    assert any(name.startswith("_curate/quarantine/") for name in bench.objects())
    check_same_as_fresh(bench)


def test_a_job_without_quarantine_sweeps_all_of_it(bench: Bench) -> None:
    row = {"file": "x", "id": 1, "text": "a text that is long enough to be kept"}
    bench.source = bench.place.write("plain", {"x.jsonl": encoded(".jsonl", [row])})
    bench.place.write("out", {LEFT: b"of an attempt that was killed"})
    complete(bench.run())
    assert not any(name.startswith("_curate/quarantine/") for name in bench.objects())


def test_what_two_outputs_name_hides_nothing_that_is_left_of_a_changed_input(bench: Bench) -> None:
    """Where only the outputs tell what they name: two that set the same rows aside name one file."""
    row = {"file": "x", "id": 1, "text": "a text that is long enough to be kept"}
    same, other = encoded(".jsonl", [row], bad_lines=True), encoded(".jsonl", [row, row], bad_lines=True)
    bench.source = bench.place.write("few", {"a.jsonl": same, "b.jsonl": same, "c.jsonl": other})
    complete(bench.run())
    for name in bench.objects():
        if name.startswith("_curate/runs/") or name == "_curate/summary.json":
            bench.place.delete(f"{bench.place.root}/out/{name}")
    assert sum(name.startswith("_curate/quarantine/") for name in bench.objects()) == 2
    bench.place.write("few", {"c.jsonl": encoded(".jsonl", [row])})
    complete(bench.run(redo_stale=True))
    assert sum(name.startswith("_curate/quarantine/") for name in bench.objects()) == 1


def test_the_sweep_is_free_where_there_is_nothing_to_sweep(bench: Bench) -> None:
    """And reads no record where it sweeps either: events say which files outputs name."""
    # S3 shows once in a process what it keeps.
    complete(bench.run(output="first"))
    plain = complete(bench.run(output="plain")).calls
    bench.place.write("out", {LEFT: b"of an attempt that was killed"})
    swept = complete(bench.run()).calls
    assert (plain.delete, swept.delete) == (0, 1)
    named = sum(name.startswith("_curate/quarantine/") for name in bench.objects())
    assert named >= 1
    assert swept.get == plain.get


# A store that fails the driver


class Failing:
    """A store that raises in one of its methods, for one of its names, from now on."""

    def __init__(self, inner: Store, method: str, ending: str, error: Exception) -> None:
        self._inner, self._method, self._ending, self._error = inner, method, ending, error

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def call(uri: str, *args: Any) -> Any:
            if uri.endswith(self._ending):
                raise self._error
            return found(uri, *args)

        return call


def failing(monkeypatch: pytest.MonkeyPatch, method: str, ending: str, error: Exception) -> None:
    open_in_driver(monkeypatch, lambda uri, scratch: Failing(open_store(uri, scratch), method, ending, error))


def test_a_store_that_fails_the_driver_ends_the_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how far it came; the ledger says that it failed; the next run goes on."""
    error = TransientStorageError("503 for 150 s")
    failing(monkeypatch, "publish", "/summary.json", error)
    with pytest.raises(RunStoppedError, match=r"4 of its 4 shards were done \(TransientStorageError: 503 for 150 s\)"):
        bench.run()
    monkeypatch.undo()
    _at(bench.place, monkeypatch)
    assert bench.status().state == "failed"
    again = complete(bench.run(backend=NoBackend()))
    assert again.attempts == 0
    check_same_as_fresh(bench)


@pytest.mark.parametrize(
    ("method", "ending", "error", "code"),
    [
        ("list", "/out/", TransientStorageError("no answer"), 1),
        ("list", "/out/", PermissionDenied("no right to list"), 2),
        ("publish", "/job.json", PermissionDenied("no right to write"), 2),
        ("publish", "/job.json", TransientStorageError("no answer"), 1),
        ("replace", "/heartbeat.json", PermissionDenied("no right any more"), 1),
        ("publish", "/summary.json", TransientStorageError("no answer"), 1),
    ],
)
def test_exit_codes_of_a_store_that_fails(
    local: Place,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    ending: str,
    error: Exception,
    code: int,
) -> None:
    """2 if something about the call must change before it can work; 1 if running again helps, whatever came first."""
    from click.testing import CliRunner

    from curate.job.command import command
    from tests.e2e.jobs.curation import Curation

    source = local.write("in", FILES)
    failing(monkeypatch, method, ending, error)
    argv = ["--backend", "inline", "--json", "--input", source, "--output", f"{local.root}/out"]
    ended = CliRunner().invoke(command(Curation), argv)
    assert ended.exit_code == code, ended.output
    assert ended.stdout == ""
    assert str(error) in ended.stderr
    assert "Traceback" not in ended.stderr


def _at(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
