"""A job as a program: options, what is printed where, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.command import command
from curate.job.job import Job
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.ledger.summary import Summary
from curate.resume.options import RunOptions
from curate.runtime.protocol import Resources
from curate.stage.stage import Stage
from tests.job.inline import everything, numbered, outputs, write_jsonl
from tests.support.fakes import NEVER_S

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]


class Options(TextJob):
    """Take one option of each kind.

    The second paragraph of the docstring.
    """

    version = "1"
    word: str = param("a", help="what to look for")
    size: int = 3
    ratio: float = 0.5
    strict: bool = False
    loud: bool = True
    mode: Literal["fast", "slow"] = "fast"
    level: Literal[1, 2] = 1
    names: list[str] = param([], help="which")
    sizes: list[int] = param([1, 2])
    modes: list[Literal["x", "y"]] = param([])
    lists: list[Asset] = param([])
    maybe: int | None = None
    weights: dict[str, float] = param({"web": 0.5}, help="of sources")
    config: dict[str, Any] = param({})
    model: Asset | None = None
    key: str | None = param(None, secret=True)

    def process(self, batch: pa.Table) -> Any:
        self.count("seen", len(batch))
        print("process says something")  # noqa: T201
        if "fail" in batch["text"].to_pylist():
            raise ValueError("asked to")
        return batch


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Stage, RunOptions]]:
    """What the driver is handed, instead of being run."""
    seen: list[tuple[Stage, RunOptions]] = []

    def run(spec: Stage, options: RunOptions) -> Any:
        seen.append((spec, options))
        raise KeyboardInterrupt

    monkeypatch.setattr("curate.graph.entry.run", run)
    return seen


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the command on tmp_path/in and tmp_path/out, inline."""

    def invoke(*arguments: str, cls: type[Job] = Options, prepend: bool = True) -> Result:
        common = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--backend", "inline"]
        return CliRunner().invoke(command(cls), [*(common if prepend else []), *arguments])

    return invoke


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for k, name in enumerate("abcd"):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", numbered(2 * k, 2 * k + 2))
    return tmp_path / "in"


class TestParameters:
    @pytest.mark.parametrize(
        ("arguments", "name", "value"),
        [
            ([], "word", "a"),
            (["--word", "b c"], "word", "b c"),
            (["--size", "-4"], "size", -4),
            (["--ratio", "1"], "ratio", 1.0),
            (["--ratio", "1e-3"], "ratio", 0.001),
            (["--strict"], "strict", True),
            (["--no-strict"], "strict", False),
            (["--no-loud"], "loud", False),
            (["--mode", "slow"], "mode", "slow"),
            (["--level", "2"], "level", 2),
            (["--names", "a"], "names", ["a"]),
            (["--names", "a,b", "--names", " c "], "names", ["a", "b", "c"]),
            ([], "sizes", [1, 2]),
            (["--sizes", "3,4"], "sizes", [3, 4]),
            (["--sizes", ""], "sizes", []),
            (["--modes", "x,y"], "modes", ["x", "y"]),
            (["--maybe", "3"], "maybe", 3),
            ([], "maybe", None),
            ([], "weights", {"web": 0.5}),
            (["--weights", '{"b": 1, "a": 0.5}'], "weights", {"a": 0.5, "b": 1.0}),
            (["--config", '{"a": [1, null, "x,y"]}'], "config", {"a": [1, None, "x,y"]}),
            (["--keep-columns", "a,b"], "keep_columns", ["a", "b"]),
            (["--text-column", "body"], "text_column", "body"),
        ],
    )
    def test_each_becomes_a_typed_option(
        self, run: Run, given: list[tuple[Stage, RunOptions]], arguments: list[str], name: str, value: Any
    ) -> None:
        run(*arguments)
        assert given[0][0].record.parameters[name] == value
        assert type(given[0][0].record.parameters[name]) is type(value)

    def test_assets_are_uris_which_may_hold_commas(
        self, run: Run, given: list[tuple[Stage, RunOptions]], tmp_path: Path
    ) -> None:
        for name in ("a,b.txt", "c.txt"):
            (tmp_path / name).write_bytes(b"x")
        run(
            "--lists", str(tmp_path / "a,b.txt"), "--lists", str(tmp_path / "c.txt"), "--model", str(tmp_path / "c.txt")
        )
        parameters = given[0][0].record.parameters
        assert [one["uri"] for one in parameters["lists"]] == [f"{tmp_path}/a,b.txt", f"{tmp_path}/c.txt"]
        assert parameters["model"]["uri"] == f"{tmp_path}/c.txt"
        assert "can be repeated" in run("--help").output.split("--lists URI")[1].split("--maybe")[0]

    def test_assets_with_commas_between_are_told_apart(self, run: Run, tmp_path: Path) -> None:
        """As other lists are given: here it is one path, of a file that is not there."""
        (tmp_path / "c.txt").write_bytes(b"x")
        result = run("--lists", f"{tmp_path}/c.txt,{tmp_path}/c.txt")
        assert result.exit_code == 2
        assert "of several, each is an option (an item of a list) of its own" in result.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--size", "3.5"], "Invalid value for '--size': '3.5' is not a valid integer"),
            (["--ratio", "much"], "Invalid value for '--ratio': 'much' is not a valid float"),
            (["--ratio", "nan"], "--ratio is nan; pass a number"),
            (["--mode", "fats"], "Invalid value for '--mode': 'fats' is not one of 'fast', 'slow'"),
            (["--level", "3"], "Invalid value for '--level'"),
            (["--sizes", "1,x"], "Invalid value for '--sizes': 'x' is not a valid integer"),
            (["--modes", "x,z"], "Invalid value for '--modes': 'z' is not one of 'x', 'y'"),
            (["--names", '["a", "b"]'], """'["a", "b"]' is a list in JSON, expected text[,text]: a,b"""),
            (["--modes", '["x"]'], """'["x"]' is a list in JSON, expected choice[,choice]: x"""),
            (["--lists", '["a.txt"]'], """'["a.txt"]' is a list in JSON, expected the option once for each"""),
            (["--weights", "web=0.5"], "Invalid value for '--weights': 'web=0.5' is not JSON (Expecting value: line 1"),
            (["--weights", "web=0.5"], 'expected text to float, such as {"a": 0.5}'),
            (["--weights", "[1]"], 'weights is [1], expected a dict of text to float, such as {"a": 0.5}'),
            (["--weights", '{"web": "much"}'], "'--weights': weights['web'] is 'much' (str), expected float"),
            (["--weights", '{"web": 1, "web": 2}'], "the name 'web' is there twice"),
            (["--config", '{"a": NaN}'], "config['a'] is nan, which JSON cannot hold"),
            (["--ratoi", "a"], "No such option '--ratoi'. (Did you mean"),
            (["--word"], "Option '--word' requires an argument"),
            (["--model", "/nowhere/model.bin"], "asset '/nowhere/model.bin' does not exist"),
            (["--key", "NO_SUCH_VARIABLE"], "environment variable 'NO_SUCH_VARIABLE', which is not set"),
            (["--batch-size", "0"], "--batch-size is 0: expected at least 1"),
            (["--shard-bytes", "much"], "'much' is not a size"),
            (["--format", "parqet"], "'parqet' is not one of 'parquet', 'jsonl'"),
            (["--codec", ""], "parquet is not written with codec ''"),
            (["--codec", "gzip"], "parquet is not written with codec 'gzip'"),
            (["--max-bad-rows", "many"], "'many' is not a number of rows or a percentage"),
            (["--max-failed-shards", "-1"], "--max-failed-shards -1 is not a number"),
            (["--max-failed-shards", "200%"], "is not a percentage above 0 and up to 100"),
            (["--sample", "0%"], "--sample 0%: '0%' is not a percentage above 0"),
            (["--sample", "5"], "--sample 5: '5' is not a percentage"),
            (["--limit", "0"], "Invalid value for '--limit'"),
            (["--max-in-flight", "0"], "Invalid value for '--max-in-flight'"),
            (["--target-task-seconds", "0"], "--target-task-seconds 0.0 is not a time above 0"),
            (["--target-task-seconds", "nan"], "--target-task-seconds nan is not a time above 0"),
            (["--backend", "dask"], "'dask' is not one of 'auto', 'local', 'ray', 'inline'"),
            (["data/a.jsonl", "data/b.jsonl"], "was a glob not quoted? write --input 'data/*.jsonl'"),
            (["--input", "nohost://x/y"], "scheme 'nohost'"),
            (["--input", "~nobody-of-that-name/x"], "names the home of a user that does not exist"),
        ],
    )
    def test_what_is_wrong_is_refused_with_exit_code_2(
        self, run: Run, source: Path, arguments: list[str], message: str, tmp_path: Path
    ) -> None:
        """On standard error, naming the option; nothing is written."""
        del source
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in re.sub(r"\s+", " ", result.stderr)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert not (tmp_path / "out").exists()

    def test_one_without_default_is_required(self, run: Run) -> None:
        class Needy(Job):
            language: str = param(help="which")
            loud: bool = param()
            names: list[str] = param()

            def process(self, batch: pa.Table) -> Any:
                return batch

        for missing, arguments in {
            "--language": ["--loud", "--names", "a"],
            "--loud": ["--language", "de", "--names", "a"],
            "--names": ["--loud", "--language", "de"],
        }.items():
            result = run(*arguments, cls=Needy)
            assert result.exit_code == 2
            assert f"Missing option '{missing}" in result.stderr, result.stderr

    @pytest.mark.parametrize("missing", ["--input", "--output"])
    def test_input_and_output_are_required(self, run: Run, missing: str) -> None:
        given = [x for name in ("--input", "--output") if name != missing for x in (name, "x")]
        result = run(*given, prepend=False)
        assert result.exit_code == 2
        assert missing in result.stderr


class TestRunOptions:
    @pytest.mark.parametrize(
        ("arguments", "field", "value"),
        [
            (["--limit", "3"], "limit", 3),
            (["--sample", "1%"], "sample", 0.01),
            (["--overwrite"], "overwrite", True),
            (["--accept-code-change"], "accept_code_change", True),
            (["--allow-incomplete-input"], "allow_incomplete_input", True),
            (["--target-task-seconds", "30"], "target_task_s", 30.0),
            ([], "target_task_s", 120.0),
            (["--max-failed-shards", "5%"], "max_failed_shards", "5%"),
            (["--max-in-flight", "7"], "max_in_flight", 7),
            (["--backend", "ray"], "backend", "ray"),
            ([], "handle_signals", True),
        ],
    )
    def test_each_reaches_the_driver(
        self, run: Run, given: list[tuple[Stage, RunOptions]], arguments: list[str], field: str, value: Any
    ) -> None:
        run(*arguments)
        assert getattr(given[0][1], field) == value

    def test_inputs_can_be_repeated(self, run: Run, given: list[tuple[Stage, RunOptions]], tmp_path: Path) -> None:
        run("-i", "other/*.jsonl", "--input", "~/more")
        assert given[0][1].inputs == (str(tmp_path / "in"), "other/*.jsonl", str(Path("~/more").expanduser()))

    def test_settings_reach_the_driver(self, run: Run, given: list[tuple[Stage, RunOptions]]) -> None:
        run(
            *[
                "--batch-size",
                "7",
                "--shard-bytes",
                "64MiB",
                "--memory",
                "2g",
                "--num-cpus",
                "0.5",
                "--num-gpus",
                "1",
                "--max-tasks",
                "3",
            ]
        )
        spec = given[0][0]
        assert (spec.tasks.batch_rows, spec.tasks.shard_bytes, spec.tasks.max_tasks) == (7, 64 * 2**20, 3)
        (pool,) = spec.operator.pools
        assert (pool.resources.num_cpus, pool.resources.num_gpus, pool.resources.memory) == (0.5, 1.0, 2 * 2**30)
        assert spec.tasks.resources == Resources()

    def test_a_setting_that_the_job_computes_has_no_option(self, run: Run) -> None:
        class Computed(Job):
            @property
            def batch_size(self) -> int:  # type: ignore[override]
                return 5

            def process(self, batch: pa.Table) -> Any:
                return batch

        assert "No such option '--batch-size'" in run("--batch-size", "3", cls=Computed).stderr

    def test_yes_answers_the_question_of_overwrite(self, run: Run, given: list[tuple[Stage, RunOptions]]) -> None:
        run("--overwrite", "--yes")
        run("--overwrite")
        assert given[0][1].confirm("sure?")
        assert not given[1][1].confirm("sure?"), "nobody is there to be asked"


class TestOverwrite:
    def test_without_an_answer_nothing_is_removed(self, run: Run, source: Path, tmp_path: Path) -> None:
        del source
        run()
        result = run("--overwrite", "--size", "4")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--overwrite was not confirmed: remove 4 outputs and the ledger of 'options'" in result.stderr
        assert len(outputs(tmp_path / "out")) == 4

    def test_yes_answers(self, run: Run, source: Path) -> None:
        del source
        run()
        result = run("--overwrite", "--yes", "--size", "4", "--json")
        assert json.loads(result.stdout)["shards"] == {"total": 4, "done": 4, "skipped": 0, "failed": 0}

    def test_an_interrupt_at_the_question_is_one(
        self, run: Run, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del source
        run()
        before = outputs(tmp_path / "out")

        def interrupted(*_: Any, **__: Any) -> bool:
            raise click.Abort

        monkeypatch.setattr("curate.job.command._at_terminal", lambda: True)
        monkeypatch.setattr("click.confirm", interrupted)
        assert run("--overwrite", "--size", "4").exit_code == 130
        assert outputs(tmp_path / "out") == before


class TestHelp:
    def test_it_has_a_section_for_each_kind_and_says_everything_once(self, run: Run) -> None:
        result = run("--help", prepend=False)
        text = result.stdout
        assert result.exit_code == 0
        assert [line for line in text.splitlines() if re.fullmatch(r"[A-Z].*:", line)] == [
            "Run:",
            "Parameters of this job:",
            "Settings:",
            "Other:",
        ]
        assert max(map(len, text.splitlines())) <= 100
        flat = re.sub(r"\s+", " ", text)
        for said in (
            "Take one option of each kind. The second paragraph of the docstring.",
            "--word TEXT what to look for [default: a]",
            "--sizes INTEGER[,INTEGER] [default: 1, 2]",
            '--weights JSON of sources [default: {"web": 0.5}]',
            "--strict / --no-strict",
            "--model URI",
            "--key TEXT (name of an environment variable)",
            "--shard-bytes SIZE stored bytes per shard; larger inputs are split; 64MiB, 2g [default: 256MiB]",
            "--max-bad-rows TEXT maximum quarantined rows per shard, N, or P% but at most 100,000 "
            "[default: 0.1%, at least 10]",
            "-h, --help",
        ):
            assert said in flat
        for option in ("input", "output", "limit", "sample", "dry-run", "overwrite", "yes", "accept-code-change"):
            assert len(re.findall(rf"--{option}\b(?!-)", flat)) >= 1


SHAPE = {
    "job": str,
    "run_id": str,
    "output": str,
    "state": str,
    "shards": {"total": int, "done": int, "skipped": int, "failed": int},
    "tasks": {"dispatched": int, "attempts": int},
    "rows": {"in": int, "created": int, "out": int, "dropped": dict, "quarantined": int},
    "counters": dict,
    "bytes": {"in": int, "out": int},
    "seconds": float,
    "start_seconds": float,
    "storage_calls": {"list": int, "get": int, "put": int, "delete": int},
}


def assert_shape(found: Any, shape: Any) -> None:
    if isinstance(shape, dict):
        assert list(found) == list(shape)
        for name, inner in shape.items():
            assert_shape(found[name], inner)
    else:
        assert type(found) is shape


class TestJson:
    def test_one_object_of_exactly_the_promised_shape(self, run: Run, source: Path, tmp_path: Path) -> None:
        """Whatever else prints, the job included."""
        del source
        result = run("--json")
        assert result.exit_code == 0
        assert result.stdout.endswith("}\n")
        found = json.loads(result.stdout)
        assert_shape(found, SHAPE)
        assert found | {"run_id": 0, "seconds": 0, "storage_calls": 0, "bytes": 0, "tasks": 0} == {
            "job": "options",
            "run_id": 0,
            "output": str(tmp_path / "out"),
            "state": "complete",
            "shards": {"total": 4, "done": 4, "skipped": 0, "failed": 0},
            "tasks": 0,
            "rows": {"in": 8, "created": 0, "out": 8, "dropped": {}, "quarantined": 0},
            "counters": {"seen": 8},
            "bytes": 0,
            "seconds": 0,
            "start_seconds": 0,
            "storage_calls": 0,
        }
        assert "process says something" in result.stderr

    def test_again_it_covers_the_whole_job(self, run: Run, source: Path) -> None:
        del source
        first = json.loads(run("--json", "--limit", "3").stdout)
        assert (first["shards"], first["rows"]["in"]) == ({"total": 3, "done": 3, "skipped": 0, "failed": 0}, 6)
        second = json.loads(run("--json").stdout)
        assert (second["shards"], second["rows"]["in"]) == ({"total": 4, "done": 4, "skipped": 3, "failed": 0}, 8)
        third = json.loads(run("--json").stdout)
        assert third["shards"] == {"total": 4, "done": 4, "skipped": 4, "failed": 0}
        assert third["tasks"] == {"dispatched": 0, "attempts": 0}
        assert {name: third[name] for name in ("rows", "counters", "bytes")} == {
            name: second[name] for name in ("rows", "counters", "bytes")
        }

    def test_failed_shards(self, run: Run, source: Path) -> None:
        (source / "e.jsonl.gz").write_bytes(b"no gzip")
        result = run("--json")
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert_shape(found, SHAPE)
        assert (found["state"], found["shards"]) == ("failed", {"total": 5, "done": 4, "skipped": 0, "failed": 1})

    def test_a_refusal_prints_no_object(self, run: Run) -> None:
        """There is no run to tell of; the reason is on standard error."""
        result = run("--json")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "no input" in result.stderr


class TestExitCodes:
    def test_1_if_shards_failed_and_the_summary_says_how(self, run: Run, source: Path) -> None:
        (source / "broken.jsonl.gz").write_bytes(b"no gzip")
        result = run()
        assert result.exit_code == 1
        assert "4 of 5 done, 1 failed" in result.stderr
        assert "1 x CorruptInput" in result.stderr
        assert "(for example broken)" in result.stderr
        assert "see: curate status" in result.stderr

    @pytest.mark.parametrize(
        ("most", "code", "done"), [("0", 3, 0), ("1", 3, 0), ("2", 1, 4), ("40%", 1, 4), ("30%", 3, 0)]
    )
    def test_3_if_more_shards_failed_than_may(self, run: Run, source: Path, most: str, code: int, done: int) -> None:
        for name in ("0", "00"):
            # Larger than the others: they come first.
            (source / f"{name}.jsonl.gz").write_bytes(b"no gzip" * 1000)
        result = run("--json", "--max-failed-shards", most)
        found = json.loads(result.stdout)
        assert result.exit_code == code
        assert found["state"] == {1: "failed", 3: "aborted"}[code]
        assert found["shards"]["done"] == done

    def test_130_if_interrupted_before_anything_ran(self, run: Run, given: list[tuple[Stage, RunOptions]]) -> None:
        result = run("--json")
        assert given
        assert (result.exit_code, result.stdout) == (130, "")
        assert result.stderr.splitlines()[-1] == "interrupted before any shard was begun"
        assert "Traceback" not in result.stderr

    @pytest.mark.parametrize("state", ["complete", "failed", "aborted", "interrupted"])
    def test_they_follow_the_state(self, run: Run, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
        from curate.ledger.summary import RunState
        from curate.storage.protocol import Calls
        from curate.tasks.books import Books

        summary = Summary("j", "r", "/o", RunState(state), 0, 0, 0, 0, 0, 0, Books(), 0, 0, 0.0, Calls())
        monkeypatch.setattr("curate.graph.entry.run", lambda *_: summary)
        expected = {"complete": 0, "failed": 1, "aborted": 3, "interrupted": 130}[state]
        assert run("--json").exit_code == expected
        assert run().exit_code == expected


class TestDryRun:
    def test_it_says_what_would_run_and_writes_nothing(self, run: Run, source: Path, tmp_path: Path) -> None:
        result = run("--dry-run")
        assert result.exit_code == 0
        assert "shards   4 of 4 in the plan" in result.stdout
        assert "run      4" in result.stdout
        assert f"{source}/a.jsonl -> a.parquet" in result.stdout
        assert not (tmp_path / "out").exists()
        assert list(Path(os.environ["CURATE_HOME"]).rglob("*")) == []

    @pytest.mark.parametrize(
        ("given", "says", "reason"),
        [
            ([], "backend  local: there is no Ray cluster to join", "there is no Ray cluster to join"),
            (["--backend", "local"], "backend  local", ""),
        ],
    )
    def test_it_says_where_tasks_would_run_and_why(
        self, run: Run, source: Path, given: list[str], says: str, reason: str
    ) -> None:
        """The why of what was chosen; what was named needs none."""
        del source
        given = given or ["--backend", "auto"]
        assert says in run("--dry-run", *given).stdout.splitlines()
        told = json.loads(run("--dry-run", "--json", *given).stdout)
        assert told["backend"] == {"name": "local", "reason": reason}

    def test_what_it_says_does_nothing_to_a_terminal(self, run: Run, source: Path) -> None:
        """Whatever the inputs are called."""
        (source / "a.jsonl").rename(source / "a\u202elnosj.jsonl")
        told = run("--dry-run").stdout
        assert "a\\u202elnosj.jsonl -> a\\u202elnosj.parquet" in told
        assert told.replace("\n", "").isprintable()

    def test_it_says_what_is_skipped_and_why(self, run: Run, source: Path, tmp_path: Path) -> None:
        del source
        run("--limit", "3")
        before = everything(tmp_path / "out")
        result = run("--dry-run")
        assert "skip     3: their output exists" in result.stdout
        assert "run      1" in result.stdout
        assert everything(tmp_path / "out") == before

    def test_it_refuses_what_a_run_would_refuse(self, run: Run, source: Path, tmp_path: Path) -> None:
        del source
        assert run("--dry-run", "--text-column", "body").exit_code == 2
        assert not (tmp_path / "out").exists()

    def test_overwrite_is_said_and_not_done(self, run: Run, source: Path, tmp_path: Path) -> None:
        del source
        run()
        before = everything(tmp_path / "out")
        result = run("--dry-run", "--overwrite", "--yes")
        assert "remove   4 outputs and the ledger (--overwrite)" in result.stdout
        assert everything(tmp_path / "out") == before

    def test_with_json_it_is_one_object(self, run: Run, source: Path) -> None:
        del source
        run("--limit", "3")
        found = json.loads(run("--dry-run", "--json").stdout)
        assert found == {
            "job": "options",
            "output": found["output"],
            "dry_run": True,
            "inputs": 4,
            "shards": {"total": 4, "skipped": 3, "run": 1, "stale": 0},
            "remove": 0,
            "backend": {"name": "inline", "reason": ""},
        }


class TestScope:
    """`--limit` and `--sample` are outside the identity: a full run keeps their outputs."""

    def test_limit_takes_the_first_shards(self, run: Run, source: Path, tmp_path: Path) -> None:
        del source
        run("--limit", "2")
        assert sorted(outputs(tmp_path / "out")) == ["a.parquet", "b.parquet"]
        before = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in outputs(tmp_path / "out")}
        assert run().exit_code == 0
        assert sorted(outputs(tmp_path / "out")) == [f"{name}.parquet" for name in "abcd"]
        assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in before} == before

    def test_the_summary_says_what_restricted_the_run(self, run: Run, source: Path) -> None:
        """And how many shards are left: a run without it does them. Nothing of it is said of a job that is done."""
        del source
        assert (
            "pending  2 other shards of this job: this run was restricted by --limit 2; run it"
            in run("--limit", "2").stderr
        )
        found = json.loads(run("--limit", "1", "--sample", "50%", "--json").stdout)
        assert found["pending"] == {"shards": found["pending"]["shards"], "restricted_by": "--limit 1 --sample 50%"}
        assert 1 <= found["pending"]["shards"] <= 2
        assert "pending" not in run().stderr
        assert "pending" not in json.loads(run("--limit", "1", "--json").stdout)

    def test_the_summary_says_what_its_numbers_are_of(self, run: Run, source: Path) -> None:
        """Shards are those that were asked for, whatever else is done; all other numbers are of the job so far."""
        del source
        for given, finished in (("--limit 1", 1), ("--limit 2", 2), ("", 4), ("--sample 50%", 4)):
            said = run(*given.split()).stderr.splitlines()
            found = json.loads(run(*given.split(), "--json").stdout)
            rows, wanted = found["rows"]["in"], found["shards"]["total"]
            assert (rows, wanted < 4) == (2 * finished, bool(given))
            [shards] = [at for at, line in enumerate(said) if line.startswith(f"  shards   {wanted} of {wanted} done")]
            [at] = [at for at, line in enumerate(said) if line.startswith(f"  rows     {rows} in ")]
            only = (
                f"these shards were asked for ({given}); rows, counters and bytes are of all finished shards of the job"
            )
            assert said[shards + 1 : at] == ([f"  only     {only}"] if given else [])

    def test_sample_takes_the_same_ones_each_time_and_at_least_one(self, run: Run, tmp_path: Path) -> None:
        for k in range(40):
            write_jsonl(tmp_path / "in" / f"{k:02d}.jsonl", numbered(k, k + 1))
        run("--sample", "0.001%")
        first = set(outputs(tmp_path / "out"))
        assert len(first) == 1
        run("--sample", "20%")
        some = set(outputs(tmp_path / "out"))
        assert first < some
        assert 2 <= len(some) <= 16
        again = json.loads(run("--sample", "20%", "--json").stdout)
        assert again["shards"] == {"total": len(some), "done": len(some), "skipped": len(some), "failed": 0}
        run("--sample", "100%")
        assert len(outputs(tmp_path / "out")) == 40


SCRIPT = """
import atexit
import os
import subprocess
import sys

from curate import Job


class Prints(Job):
    version = "1"

    def process(self, batch):
        print("printed")
        sys.stdout.flush()
        os.write(1, b"written\\n")
        subprocess.run(["echo", "from a child"], check=True)
        return batch


if __name__ == "__main__":
    atexit.register(print, "at the end")
    Prints.main()
"""


def without_children(script: str) -> str:
    """Returns a job that prints, and starts no process that does: that one is told of a closed pipe."""
    lines = [line for line in script.splitlines() if "os.write" not in line and "subprocess.run" not in line]
    return "\n".join(lines)


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    (tmp_path / "prints.py").write_text(SCRIPT)
    environ = os.environ | {"PYTHONPATH": str(ROOT), "CURATE_HOME": str(tmp_path / "home")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "prints.py", "--backend", "inline", "-i", "in", "-o", "out", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    return run


class TestAsAProcess:
    @pytest.mark.slow
    def test_standard_output_holds_the_object_alone(
        self, script: Callable[..., subprocess.CompletedProcess[str]], source: Path
    ) -> None:
        """Not what `process` prints, writes past Python, or has a child write; nor what is printed when all is done."""
        del source
        done = script("--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["state"] == "complete"
        for text in ("printed", "written", "from a child", "at the end"):
            assert text in done.stderr

    @pytest.mark.slow
    def test_the_summary_is_on_standard_error(
        self, script: Callable[..., subprocess.CompletedProcess[str]], source: Path
    ) -> None:
        """So what the job prints can be piped on."""
        del source
        done = script()
        assert "prints: complete in" in done.stderr
        assert sorted(set(done.stdout.splitlines())) == ["at the end", "from a child", "printed", "written"]

    @pytest.mark.slow
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_pipe_that_is_closed_ends_no_run(self, tmp_path: Path, source: Path, unbuffered: str) -> None:
        """`| head`, of both streams: all shards are done, and the exit code says so."""
        del source
        (tmp_path / "prints.py").write_text(without_children(SCRIPT))
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "prints.py", "--backend", "inline", "-i", "in", "-o", "out"]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, cwd=tmp_path, env=environ, stdout=writer, stderr=writer, check=False)
        os.close(writer)
        assert done.returncode == 0
        assert sorted(outputs(tmp_path / "out")) == [f"{name}.parquet" for name in "abcd"]

    @pytest.mark.slow
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
    def test_a_run_goes_on_without_standard_streams(self, tmp_path: Path, source: Path, closed: str) -> None:
        """Services start programs without them: Python has None for each, and opened files would take their numbers."""
        del source
        (tmp_path / "prints.py").write_text(without_children(SCRIPT))
        command = f"{sys.executable} prints.py --backend inline -i in -o out --json {closed}"
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(outputs(tmp_path / "out")) == [f"{name}.parquet" for name in "abcd"]
        if ">&-" not in closed.split():
            assert json.loads(done.stdout)["state"] == "complete"

    @pytest.mark.quick(1)
    @pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2), (0, 2)])
    def test_what_is_opened_is_no_standard_stream(self, tmp_path: Path, closed: tuple[int, ...]) -> None:
        (tmp_path / "opens.py").write_text(
            "import os, sys\nfrom curate.log import open_closed_streams\nopen_closed_streams()\n"
            "for one in (sys.stdout, sys.stderr): print('x', file=one, flush=True)\n"
            "opened = os.open('file', os.O_CREAT)\n"
            "sys.exit(0 if opened > 2 and None not in (sys.stdin, sys.stdout, sys.stderr) else 3)\n"
        )
        words = " ".join(f"{number}>&-" for number in closed)
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        command = f"{sys.executable} opens.py {words}"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            b"x\n" * (1 not in closed),
            b"x\n" * (2 not in closed),
        )

    @pytest.mark.slow
    def test_a_terminal_that_is_closed_ends_no_run(self, tmp_path: Path, source: Path) -> None:
        """Neither by SIGHUP, nor by writes to what is no terminal any more."""
        del source
        waits = without_children(SCRIPT).replace(
            'print("printed")', "open('begun', 'w').close()\n        sys.stdin.read()\n        print('printed')"
        )
        (tmp_path / "prints.py").write_text(f"import sys\n{waits}")
        command = [sys.executable, "prints.py", "--backend", "inline", "-i", "in", "-o", "out"]
        child, terminal = pty.fork()
        if not child:
            os.chdir(tmp_path)
            os.execve(sys.executable, command, os.environ | {"PYTHONPATH": str(ROOT)})
        while not (tmp_path / "begun").exists():
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.02)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sorted(outputs(tmp_path / "out")) == [f"{name}.parquet" for name in "abcd"]

    @pytest.mark.slow
    def test_an_interrupt_during_preparation_ends_without_a_traceback(self, tmp_path: Path, source: Path) -> None:
        """Wherever it hits: here, while the inputs are listed."""
        del source
        hangs = SCRIPT.replace(
            'if __name__ == "__main__":',
            "import curate.sources.inputs as inputs\n"
            "def hang(*_):\n    print('listing', flush=True)\n    sys.stdin.read()\n"
            "inputs.list_inputs = hang\n"
            'if __name__ == "__main__":',
        )
        (tmp_path / "hangs.py").write_text(hangs)
        started = subprocess.Popen(
            [sys.executable, "hangs.py", "-i", "in", "-o", "out", "--backend", "inline"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert started.stdout is not None
        assert started.stdout.readline() == "listing\n"
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=NEVER_S)
        assert started.returncode == 130
        assert "Traceback" not in err
        assert not (tmp_path / "out").exists()


def test_a_sample_that_is_no_text_is_refused() -> None:
    """From code, a fraction is easily given as a number: whether 0.5 is a half or half a percent, it cannot say."""
    with pytest.raises(ConfigError, match="expected a percentage as text"):
        Job.options(input="in", output="out", sample=0.5)  # type: ignore[arg-type]
