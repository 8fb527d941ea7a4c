"""Parameters: checked when they are given, on the job before `setup`, and in the identity unless they say not."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.dataclass import replace
from curate.errors import ConfigError
from curate.job.arguments import parameter_option
from curate.job.asset import Asset
from curate.job.job import Job
from curate.job.locate import locate
from curate.job.origin import job_origin
from curate.job.params import DEEPEST, naming_options, param
from curate.keywords import on_command_line
from tests.job.inline import refusing


class Everything(Job):
    """Takes one parameter of each kind."""

    version = "1"
    word: str = "a"
    size: int = param(3, help="how many")
    ratio: float = 0.5
    strict: bool = False
    mode: Literal["fast", "slow"] = "fast"
    level: Literal[1, 2] = 1
    names: list[str] = param([], help="which")
    sizes: list[int] = param([1, 2])
    modes: list[Literal["x", "y"]] = param([])
    maybe: int | None = None
    weights: dict[str, float] = param({"web": 0.5})
    kinds: dict[str, Literal["x", "y"]] = param({})
    config: dict[str, Any] | None = None
    hint: str = param("", identity=False)

    def process(self, batch: Any) -> Any:
        return batch


class Needy(Job):
    """Has a parameter without a default."""

    language: str = param(help="which language to keep")

    def process(self, batch: Any) -> Any:
        return batch


def identity(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = dict(job.spec().record.identity["parameters"])
    return found


class TestGiven:
    def test_defaults_are_set_on_the_job(self) -> None:
        job = Everything()
        assert (job.word, job.size, job.ratio, job.strict) == ("a", 3, 0.5, False)
        assert (job.mode, job.level, job.names, job.sizes, job.maybe) == ("fast", 1, [], [1, 2], None)

    def test_lists_are_not_shared_between_jobs(self) -> None:
        one, other = Everything(), Everything()
        one.sizes.append(9)
        one.weights["books"] = 0.1
        assert (other.sizes, other.weights) == ([1, 2], {"web": 0.5})
        assert (Everything().sizes, Everything().weights) == ([1, 2], {"web": 0.5})

    @pytest.mark.parametrize(
        ("name", "value", "held"),
        [
            ("ratio", 1, 1.0),
            ("ratio", np.float64(0.25), 0.25),
            ("names", ("a", "b"), ["a", "b"]),
            ("maybe", None, None),
            ("level", 2, 2),
            ("weights", {"b": 1, "a": np.float64(0.25)}, {"a": 0.25, "b": 1.0}),
            ("kinds", {"a": "x"}, {"a": "x"}),
            ("config", {"b": (1, "t", {"d": None, "c": True})}, {"b": [1, "t", {"c": True, "d": None}]}),
        ],
    )
    def test_what_fits_is_held_as_a_plain_value(self, name: str, value: Any, held: Any) -> None:
        found = getattr(Everything(**{name: value}), name)
        assert found == held
        assert type(found) is type(held)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("size", 3.0, "Everything.size is 3.0 (float), expected int"),
            ("size", True, "Everything.size is True (bool), expected int"),
            ("ratio", "0.5", "Everything.ratio is '0.5' (str), expected float"),
            ("ratio", float("nan"), "Everything.ratio is nan; pass a number"),
            ("ratio", 10**400, "Everything.ratio is a whole number above the greatest double; pass a number"),
            ("strict", 1, "Everything.strict is 1 (int), expected bool"),
            ("word", None, "Everything.word is None, expected str; annotate it str | None"),
            ("word", "\udc80", "not valid Unicode"),
            ("mode", "fats", "expected one of ['fast', 'slow']; did you mean 'fast'?"),
            ("level", True, "Everything.level is True, expected one of [1, 2]"),
            ("level", 1.0, "Everything.level is 1.0, expected one of [1, 2]"),
            ("names", "a", "Everything.names is 'a', expected a list of str"),
            ("sizes", [1, "2"], "Everything.sizes is '2' (str), expected int"),
            ("weights", [0.5], 'Everything.weights is [0.5], expected a dict of text to float, such as {"a": 0.5}'),
            ("weights", {"a": "b"}, "Everything.weights['a'] is 'b' (str), expected float"),
            ("weights", {"a": None}, "Everything.weights['a'] is None (NoneType), expected float"),
            ("weights", {1: 0.5}, "a key of Everything.weights is 1 (int), expected str"),
            ("kinds", {"a": "z"}, "Everything.kinds['a'] is 'z', expected one of ['x', 'y']"),
            ("config", {"a": {"b": {1}}}, "Everything.config['a']['b'] is {1} (set), expected what JSON can hold"),
            ("config", {"a": [float("inf")]}, "Everything.config['a'][0] is inf, which JSON cannot hold"),
            ("config", {"a": 2**64}, "which has more than 64 bits; give it as text"),
            (
                "config",
                {"a": [{"b": "https://x/y?sig=abcdefghijklmnop&X-Goog-Signature=1"}]},
                "looks like a signed URL",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name(self, name: str, value: Any, message: str) -> None:
        with refusing(message):
            Everything(**{name: value})

    @pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 20_000])
    def test_json_within_json_has_a_limit(self, depth: int) -> None:
        """Below it, all that reads and writes JSON takes it; above it, Python's own stack may be at its end."""
        value: Any = 1
        for _ in range(depth - 1):
            value = [value]
        if depth <= DEEPEST:
            assert Everything(config={"a": value}).spec().record.fingerprint
        else:
            with refusing(f" is a list or dict within {DEEPEST + 1} others, expected at most {DEEPEST}"):
                Everything(config={"a": [value]})
        option = parameter_option(Everything._params["config"])
        text = '{"a": ' + "[" * depth + "1" + "]" * depth + "}"
        refused = pytest.raises(click.BadParameter, match=r"others[,;] expected")
        with contextlib.nullcontext() if depth <= DEEPEST else refused:
            option.type.convert(text, option, None)

    @pytest.mark.parametrize(
        ("split", "text", "values"),
        [
            (True, " a, b ,,\t", ["a", "b"]),
            (True, "", []),
            (False, " x ", [" x "]),
            (False, "\t", ["\t"]),
            (False, "a, b", ["a, b"]),
            (False, "", []),
        ],
    )
    def test_only_what_commas_separate_is_stripped(self, split: bool, text: str, values: list[str]) -> None:
        one = replace(Everything._params["names"], split=split)
        assert parameter_option(one).type.convert(text, None, None) == values

    @pytest.mark.parametrize(
        ("given", "meant"), [("rato", "ratio"), ("bach_size", "batch_size"), ("max_task", "max_tasks")]
    )
    def test_an_unknown_one_is_refused_with_what_there_is(self, given: str, meant: str) -> None:
        with pytest.raises(
            ConfigError, match=rf"no parameter '{given}'; did you mean '{meant}'\?; it has: attributes, "
        ):
            Everything(**{given: 1})

    def test_one_without_default_has_to_be_given(self) -> None:
        with refusing("Needy needs the parameter 'language': which language to keep"):
            Needy()
        assert Needy(language="de").language == "de"

    def test_settings_may_be_given_too_and_are_checked(self) -> None:
        job = Everything(batch_size=7, max_tasks=2, num_gpus=1, format="jsonl", codec="gzip", max_bad_rows=3)
        assert (job.batch_size, job.max_tasks, job.num_gpus, job.format, job.codec) == (7, 2, 1, "jsonl", "gzip")
        with refusing("Everything.batch_size is 0: expected at least 1"):
            Everything(batch_size=0)
        with refusing("parquet is not written with codec 'gzip'"):
            Everything(codec="gzip").spec()


class TestIdentity:
    def test_identity_parameters_change_the_fingerprint_and_the_others_do_not(self) -> None:
        base = Everything().spec().record.fingerprint
        assert Everything(ratio=0.6).spec().record.fingerprint != base
        assert Everything(names=["a"]).spec().record.fingerprint != base
        assert Everything(hint="x").spec().record.fingerprint == base
        assert Everything(weights={"web": 0.6}).spec().record.fingerprint != base
        assert Everything(config={"a": [1]}).spec().record.fingerprint != base

    def test_the_order_of_a_dict_changes_nothing(self) -> None:
        """Neither the identity nor what the job sees."""
        one, other = Everything(weights={"a": 1, "b": 2}), Everything(weights={"b": 2, "a": 1})
        assert one.spec().record.fingerprint == other.spec().record.fingerprint
        assert list(one.weights) == list(other.weights) == ["a", "b"]
        assert identity(one)["weights"] == {"a": 1.0, "b": 2.0}

    def test_what_was_recorded_makes_the_same_job(self) -> None:
        """Infinities and large numbers are written as text, also in a dict."""
        job = Everything(weights={"a": float("inf")}, config={"b": [1, {"c": "inf"}]}, size=2**70)
        assert locate(json.loads(json.dumps(job_origin(job)))).spec().record == job.spec().record

    def test_all_parameters_are_recorded(self) -> None:
        assert Everything(hint="x").spec().record.parameters["hint"] == "x"
        assert "hint" not in identity(Everything(hint="x"))

    def test_an_attribute_set_later_counts_as_if_it_had_been_given(self) -> None:
        """What `process` sees and what the ledger says must be the same."""
        job = Everything()
        job.ratio = 1
        assert job.spec().record.fingerprint == Everything(ratio=1.0).spec().record.fingerprint
        job.ratio = "much"  # type: ignore[assignment]
        with refusing("Everything.ratio is 'much'"):
            job.spec()

    @pytest.mark.parametrize(
        "setting", [{"batch_size": 9}, {"shard_bytes": 9}, {"format": "jsonl"}, {"codec": "snappy"}]
    )
    def test_settings_that_decide_bytes_are_identity(self, setting: dict[str, Any]) -> None:
        assert Everything(**setting).spec().record.fingerprint != Everything().spec().record.fingerprint

    @pytest.mark.parametrize(
        "setting", [{"num_cpus": 2}, {"num_gpus": 1}, {"memory": 2**30}, {"max_tasks": 3}, {"max_bad_rows": "5%"}]
    )
    def test_settings_that_do_not_are_not(self, setting: dict[str, Any]) -> None:
        assert Everything(**setting).spec().record.fingerprint == Everything().spec().record.fingerprint

    @given(st.lists(st.floats(allow_nan=False), min_size=2, max_size=2, unique=True))
    def test_no_two_floats_are_taken_for_one(self, values: list[float]) -> None:
        """Infinities, which JSON does not have, included."""
        first, second = (Everything(ratio=value).spec().record.fingerprint for value in values)
        assert first != second

    @given(st.lists(st.integers(), min_size=2, max_size=2, unique=True))
    def test_no_two_whole_numbers_are_taken_for_one(self, values: list[int]) -> None:
        """However large: JSON stops at 64 bits."""
        first, second = (Everything(size=value).spec().record.fingerprint for value in values)
        assert first != second

    def test_zero_and_minus_zero_are_two_values(self) -> None:
        """They compare equal and do not give the same results everywhere."""
        assert Everything(ratio=-0.0).spec().record.fingerprint != Everything(ratio=0.0).spec().record.fingerprint


class WithModel(Job):
    """Takes assets."""

    version = "1"
    model: Asset | None = None
    lists: list[Asset] = param([])

    def process(self, batch: Any) -> Any:
        return batch


class TestAssetParameters:
    def test_a_text_becomes_an_asset_whose_generation_is_identity(self, tmp_path: Path) -> None:
        model = tmp_path / "model.bin"
        model.write_bytes(b"one")
        first = WithModel(model=str(model)).spec()
        assert WithModel(model=model).spec().record.fingerprint == first.record.fingerprint
        assert first.record.identity["parameters"]["model"]["uri"] == str(model)
        model.write_bytes(b"another")
        assert WithModel(model=str(model)).spec().record.fingerprint != first.record.fingerprint

    def test_lists_of_assets(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name).write_bytes(b"x")
        recorded = identity(WithModel(lists=[str(tmp_path / "a"), Asset(str(tmp_path / "b"))]))["lists"]
        assert [one["uri"] for one in recorded] == [str(tmp_path / "a"), str(tmp_path / "b")]

    @pytest.mark.parametrize(("name", "problem"), [("nowhere.bin", "does not exist"), ("", "is a directory")])
    def test_a_missing_one_is_refused(self, tmp_path: Path, name: str, problem: str) -> None:
        with pytest.raises(ConfigError, match=rf"asset '.*' {problem}"):
            WithModel(model=str(tmp_path / name)).spec()

    def test_two_jobs_do_not_share_what_an_asset_named(self, tmp_path: Path) -> None:
        """Each looks for itself, when it is started."""
        model = tmp_path / "model.bin"
        model.write_bytes(b"one")
        asset = Asset(str(model))
        first, second = WithModel(model=asset), WithModel(model=asset)
        before = identity(first)
        model.write_bytes(b"another")
        second.spec()
        assert first.model is not None
        assert first.model.identity() == before["model"]


def test_what_is_refused_is_named_as_an_option_whatever_the_words() -> None:
    """The error carries the argument, or the column; an argument of the same name and another value is another one."""

    class Asking(Job):
        """Passes its parameters on."""

        version = "1"
        least: int = param(3)
        word_column: str = param("n")
        mode: str = param("n")

    job = Asking()

    def told(error: ConfigError) -> str:
        with pytest.raises(ConfigError) as caught, naming_options(Asking._params, job):
            raise error
        return str(caught.value)

    assert told(ConfigError.of_argument("sift: least", 3, " cannot be so")) == "--least cannot be so"
    assert told(ConfigError.of_argument("sift: least", 4, " cannot be so")) == "sift: least cannot be so"
    assert told(ConfigError.of_argument("most", 3, " cannot be so")) == "most cannot be so"
    assert told(ConfigError.of_column("nothing to see", "n")).endswith("chosen with word_column=...")
    with on_command_line():
        assert told(ConfigError.of_column("nothing to see", "n")).endswith("chosen with --word-column ...")
    assert told(ConfigError.of_column("nothing to see", "m")) == "nothing to see"
