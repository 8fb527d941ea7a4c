"""What an exception means for its shard: kind, frame in user code, text that is bounded."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import curate
from curate import jobs
from curate.errors import (
    BadRow,
    ConfigError,
    CorruptInput,
    ObjectNotFound,
    PermissionDenied,
    RetryLater,
    SchemaMismatch,
    TooManyBadRows,
    TransientStorageError,
)
from curate.pipeline.classify import LONGEST_WAIT_S, MAX_ERROR, MAX_TRACEBACK, ForeignOutputError, failure_of
from curate.stores.open import open_store
from curate.tasks.failure import Failure, FailureKind

HERE = "tests/pipeline/test_classify.py"


def caught(call: Callable[[], Any]) -> Failure:
    """Returns the failure that is made of what `call` raises."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - any of them is looked at
        return failure_of(error)
    raise AssertionError("nothing was raised")


def wrapped(error: BaseException, cause: BaseException) -> BaseException:
    """Returns `error` as `raise error from cause` leaves it."""
    error.__cause__ = cause
    return error


class TestKind:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (ValueError("x"), FailureKind.USER_ERROR),
            (OSError("x"), FailureKind.USER_ERROR),
            (BadRow("x"), FailureKind.USER_ERROR),
            (RetryLater(), FailureKind.RETRY_LATER),
            (MemoryError("x"), FailureKind.OUT_OF_MEMORY),
            (pa.ArrowMemoryError("x"), FailureKind.OUT_OF_MEMORY),
            (CorruptInput("x"), FailureKind.CORRUPT),
            (TooManyBadRows("x"), FailureKind.CORRUPT),
            (SchemaMismatch("x"), FailureKind.CORRUPT),
            (ForeignOutputError("x"), FailureKind.FOREIGN),
            (ConfigError("x"), FailureKind.MISCONFIGURED),
            (ModuleNotFoundError("No module named 'x'"), FailureKind.MISCONFIGURED),
            (TransientStorageError("x"), FailureKind.THROTTLED),
            (PermissionDenied("x"), FailureKind.STORAGE),
            (ObjectNotFound("x"), FailureKind.STORAGE),
        ],
    )
    def test_the_type_decides(self, error: Exception, kind: FailureKind) -> None:
        assert failure_of(error).kind is kind

    @pytest.mark.parametrize(
        ("error", "cause", "kind"),
        [
            (RuntimeError("x"), RetryLater(), FailureKind.RETRY_LATER),
            (RuntimeError("x"), wrapped(KeyError("y"), RetryLater()), FailureKind.RETRY_LATER),
            (RuntimeError("x"), TransientStorageError("y"), FailureKind.THROTTLED),
            (RuntimeError("x"), PermissionDenied("y"), FailureKind.STORAGE),
            (RuntimeError("x"), MemoryError(), FailureKind.OUT_OF_MEMORY),
            (RuntimeError("x"), ExceptionGroup("y", [RetryLater()]), FailureKind.RETRY_LATER),
            # These say something about the data or the job, and whoever wrapped them said something else.
            (RuntimeError("x"), CorruptInput("y"), FailureKind.USER_ERROR),
            (RuntimeError("x"), ConfigError("y"), FailureKind.USER_ERROR),
            (CorruptInput("x"), TransientStorageError("y"), FailureKind.CORRUPT),
            (RetryLater(), ValueError("y"), FailureKind.RETRY_LATER),
        ],
    )
    def test_a_cause_counts_if_it_is_about_what_was_not_there(
        self, error: Exception, cause: BaseException, kind: FailureKind
    ) -> None:
        """An HTTP client that wraps "the service is down" does not make it a user error."""
        assert failure_of(wrapped(error, cause)).kind is kind

    @pytest.mark.parametrize(("name", "extra"), [("toxicity", "[jobs]"), ("embed", "[embed]"), ("mine", "")])
    def test_a_module_that_is_missing_says_what_to_install(self, name: str, extra: str) -> None:
        """For the jobs that curate brings, the extra that has it."""
        file = jobs.FOLDER / f"{name}.py" if extra else Path("elsewhere/mine.py")
        code = compile("import no_such_module", str(file), "exec")
        failure = caught(lambda: exec(code, {}))
        assert failure.kind is FailureKind.MISCONFIGURED
        install = f": pip install 'curate{extra}'" if extra else ""
        expected = f"No module named 'no_such_module'; install it where workers run{install}"
        assert failure.error == f"ModuleNotFoundError: {expected}"

    def test_of_memory_that_was_not_there_it_says_how_tasks_have_more(self) -> None:
        """Whoever raised it: Python's own says nothing at all."""
        more = "; where a task asks for more with memory (--memory), fewer run on a machine at once"
        for error, said in (
            (MemoryError(), "there was too little"),
            (pa.ArrowMemoryError("malloc failed"), "malloc failed"),
        ):
            assert failure_of(error).error == f"{type(error).__name__}: {said}{more}"

    def test_what_was_being_handled_does_not_count(self) -> None:
        """The error of a fallback is the fallback's."""

        def fall_back() -> None:
            try:
                raise RetryLater
            except RetryLater:
                raise ValueError("the fallback is broken")  # noqa: B904 - the point

        assert caught(fall_back).kind is FailureKind.USER_ERROR

    @pytest.mark.parametrize(
        ("errors", "kind"),
        [
            ([RetryLater(3), RetryLater(7), RetryLater(5)], FailureKind.RETRY_LATER),
            ([RetryLater(3), ValueError("x")], FailureKind.USER_ERROR),
            ([CorruptInput("x"), CorruptInput("y")], FailureKind.CORRUPT),
        ],
    )
    def test_of_several_errors_it_is_what_all_are(self, errors: list[Exception], kind: FailureKind) -> None:
        failure = failure_of(ExceptionGroup("several", errors))
        assert failure.kind is kind
        assert failure.after_s == (7.0 if kind is FailureKind.RETRY_LATER else 0.0) or kind is FailureKind.USER_ERROR

    def test_causes_in_a_circle_end(self) -> None:
        first, second = ValueError("x"), ValueError("y")
        first.__cause__, second.__cause__ = second, first
        assert failure_of(first).kind is FailureKind.USER_ERROR

    @pytest.mark.parametrize(
        ("given", "after_s"),
        [(12.5, 12.5), (0, 0.0), ("20", 20.0), ("soon", 0.0), (float("nan"), 0.0), (float("inf"), LONGEST_WAIT_S)],
    )
    def test_how_long_to_wait_is_told(self, given: Any, after_s: float) -> None:
        """Whatever user code gave: the answer never stops a run, or makes one that never ends."""
        assert failure_of(wrapped(RuntimeError("x"), RetryLater(given))).after_s == after_s


class TestFrame:
    def test_the_innermost_one_in_user_code(self) -> None:
        """Not inside a library, where nothing can be mended."""

        def parse() -> None:
            json.loads("{")

        line = parse.__code__.co_firstlineno + 1
        assert caught(parse).frame == f"{HERE}:{line} in parse"

    def test_that_of_the_error_beneath_where_curate_raised(self) -> None:
        """What a job raised in the middle of a read is told as corrupt input; the frame is the job's."""

        def process() -> None:
            raise ObjectNotFound("gone")

        text = "def apply():\n try:\n  process()\n except Exception as error:\n  raise CorruptInput('x') from error"
        names = {"process": process, "CorruptInput": CorruptInput}
        exec(compile(text, Path(curate.__file__).parent / "job" / "operator.py", "exec"), names)
        with pytest.raises(CorruptInput) as raised:
            names["apply"]()  # type: ignore[operator]
        # Without this test's own frame: shards are run by curate.
        failure = failure_of(raised.value.with_traceback(raised.value.__traceback__.tb_next))
        assert failure.kind is FailureKind.CORRUPT
        assert failure.frame == f"{HERE}:{process.__code__.co_firstlineno + 1} in process"

    def test_none_where_no_user_code_ran(self) -> None:
        with pytest.raises(ObjectNotFound) as raised:
            open_store("memory://blame").read("memory://blame/none")
        assert failure_of(raised.value.with_traceback(raised.value.__traceback__.tb_next)).frame == ""
        assert failure_of(ValueError("never raised")).frame == ""

    def test_its_file_is_named_below_where_python_looks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A working directory is unpacked under another name for every version of it."""
        file = tmp_path / "_ray_pkg_0123" / "jobs" / "score.py"
        code = compile("\n\nraise ValueError('x')", file, "exec")
        assert caught(lambda: exec(code)).frame == "jobs/score.py:3 in <module>"
        monkeypatch.syspath_prepend(str(file.parent))
        assert caught(lambda: exec(code)).frame == "score.py:3 in <module>"
        monkeypatch.syspath_prepend(str(file.parents[1]))
        assert caught(lambda: exec(code)).frame == "jobs/score.py:3 in <module>"


class TestText:
    def test_it_is_bounded_and_keeps_its_ends(self) -> None:
        """A traceback says at its end where the error is, and before a long message too; a message at its beginning
        what it is."""

        def fail() -> None:
            raise ValueError("start " + "x" * 20_000 + " end")

        failure = caught(fail)
        assert len(failure.error) == MAX_ERROR
        assert failure.error.startswith("ValueError: start")
        assert len(failure.traceback) <= MAX_TRACEBACK
        assert failure.traceback.endswith(" end\n")
        assert ", in fail\n" in failure.traceback

    def test_it_says_how_much_is_left_out(self) -> None:
        """What is there and what is said to be left out is all there was."""
        error = ValueError("x" * 9000)
        text = failure_of(error).traceback
        before, _, rest = text.partition("\n[")
        note, _, after = rest.partition("\n")
        cut = int(note.split()[0].replace(",", ""))
        assert len(before) + cut + len(after) == len(f"ValueError: {error}\n")

    def test_a_short_one_is_whole(self) -> None:
        assert failure_of(ValueError("x")).traceback == "ValueError: x\n"

    def test_an_exception_that_cannot_be_shown_is_no_other_failure(self) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even that")

        failure = failure_of(Odd())
        assert (failure.kind, failure.error) == (FailureKind.USER_ERROR, "Odd: <its message cannot be shown>")


def test_it_says_where_it_was_and_how_much_memory_was_held() -> None:
    failure = failure_of(ValueError("x"))
    assert (failure.node, failure.pid) == (socket.gethostname(), os.getpid())
    assert 0 < failure.peak_bytes <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_compiled_code_of_a_library_is_not_the_users() -> None:
    """Cython gives the names that its sources had where they were built."""
    try:
        pa.CompressedInputStream(pa.BufferReader(b"no gzip"), "gzip").read()
    except OSError as error:
        raised = error
    inner = failure_of(raised).frame
    assert inner.startswith("tests/pipeline/test_classify.py:")
    assert inner.endswith(" in test_compiled_code_of_a_library_is_not_the_users")
