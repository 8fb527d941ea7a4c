"""What an existing output says to a job that is another one now: other parameters, other code, other version."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow.compute as pc
import pytest
from structlog.testing import capture_logs

from curate.job.definition import OPTIONAL_WORDS, STAGE_WORDS
from curate.job.job import Job
from curate.ledger import layout
from curate.ledger.summary import RunState
from tests.job.inline import everything, numbered, output_rows, outputs, refusing, run_job, write_jsonl, write_parquet
from tests.job.modules import Modules

SOURCE = """
from curate import Job, param

class Mine(Job):
    version = "1"
    columns = ("id", "n")
    factor: int = 2
    hint: str = param("", identity=False)

    def process(self, batch):
        self.count("rows", len(batch))
        return batch
"""
CHANGED = SOURCE.replace('self.count("rows", len(batch))', 'self.count("seen", len(batch))')
WITHOUT_VERSION = SOURCE.replace('    version = "1"\n', "")
Make = Callable[..., Job]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return Modules(tmp_path / "code", monkeypatch)


@pytest.fixture
def make(modules: Modules) -> Make:
    """Makes a job of a source."""

    def made(source: str = SOURCE, **parameters: Any) -> Job:
        job: Job = modules.load(source).Mine(**parameters)
        return job

    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for k, name in enumerate("abc"):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(2 * k, 2 * k + 2))
    return tmp_path / "in"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def job_json(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((out / "_curate" / "job.json").read_bytes())
    return found


class TestIdentity:
    @pytest.mark.parametrize(
        ("source_code", "given", "difference"),
        [
            (SOURCE, {"factor": 3}, "  parameters.factor: made with 2, you asked for 3\n"),
            (SOURCE, {"batch_size": 5}, "  batch_size: made with 4096, you asked for 5\n"),
            (SOURCE.replace('"1"', '"2"'), {}, "  version: made with '1', you asked for '2'\n"),
            (SOURCE.replace('("id", "n")', '("id",)'), {}, "  columns: made with ['id', 'n'], you asked for ['id']\n"),
            (
                SOURCE.replace("factor: int", "times: int"),
                {},
                "  parameters.times: made with nothing, you asked for 2\n",
            ),
            (
                SOURCE.replace("factor: int = 2", "factor: int = 2\n    more: int | None = None"),
                {},
                "  parameters.more: made with nothing, you asked for None\n",
            ),
            (
                SOURCE.replace('("id", "n")', '("n", "id")'),
                {},
                "  columns: made with ['id', 'n'], you asked for ['n', 'id']\n",
            ),
        ],
    )
    @pytest.mark.parametrize("limit", [None, 1])
    def test_another_identity_is_refused_with_the_difference(
        self, make: Make, source: Path, out: Path, source_code: str, given: dict[str, Any], difference: str, limit: Any
    ) -> None:
        """Both sides of it, whether the job is finished or not; and nothing is touched."""
        run_job(make(), source, out, limit=limit)
        before = everything(out)
        with refusing("another identity") as caught:
            run_job(make(source_code, **given), source, out)
        message = str(caught.value)
        assert difference in message
        assert "choose another output, or start over with overwrite=True" in message
        assert everything(out) == before

    @pytest.mark.parametrize("told", [True, False], ids=["code", "parameters"])
    def test_where_code_differs_another_python_is_named(
        self, make: Make, source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, told: bool
    ) -> None:
        """Each Python compiles a lambda in its own way; a parameter that differs has nothing to do with that."""
        with monkeypatch.context() as earlier:
            earlier.setattr("platform.python_version", lambda: "3.9.1")
            run_job(make(WITHOUT_VERSION), source, out, limit=2)
        changed = CHANGED.replace('    version = "1"\n', "") if told else WITHOUT_VERSION
        with refusing("another identity") as caught:
            run_job(make(changed, factor=2 if told else 3), source, out)
        assert ("It was begun with Python 3.9.1, and this is " in str(caught.value)) is told

    def test_a_file_that_was_written_again_is_told_by_its_name(
        self, make: Make, source: Path, out: Path, tmp_path: Path
    ) -> None:
        """Two generations, alone, tell nobody what happened; other files of the list are no part of it."""
        files = [tmp_path / "en.txt", tmp_path / "de.txt"]
        for file in files:
            file.write_text("spam")
        code = SOURCE.replace("factor: int = 2", "words: list[Asset]").replace("import Job,", "import Asset, Job,")
        run_job(make(code, words=[str(file) for file in files]), source, out)
        files[1].write_text("spam and more")
        with refusing("another identity") as caught:
            run_job(make(code, words=[str(file) for file in files]), source, out)
        found = re.search(r"^  parameters\.words: (.*)$", str(caught.value), re.MULTILINE)
        assert found is not None
        assert re.fullmatch(
            rf"{re.escape(str(files[1]))} was written again since \(generation \d+-4 before, \d+-13 now\)", found[1]
        )

    def test_other_parameters_go_on(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(hint="a"), source, out, limit=1)
        assert run_job(make(hint="b", num_cpus=2, max_tasks=1), source, out).state is RunState.COMPLETE

    def test_without_a_version_the_code_is_the_identity(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(WITHOUT_VERSION), source, out)
        assert run_job(make(WITHOUT_VERSION), source, out).skipped == 3
        with refusing("version: made with 'code ") as caught:
            run_job(make(WITHOUT_VERSION.replace('"rows"', '"seen"')), source, out)
        assert "', you asked for 'code " in str(caught.value)


class TestCodeUnderTheSameVersion:
    def test_an_unfinished_job_refuses(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out, limit=1)
        before = everything(out)
        with refusing(
            "Go on with accept_code_change=True, or raise `version` and start over with overwrite=True"
        ) as caught:
            run_job(make(CHANGED), source, out)
        there, here = job_json(out)["code_digest"], make(CHANGED).spec().record.code_digest
        assert f"the code of 'mine' changed (digest {there} before, {here} now)" in str(caught.value)
        assert everything(out) == before

    def test_another_python_is_named(
        self, make: Make, source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as earlier:
            earlier.setattr("platform.python_version", lambda: "3.9.1")
            run_job(make(), source, out, limit=2)
        with refusing("with Python 3.9 it goes on"):
            run_job(make(CHANGED), source, out)

    def test_where_nothing_is_done_it_does_not_speak_of_outputs(self, make: Make, source: Path, out: Path) -> None:
        """As after the first run of a job, which raised in every shard."""
        run_job(make(SOURCE.replace("return batch", "return batch.nothing")), source, out)
        with refusing("no shard is done yet. Go on with accept_code_change=True, unless another driver runs"):
            run_job(make(), source, out)
        assert run_job(make(), source, out, accept_code_change=True).state is RunState.COMPLETE

    def test_accepted_once_it_is_not_asked_again(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out, limit=1)
        run_job(make(CHANGED), source, out, limit=2, accept_code_change=True)
        summary = run_job(make(CHANGED), source, out)
        assert (summary.state, summary.books.counters) == (RunState.COMPLETE, {"rows": 2, "seen": 4})

    def test_what_was_accepted_is_that_code_and_no_other(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out, limit=1)
        run_job(make(CHANGED), source, out, limit=2, accept_code_change=True)
        with refusing("the code of 'mine' changed"):
            run_job(make(CHANGED.replace("seen", "met")), source, out)
        assert run_job(make(), source, out).state is RunState.COMPLETE, "the first code is still its own"

    def test_a_finished_job_warns(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out)
        before = everything(out)
        with capture_logs() as logs:
            summary = run_job(make(CHANGED), source, out)
        assert (summary.state, summary.skipped) == (RunState.COMPLETE, 3)
        [warning] = [event for event in logs if event["log_level"] == "warning"]
        assert warning["event"].startswith("the job's code changed under the same version")
        assert warning["next"].startswith("raise `version`")
        assert everything(out) == before

    def test_a_run_that_makes_nothing_warns(self, make: Make, source: Path, out: Path) -> None:
        """What it was asked for is there, or did not fail: no output of the new code comes beside those of the old."""
        run_job(make(), source, out, limit=1)
        before = everything(out)
        for asked in ({"limit": 1}, {"retry_failed": True}):
            with capture_logs() as logs:
                run_job(make(CHANGED), source, out, **asked)
            assert [event["event"] for event in logs if event["log_level"] == "warning"] == [
                "the job's code changed under the same version; its outputs are those of the old code"
            ]
        assert everything(out) == before

    def test_a_finished_job_with_new_inputs_is_unfinished(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out)
        write_jsonl(source / "d.jsonl", numbered(6, 8))
        with refusing("accept_code_change=True"):
            run_job(make(CHANGED), source, out)

    def test_comments_and_settings_that_change_no_byte_are_no_change(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out, limit=1)
        edited = SOURCE.replace("class Mine", "# A comment.\nclass Mine").replace(
            'version = "1"', 'version = "1"\n    memory = 2**30'
        )
        assert run_job(make(edited), source, out).state is RunState.COMPLETE

    def test_a_dry_run_says_so_too(self, make: Make, source: Path, out: Path) -> None:
        from curate.graph.entry import dry_run

        run_job(make(), source, out, limit=1)
        job = make(CHANGED)
        with refusing("accept_code_change=True"):
            dry_run(job.spec(), job.options(input=source, output=out))


class TestOverwrite:
    """Removes this job's outputs and ledger, after asking, and starts over; what is foreign stays."""

    def test_it_asks_and_a_no_changes_nothing(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out)
        before = everything(out)
        asked: list[str] = []

        def refuse(question: str) -> bool:
            asked.append(question)
            return False

        with refusing("overwrite=True was not confirmed"):
            run_job(make(factor=3), source, out, overwrite=True, confirm=refuse)
        assert asked == [f"remove 3 outputs and the ledger of 'mine' under {out}?"]
        left = {name: data for name, data in everything(out).items() if "/tmp/" not in name}
        assert left == before

    def test_yes_replaces_everything_and_leaves_what_is_foreign(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out)
        foreign = {"notes.txt": b"mine", "x/other.parquet": b"PAR1", "_hidden": b"too"}
        for name, data in foreign.items():
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(data)
        first = job_json(out)["fingerprint"]
        summary = run_job(make(factor=3), source, out, overwrite=True, confirm=lambda _: True)
        assert (summary.state, summary.skipped, summary.done) == (RunState.COMPLETE, 0, 3)
        assert job_json(out)["fingerprint"] != first
        assert {name: (out / name).read_bytes() for name in foreign} == foreign
        assert len(list((out / "_curate" / "runs").glob("*/run.json"))) == 1

    def test_another_format_leaves_no_output_of_the_old_one(self, make: Make, source: Path, out: Path) -> None:
        run_job(make(), source, out)
        run_job(make(format="jsonl"), source, out, overwrite=True, confirm=lambda _: True)
        assert outputs(out) == {}
        assert len(list(out.glob("*.jsonl.zst"))) == 3

    def test_without_a_job_there_is_nothing_to_ask(self, make: Make, source: Path, out: Path) -> None:
        summary = run_job(make(), source, out, overwrite=True)
        assert summary.state is RunState.COMPLETE

    def test_the_result_is_that_of_a_fresh_output(self, make: Make, source: Path, out: Path, tmp_path: Path) -> None:
        run_job(make(factor=1), source, out)
        run_job(make(), source, out, overwrite=True, confirm=lambda _: True)
        run_job(make(), source, tmp_path / "fresh")
        fresh = {name: data for name, data in everything(tmp_path / "fresh").items() if "_curate" not in name}
        assert {name: data for name, data in everything(out).items() if "_curate" not in name} == fresh
        assert len(output_rows(out)) == 6

    def test_a_foreign_object_under_the_name_of_an_output_is_not_removed(
        self, make: Make, source: Path, out: Path
    ) -> None:
        """The plan names it, but no attempt of this job wrote it."""
        run_job(make(), source, out, limit=1)
        write_parquet(out / "b.parquet", [{"not": "ours"}])
        theirs = (out / "b.parquet").read_bytes()
        with refusing("was not written by curate"):
            run_job(make(factor=3), source, out, overwrite=True, confirm=lambda _: True)
        assert (out / "b.parquet").read_bytes() == theirs


@pytest.mark.parametrize("nested", [False, True], ids=["beside", "in a folder"])
@pytest.mark.parametrize("complete", [True, False], ids=["complete", "begun"])
def test_an_output_of_another_shard_is_not_taken_for_one(
    make: Make, source: Path, out: Path, complete: bool, nested: bool
) -> None:
    """Whoever copied or moved it there lost rows, and doubled others: it counts by its record, not by its name alone.
    Of a complete job its size tells; of one of the same size, `curate verify`."""
    write_jsonl(source / ("sub/a.jsonl" if nested else "b.jsonl"), [{"id": f"s{k}", "n": k} for k in range(40)])
    run_job(make(), source, out)
    before = everything(out)
    wrong = out / ("sub/a.parquet" if nested else "b.parquet")
    if not complete:
        (out / layout.SUMMARY).unlink()
    wrong.unlink()
    shutil.copy(out / "a.parquet", wrong)
    with refusing("is the output of shard 'a', copied or moved to where that of "):
        run_job(make(), source, out)
    wrong.unlink()
    ended = run_job(make(), source, out)
    assert (ended.state, ended.attempts) == (RunState.COMPLETE, 1)
    kept = [name for name in before if "_curate" not in name]
    assert [everything(out)[name] for name in kept] == [before[name] for name in kept]


class TestOwnIdentity:
    """What `identity` of a job says stands beside what curate says of it, and in place of nothing."""

    @staticmethod
    def job(told: Any) -> Job:
        class Own(Job):
            version = "1"

            def identity(self) -> Any:
                return told

            def process(self, batch: Any) -> Any:
                return batch

        return Own()

    def test_no_part_of_curates_own_can_be_replaced(self) -> None:
        """Whichever curate says of this job, or of another one, or of a stage: changed code and parameters were taken
        for the same job."""
        without = self.job({}).spec().record.identity
        for name in (*without, *OPTIONAL_WORDS, *STAGE_WORDS):
            with refusing(f"Own.identity() has {name!r}, which curate itself says of a job"):
                self.job({name: "7"}).spec()
        assert self.job({"model": "7"}).spec().record.identity == {**without, "model": "7"}

    @pytest.mark.parametrize(
        ("told", "message"),
        [
            (None, "Own.identity() is None; expected a dict of JSON values by name"),
            (["model"], "Own.identity() is ['model']; expected a dict"),
            ({"model": {1}}, "Own.identity() is {'model': {1}}; expected JSON values: Type is not JSON serializable"),
            ({1: "model"}, "Own.identity() is {1: 'model'}; expected JSON values: Dict key must be str"),
            ({"most": float("inf")}, "Own.identity() is {'most': inf}; expected JSON values: Out of range"),
        ],
    )
    def test_it_is_json_by_name(self, told: Any, message: str) -> None:
        with refusing(message):
            self.job(told).spec()

    def test_what_stages_say_is_known(self, source: Path, out: Path) -> None:
        """A name that a stage uses is one of those that are refused."""

        class Many(Job):
            version = "1"

            def process(self, batch: Any) -> Any:
                return batch

            def build(self, ds: Any) -> Any:
                kept = super().build(ds).sort("id").distinct(["n"])  # type: ignore[attr-defined]
                return kept.limit(3).with_column("m", pc.field("n")).checkpoint(str(out / ".." / "kept"))

        run_job(Many(), source, out, keep_stages=True)
        documents = [path for root in (out, out.parent / "kept") for path in root.rglob("job.json")]
        found = {name for path in documents for name in orjson.loads(path.read_bytes())["identity"]}
        assert found - Many().spec().record.identity.keys() <= STAGE_WORDS | OPTIONAL_WORDS
        assert {"exchange", "stage", "order"} <= found
