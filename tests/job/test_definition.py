"""A slip in a job class is said when the class is made, naming what was likely meant."""

# ruff: noqa: ARG001, ARG005 - what is tested is how methods look, not what they do
from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest

from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.command import command
from curate.job.job import Job
from curate.job.origin import job_origin
from curate.job.params import param
from curate.job.shapes import FileJob, RowsJob, TextJob
from curate.ledger.summary import RunState
from curate.resume.options import OPTIONS
from curate.sources.inputs import FileRows
from tests.job.inline import refusing


def define(bases: tuple[type, ...] = (Job,), /, **body: Any) -> type[Job]:
    """Makes a job class of these attributes; `annotations` are its annotations."""
    annotations = body.pop("annotations", {})
    return type("Made", bases, {"__annotations__": annotations, "__module__": __name__, **body})


def refused(message: str, bases: tuple[type, ...] = (Job,), /, **body: Any) -> None:
    with refusing(message):
        define(bases, **body)


class TestAttributes:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"bach_size": 10}, "Made.bach_size is not an attribute of a job; did you mean 'batch_size'?"),
            ({"verison": "1"}, "Made.verison is not an attribute of a job; did you mean 'version'?"),
            ({"label": "x"}, "annotate it to make it a parameter (label: str = ...), or write it in capitals"),
            ({"least": param(3)}, "Made.least = param(...) has no type; annotate it: least: int = param(...)"),
            ({"label": param()}, "Made.label = param(...) has no type; annotate it: label: str = param(...)"),
            ({"VERSION": "1"}, "Made.VERSION is not a setting; did you mean 'version'?"),
        ],
    )
    def test_a_lower_case_attribute_means_something_or_is_a_slip(self, body: dict[str, Any], message: str) -> None:
        refused(message, **body)

    @pytest.mark.parametrize(
        ("name", "annotation", "meant"),
        [
            ("bach_size", int, "batch_size"),
            ("batchsize", int, "batch_size"),
            ("num_cpu", int, "num_cpus"),
            ("column", list[str], "columns"),
            ("bach_size", ClassVar[int], "batch_size"),
        ],
    )
    def test_an_annotated_slip_does_not_become_a_parameter(self, name: str, annotation: Any, meant: str) -> None:
        refused(f"Made.{name}: did you mean '{meant}'?", annotations={name: annotation}, **{name: 1})

    def test_a_slip_of_an_inherited_parameter_is_seen(self) -> None:
        refused(
            "Made.text_colum: did you mean 'text_column'?", (TextJob,), annotations={"text_colum": str}, text_colum="x"
        )

    def test_param_says_that_a_name_is_meant(self) -> None:
        """The way out for a name that merely looks like another one."""
        made = define(annotations={"column": str}, column=param("x"))
        assert made(column="y").column == "y"  # type: ignore[attr-defined, call-arg]

    def test_constants_private_names_and_class_variables_are_nobodys_business(self) -> None:
        define(annotations={"seen": ClassVar[int]}, WORDS=["a"], _cache={}, seen=0)

    @pytest.mark.parametrize("body", [{}, {"most": 7}])
    def test_a_class_variable_replaces_no_parameter(self, body: dict[str, Any]) -> None:
        """The job would run with the parameter's value, whatever the class says; the other way round there is one."""
        base = define(annotations={"most": int}, most=3)
        refused("Made.most is a ClassVar, but a parameter", (base,), annotations={"most": ClassVar[int]}, **body)
        constant = define(annotations={"most": ClassVar[int]}, most=7)
        assert define((constant,), annotations={"most": int}, most=3)().most == 3  # type: ignore[attr-defined]


class TestHooks:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("proccess", "process"),
            ("proces", "process"),
            ("Process", "process"),
            ("set_up", "setup"),
            ("setUp", "setup"),
            ("process_flie", "process_file"),
            ("chek", "check"),
            ("dropp", "drop"),
        ],
    )
    def test_a_method_nearly_called_like_a_hook_is_refused(self, name: str, meant: str) -> None:
        refused(f"Made.{name} is never called; did you mean '{meant}'?", **{name: lambda self, batch: batch})

    @pytest.mark.parametrize("wrap", [lambda f: f, staticmethod, functools.cached_property, property])
    def test_a_helper_that_some_method_calls_is_none(self, wrap: Callable[..., Any]) -> None:
        """Whatever it is called, wherever in the method the call is."""

        def process(self: Any, batch: Any) -> Any:
            return [self.procces(piece) for piece in (lambda: [batch])()]

        define(process=process, procces=wrap(lambda self: None))

    def test_a_hook_that_an_inherited_method_calls_is_none(self) -> None:
        class Steps(Job):
            def process(self, batch: Any) -> Any:
                return self.proces(batch)  # type: ignore[attr-defined]

        define((Steps,), proces=lambda self, batch: batch)

    @pytest.mark.parametrize("name", ["mean", "discount", "process_rows", "process_text", "prepare", "amount"])
    def test_other_methods_are_left_alone(self, name: str) -> None:
        define(**{name: lambda self: None})

    @pytest.mark.parametrize(
        ("name", "method", "message"),
        [
            ("process", lambda self: None, "Made.process takes (self), but is called as process(self, batch)"),
            ("process", lambda self, a, b: None, "Made.process takes (self, a, b), but is called as"),
            ("setup", lambda self, model: None, "Made.setup takes (self, model), but is called as setup(self)"),
            ("process", 3, "Made.process is 3, expected a method process(self, batch)"),
            ("setup", None, "Made.setup is None, expected a method setup(self)"),
        ],
    )
    def test_a_hook_that_cannot_be_called_as_it_is_called_is_refused(
        self, name: str, method: Any, message: str
    ) -> None:
        refused(message, **{name: method})

    def test_further_arguments_with_defaults_are_allowed(self) -> None:
        define(process=lambda self, batch, k=3, *rest, **named: batch)

    def test_async_hooks_are_refused(self) -> None:
        async def process(self: Any, batch: Any) -> Any:
            return batch

        refused("Made.process is async, which is not awaited; write `def process(self, batch)`", process=process)

    def test_process_file_belongs_to_file_jobs(self) -> None:
        refused("Made.process_file is never called: Made is not a FileJob", process_file=lambda self, file: None)

    def test_process_does_not_belong_to_file_jobs(self) -> None:
        refused("write process_file(self, file)", (FileJob,), process=lambda self, batch: None)

    def test_columns_mean_nothing_to_file_jobs(self) -> None:
        refused("a FileJob reads files, which have no columns", (FileJob,), columns=["a"])

    @pytest.mark.parametrize("name", ["attributes", "keep_positions", "quarantine_errors"])
    def test_nor_do_settings_of_rows_wherever_they_are_given(self, name: str) -> None:
        """In the class, where a job is made, and on the command line: they changed nothing but the identity."""
        refused(f"Made.{name} has no effect: a FileJob reads files", (FileJob,), **{name: True})
        cls = define((FileJob,), process_file=lambda self, file: None)
        with refusing(f"Made.{name} has no effect: a FileJob reads files"):
            cls(**{name: True})
        cls(**{name: False})
        option = "--" + name.replace("_", "-")
        assert option in [word for one in command(define(process=lambda self, batch: None)).params for word in one.opts]
        assert option not in [word for one in command(cls).params for word in one.opts]

    @pytest.mark.parametrize("name", ["drop", "count", "quarantine", "log", "spec"])
    def test_what_process_calls_cannot_be_replaced(self, name: str) -> None:
        refused(f"Made.{name} is the name of a method of every job", **{name: lambda self, *a: None})

    @pytest.mark.parametrize("name", ["_tally", "_params", "_hidden"])
    def test_internal_names_cannot_be_replaced(self, name: str) -> None:
        refused(f"Made.{name} is a name that curate uses", **{name: {}})


class TestTaken:
    """Each method of the classes that jobs derive from is known: as a hook, or as what code of users calls."""

    @pytest.mark.parametrize("base", [Job, TextJob, FileJob, RowsJob])
    def test_no_parameter_is_called_like_a_method(self, base: type[Job]) -> None:
        """It would be called, and is no method: the run ended with a traceback."""
        methods = [name for name in dir(base) if not name.startswith("_") and callable(getattr(base, name))]
        assert {"identity", "check_columns", "metric", "process"} < set(methods)
        for name in methods:
            for value in (param(1), 1):
                with pytest.raises(ConfigError, match=f"Made.{name}"):
                    define((base,), annotations={name: int}, **{name: value})
            with pytest.raises(ConfigError, match=f"Made.{name}"):
                define((base,), **{name: 3})

    def test_plumbing_may_be_written_anew(self) -> None:
        define((TextJob,), passed_through=lambda self, batch: batch)
        define(annotations={"passed_through": str}, passed_through="a")  # no method of this job

    @pytest.mark.parametrize(
        ("name", "method", "message"),
        [
            (
                "check_columns",
                lambda self: None,
                "Made.check_columns takes (self), but is called as check_columns(self, ",
            ),
            ("identity", lambda self, k: {}, "Made.identity takes (self, k), but is called as identity(self)"),
            (
                "check_column",
                lambda self, found: None,
                "Made.check_column is never called; did you mean 'check_columns'",
            ),
            ("identify", lambda self: {}, "Made.identify is never called; did you mean 'identity'?"),
        ],
    )
    def test_the_later_hooks_are_hooks(self, name: str, method: Any, message: str) -> None:
        refused(message, **{name: method})


class TestMixins:
    """A class without jobs that a job derives from is read as the job itself is, where it comes before it."""

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({"_rows": lambda self: []}, "Mixin._rows is a name that curate uses"),
            ({"_named": lambda self, text: text}, "Mixin._named is a name that curate uses"),
            ({"spec": lambda self: ""}, "Mixin.spec is the name of a method of every job"),
            ({"count": lambda self: 3}, "Mixin.count is the name of a method of every job"),
            ({"setup": lambda self, model: None}, "Mixin.setup takes (self, model), but is called as setup(self)"),
            ({"process": lambda self: None}, "Mixin.process takes (self), but is called as process(self, batch)"),
            ({"proces": lambda self, batch: None}, "Mixin.proces is never called; did you mean 'process'?"),
            ({"batchsize": 1}, "Mixin.batchsize is not an attribute of a job; did you mean 'batch_size'?"),
            ({"batch_size": "1"}, "Made.batch_size is '1' (str), expected int"),
        ],
    )
    def test_a_slip_of_a_mixin_is_seen(self, body: dict[str, Any], message: str) -> None:
        mixin = type("Mixin", (), body)
        refused(message, (mixin, Job))
        refused(message, (type("Between", (mixin,), {}), TextJob))
        # Nothing of it counts behind the job, but what the job does not have.
        if hasattr(Job, next(iter(body))):
            define((Job, mixin))

    def test_much_of_it_is_its_own(self) -> None:
        """What is called like nothing of a job may be of some library."""
        define((type("Mixin", (), {"training": True, "close": lambda self: None, "_cache": {}}), Job))


class TestMissingHooks:
    """A job without anything to run is refused before it is dispatched; a base class for others is not."""

    def test_a_job_without_process_names_what_may_be_meant(self, tmp_path: Any) -> None:
        made = define(process_batch=lambda self, batch: batch)
        with pytest.raises(ConfigError, match=r"Made has no process\(self, batch\).*did you mean 'process_batch'"):
            made().run(input=str(tmp_path), output=str(tmp_path / "out"), backend="inline")
        assert not (tmp_path / "out").exists()

    def test_a_file_job_needs_process_file(self) -> None:
        with pytest.raises(ConfigError, match=r"Made has no process_file\(self, file\)"):
            define((FileJob,))().spec()

    def test_it_may_be_inherited(self) -> None:
        base = define(process=lambda self, batch: batch)
        assert define((base,))().spec()

    def test_an_init_that_forgets_its_base_is_named(self) -> None:
        made = define(process=lambda self, batch: batch, __init__=lambda self, **parameters: None)
        with pytest.raises(ConfigError, match=r"Made.__init__ does not call super\(\).__init__"):
            made().spec()

    def test_an_init_that_does_not_take_all_parameters_is_refused(self) -> None:
        """A command, and what makes a job again of its ledger, gives them by name."""
        own = "Made.__init__ takes (self, n=3), but a job is made with all its parameters by name"
        for init in (lambda self, n=3: None, lambda self: None, lambda self, *n: None):
            refused("Made.__init__ takes (self", __init__=init)
            refused("Made.__init__ takes (self", (type("Mixin", (), {"__init__": init}), Job))
        refused(own, __init__=lambda self, n=3: None)
        define(__init__=lambda self, n=3, **parameters: None)

    def test_no_job_is_a_dataclass(self) -> None:
        """Whose decorator comes after the class is defined."""
        made = dataclasses.dataclass(define(annotations={"n": int}, n=3, process=lambda self, batch: batch))
        with refusing("Made.__init__ takes (self, n: "):
            command(made)
        refused(
            "Made.many is dataclasses.field(...), but a job is not a dataclass; write its default: many = param([])",
            annotations={"many": list[str]},
            many=dataclasses.field(default_factory=list),
        )


class TestSettings:
    @pytest.mark.parametrize(
        ("setting", "value", "message"),
        [
            ("version", 1, "Made.version is 1 (int), expected str or None"),
            ("version", "", "expected non-empty text"),
            ("batch_size", "10", "Made.batch_size is '10' (str), expected int"),
            ("batch_size", True, "Made.batch_size is True (bool), expected int"),
            ("batch_size", 0, "Made.batch_size is 0: expected at least 1"),
            ("batch_size", 2**63, "Made.batch_size is 9223372036854775808: expected less than 2^63"),
            ("shard_bytes", -1, "expected at least 1"),
            ("shard_bytes", 10**30, "expected less than 2^63"),
            ("num_cpus", -1, "expected a finite number, at least 0"),
            ("num_gpus", float("nan"), "expected a finite number, at least 0"),
            ("resources", {"TPU": "4"}, 'expected names with amounts, such as {"TPU": 4}'),
            ("resources", {"TPU": -4}, "'TPU': expected a finite number"),
            ("resources", ["TPU"], "expected Mapping"),
            ("memory", "2g", "Made.memory is '2g' (str), expected int or None"),
            ("max_tasks", 0, "expected at least 1"),
            ("format", "parqet", "did you mean 'parquet'?"),
            ("codec", "", "Made.codec: parquet is not written with codec ''"),
            ("codec", "gzip", "Made.codec: parquet is not written with codec 'gzip'"),
            ("max_bad_rows", "1x", "not a number of rows or a percentage"),
            ("max_bad_rows", -1, "not a number of rows or a percentage"),
            ("output_schema", {"a": "int"}, "expected Schema or None"),
            ("output_schema", pa.schema([("a", pa.int8()), ("a", pa.int8())]), "column 'a' occurs 2 times"),
            ("output_schema", pa.schema([]), "it has no column"),
            ("columns", "body", "Made.columns is 'body' (str), expected list"),
            ("columns", [], "Made.columns is empty"),
            ("columns", [1], "Made.columns names 1, expected column names"),
            ("columns", {"a": str}, "expected a pyarrow type, such as pa.string()"),
            ("columns", {"a": pa.field("b", pa.int8())}, "is a field called 'b'"),
            ("columns", lambda self: ["a"], "is @property missing above it?"),
            ("name", 3, "expected str"),
        ],
    )
    def test_a_setting_of_the_wrong_type_or_value_is_refused(self, setting: str, value: Any, message: str) -> None:
        refused(message, **{setting: value})

    def test_settings_may_be_properties_and_are_checked_when_a_run_starts(self) -> None:
        made = define(process=lambda self, batch: batch, batch_size=property(lambda self: 0))
        with refusing("Made.batch_size is 0: expected at least 1"):
            made().spec()

    @pytest.mark.parametrize("kind", [property, functools.cached_property])
    def test_a_setting_that_is_a_property_cannot_be_given(self, kind: Any) -> None:
        """Nor is it recorded as given, once it was asked for."""
        computed = kind(lambda self: 10)
        if kind is functools.cached_property:
            computed.__set_name__(None, "batch_size")
        made = define(batch_size=computed, process=lambda self, batch: batch)
        with refusing("Made.batch_size is a property, so it cannot be passed"):
            made(batch_size=5)  # type: ignore[call-arg]
        assert "--batch-size" not in [word for one in command(made).params for word in one.opts]
        job = made()
        assert (job.spec().tasks.batch_rows, job_origin(job)["settings"]) == (10, {})

    @pytest.mark.parametrize(
        ("columns", "types", "required"),
        [
            (["a", "b"], {"a": None, "b": None}, set()),
            (("a", "a"), {"a": None}, set()),
            ({"a": pa.string(), "b": None}, {"a": pa.string(), "b": None}, set()),
            ([pa.field("a", pa.int8()), "b"], {"a": pa.int8(), "b": None}, set()),
            ({"a": pa.field("a", pa.int8(), nullable=False)}, {"a": pa.int8()}, {"a"}),
            (pa.schema([pa.field("a", pa.int8(), nullable=False), ("b", pa.int8())]), None, {"a"}),
        ],
    )
    def test_columns_are_names_types_or_fields(self, columns: Any, types: Any, required: set[str]) -> None:
        rows = define(process=lambda self, batch: batch, columns=columns)().spec().rows
        assert isinstance(rows, FileRows)
        assert rows.columns == (types or {"a": pa.int8(), "b": pa.int8()})
        assert rows.required == required

    @pytest.mark.parametrize(
        ("name", "job"),
        [("Toxicity", "toxicity"), ("PIIFilter", "pii_filter"), ("TextJob2", "text_job2"), ("A", "a")],
    )
    def test_a_job_is_named_after_its_class(self, name: str, job: str) -> None:
        assert type(name, (Job,), {"__module__": __name__}).name == job
        assert type(name, (Job,), {"__module__": __name__, "name": "other"}).name == "other"


class TestParameters:
    @pytest.mark.parametrize(
        ("annotation", "default", "message"),
        [
            (int, "3", "Made.limit_to is '3' (str), expected int"),
            (int, True, "Made.limit_to is True (bool), expected int"),
            (float, float("nan"), "Made.limit_to is nan"),
            (Literal["a", "b"], "c", "expected one of ['a', 'b']"),
            (list[int], 3, "expected a list of int"),
            (list[int], ["x"], "Made.limit_to is 'x' (str), expected int"),
            (Asset, None, "annotate it Asset | None if it may be absent"),
            (dict[int, str], {}, "cannot be a parameter; use str, int, float, bool, Literal, Asset, a list"),
            (dict, {}, "cannot be a parameter; use"),
            (dict[str, Asset], {}, "cannot be a parameter; use"),
            (dict[str, list[int]], {}, "dict[str, Any] for JSON"),
            (dict[str, float], {"a": "b"}, "Made.limit_to['a'] is 'b' (str), expected float"),
            (dict[str, float], [1], 'expected a dict of text to float, such as {"a": 0.5}'),
            (int | str, 3, "cannot be a parameter"),
            (Literal[1, "1"], 1, "are written alike on a command line"),
            (Literal[b"a"], b"a", "Made.limit_to: b'a' cannot be an option; make it a str, an int or a bool"),
            (Literal[RunState.COMPLETE], RunState.COMPLETE, "cannot be an option; make it a str, an int or a bool"),
        ],
    )
    def test_annotation_and_default_must_fit(self, annotation: Any, default: Any, message: str) -> None:
        refused(message, annotations={"limit_to": annotation}, limit_to=default)

    def test_an_annotation_that_is_not_visible_is_named(self) -> None:
        refused("an annotation cannot be understood", annotations={"x": "Nowhere"}, x=1)

    @pytest.mark.parametrize("name", ["json", "dry_run", "yes", "help", *OPTIONS])
    def test_names_of_options_that_every_job_has_are_taken(self, name: str) -> None:
        refused(f"Made.{name} is an option of every job", annotations={name: str}, **{name: "x"})

    @pytest.mark.parametrize("name", ["count", "run", "main", "spec", "drop"])
    def test_names_of_methods_that_every_job_has_are_taken(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"Made.{name}"):
            define(annotations={name: int}, **{name: param(1)})

    @pytest.mark.parametrize(
        ("annotations", "option"),
        [
            ({"lower": bool, "no_lower": bool}, "--no-lower twice, for 'lower' and for 'no_lower'"),
            ({"samples": bool}, "--no-samples twice, for 'no_samples' and for 'samples'"),
            ({"progress_after": bool}, "--no-progress-after twice, for 'no_progress_after' and for"),
            ({"no_attributes": str}, "--no-attributes twice, for 'no_attributes' and for 'attributes'"),
            ({"no_keep_positions": str}, "--no-keep-positions twice, for 'no_keep_positions' and for"),
            ({"no_quarantine_errors": int}, "--no-quarantine-errors twice, for 'no_quarantine_errors' and for"),
            ({"h": str}, None),
            ({"samples": str, "progress_after": float}, None),
        ],
    )
    def test_no_option_of_a_command_is_anothers(self, annotations: dict[str, Any], option: str | None) -> None:
        """Whichever of them click took, the other one would never be set."""
        body = {name: param({bool: True, str: "x", int: 1, float: 1.0}[kind]) for name, kind in annotations.items()}
        made = define(annotations=annotations, process=lambda self, batch: None, **body)
        if option is None:
            command(made)
        else:
            with refusing(f"made has the option {option}"):
                command(made)

    def test_a_script_with_such_an_option_says_so_in_a_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        made = define(annotations={"samples": bool}, samples=True, process=lambda self, batch: None)
        with pytest.raises(SystemExit) as ended:
            made.main()
        assert (ended.value.code, capsys.readouterr().err.count("\n")) == (2, 1)

    @pytest.mark.parametrize("annotation", [int, Asset, list[str]])
    def test_a_secret_is_text(self, annotation: Any) -> None:
        refused("is secret, so it must be a str", annotations={"key": annotation}, key=param(secret=True))

    def test_parameters_are_inherited_and_may_get_another_default(self) -> None:
        made = define((TextJob,), text_column="body", process=lambda self, batch: batch)
        job = made()
        assert job.text_column == "body"  # type: ignore[attr-defined]
        assert job._params["text_column"].help == "column that holds the text"

    def test_another_default_of_the_wrong_type_is_refused(self) -> None:
        refused("Made.text_column is 3 (int), expected str", (TextJob,), text_column=3)
