"""Options: keyword arguments that several functions share, as `help()` and editors show them; and their names in
messages,
in the words of Python or of the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from inspect import Parameter
from typing import Any, Required, TypeVar, get_args, get_origin, get_type_hints

from curate.around import contextmanager
from curate.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
BY_USING = ("max_failed_shards", "redo_stale", "drop_removed", "allow_concurrent")
"""Options of a run that `Dataset.using` has as well."""
_OF_DATASETS = ("operators", "after")
"""What the record of a dataset has among its parameters, the first one always, and nobody gives."""
_GIVEN = ContextVar("how options are given", default="keyword")
_CHECKPOINT = ContextVar("whether a checkpoint is run", default=False)
_STEP = ContextVar("the step of a chain that is run", default="")
_RECIPE: ContextVar[tuple[Mapping[str, Any], Mapping[str, Collection[str]], str] | None] = ContextVar(
    "parameters of the recipe that is run, the options of its steps, and how parameters are given", default=None
)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def on_command_line() -> AbstractContextManager[None]:
    """Says that what runs within it was asked for on the command line."""
    return _set(_GIVEN, "command line")


def in_file() -> AbstractContextManager[None]:
    """Says that what runs within it was asked for by the keys of a file."""
    return _set(_GIVEN, "file")


def by_using() -> AbstractContextManager[None]:
    """Says that what runs within it has its options from `Dataset.using`."""
    return _set(_GIVEN, "using")


def of_checkpoint() -> AbstractContextManager[None]:
    """Says that what runs within it is a checkpoint, which no option overwrites."""
    return _set(_CHECKPOINT, True)


def of_step(name: str) -> AbstractContextManager[None]:
    """Says that what runs within it is a step of a chain, which is overwritten by its name."""
    return _set(_STEP, name)


def of_recipe(parameters: Mapping[str, Any], steps: Mapping[str, Collection[str]]) -> AbstractContextManager[None]:
    """Says that what runs within it was asked for by these parameters of a recipe, whose `steps` have these options."""
    return _set(_RECIPE, (parameters, steps, _GIVEN.get()))


def option(name: str, value: Any = True) -> str:
    """Returns an option as whoever reads the message gives it.

    >>> option("overwrite"), option("limit", 3), option("sample", ...)
    ('overwrite=True', 'limit=3', 'sample=...')
    >>> with on_command_line():
    ...     option("overwrite"), option("max_in_flight", 3)
    ('--overwrite', '--max-in-flight 3')
    >>> with by_using():
    ...     option("redo_stale")
    '.using(redo_stale=True)'
    """
    if (given := _GIVEN.get()) != "command line":
        text = f"{name}={'...' if value is ... else repr(value)}"
        return f".using({text})" if given == "using" and name in BY_USING else text
    if isinstance(value, list):
        return " ".join(option(name, one) for one in value)
    text = "" if value is True else " ..." if value is ... else f" {value}"
    return f"--{name.replace('_', '-')}{text}"


def either_way(name: str) -> str:
    """Returns an option as it is given in Python and on the command line: a worker knows not how its job was begun.

    >>> either_way("max_bad_rows")
    'max_bad_rows (--max-bad-rows)'
    """
    return f"{name} (--{name.replace('_', '-')})"


def called(owner: str, name: str) -> str:
    """Returns a parameter or a setting of a job as whoever reads the message gives it.

    >>> called("Short", "most_words")
    'Short.most_words'
    >>> with on_command_line():
    ...     called("Short", "most_words")
    '--most-words'
    >>> with in_file():
    ...     called("Short", "most_words")
    'most_words'
    """
    if (given := _GIVEN.get()) == "file":
        return name
    return option(name) if given == "command line" else f"{owner}.{name}"


def chosen_with(name: str) -> str:
    """Returns the sentence that an option chooses another one, on the command line; in Python it is a method's own.

    >>> chosen_with("format")
    ''
    >>> with on_command_line():
    ...     chosen_with("format")
    '. Another one is chosen with --format ...'
    """
    return f". Another one is chosen with {option(name, ...)}" if _GIVEN.get() == "command line" else ""


@contextmanager
def naming_columns(parameters: Mapping[str, Any]) -> Iterator[None]:
    """Is around what looks for columns that parameters name: for one that is refused it says which of them do.

    >>> with naming_columns({"text_column": "txt", "label": "txt"}):
    ...     raise ConfigError.of_column("there is no column 'txt'", "txt")
    Traceback (most recent call last):
    curate.errors.ConfigError: there is no column 'txt'. Another one is chosen with text_column=...
    >>> with naming_columns({"columns_of_sets": {"mmlu": ["question"]}}):
    ...     raise ConfigError.of_column("there is no column 'question'", "question")
    Traceback (most recent call last):
    curate.errors.ConfigError: there is no column 'question'. Another one is chosen with columns_of_sets=...
    >>> with of_recipe({"url_column": "address"}, {}), naming_columns({"by": ["address"]}):
    ...     raise ConfigError.of_column("there is no column 'address'", "address")
    Traceback (most recent call last):
    curate.errors.ConfigError: there is no column 'address'. Another one is chosen with url_column=...
    """
    try:
        yield
    except ConfigError as error:
        if error.column is None:
            raise
        nobodys = _OF_DATASETS if _OF_DATASETS[0] in parameters else ()
        of = _naming(error.column, {one: value for one, value in parameters.items() if one not in nobodys})
        chosen = _of_recipe(error.column, of) or " and ".join(option(one, ...) for one in of)
        if not chosen:
            raise
        if (kept := parameters.get("keep_columns")) and type(error) is ConfigError and error.column not in kept:
            chosen += f"; {option('keep_columns', ...)} leaves out what it does not name"
        raise ConfigError(f"{error}. Another one is chosen with {chosen}").with_traceback(error.__traceback__) from None


def _naming(column: str, parameters: Mapping[str, Any]) -> list[str]:
    """Returns the parameters that name a column."""
    given = {one: list(_leaves(value)) for one, value in parameters.items()}
    named = [one for one, values in given.items() if column in values]
    # Where one is called after columns, whatever else has the same value means something else.
    return [one for one in named if one.endswith(("column", "columns"))] or named or _containing(given, column)


def _of_recipe(column: str, of: Collection[str]) -> str:
    """Returns the parameters of the recipe that name the column which these options of a step name, as they are given;
    or those options, as they are changed; nothing where no recipe is run."""
    if (recipe := _RECIPE.get()) is None:
        return ""
    parameters, steps, given = recipe
    named = [one for one, value in parameters.items() if column in _leaves(value)]
    # What a step has by the same name, and does not mean here, is not what it means by another one.
    own = [one for one in named if one in of] or [one for one in named if one not in steps.get(_STEP.get(), ())]
    changed = [f"{_STEP.get()}.{one}=..." for one in of if _STEP.get()]
    with _set(_GIVEN, given):
        changes = option("set" if given == "command line" else "changes", changed) if changed else ""
        return " and ".join(option(one, ...) for one in own) or changes


def _leaves(value: Any) -> Iterator[Any]:
    """Yields a value, or what lists and the values of mappings have in them."""
    if isinstance(value, list | Mapping):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(one)
    else:
        yield value


def _containing(given: Mapping[str, list[Any]], column: str) -> list[str]:
    """Returns the parameters with a text in which a column stands, as in an expression."""
    word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)")
    texts = {one: [value for value in values if isinstance(value, str)] for one, values in given.items()}
    return [one for one, found in texts.items() if column and any(map(word.search, found))]


def start_over() -> str:
    """Returns what to do to make all of an output anew.

    >>> start_over()
    'start over with overwrite=True (and yes=True where nobody can be asked)'
    >>> with of_checkpoint():
    ...     start_over()
    'remove this checkpoint, which makes the next run write it anew (with overwrite=True, what reads it too)'
    >>> with of_step("clean"), on_command_line():
    ...     start_over()
    'start over with --overwrite clean (and what reads it)'
    """
    if _CHECKPOINT.get():
        return (
            "remove this checkpoint, which makes the next run write it anew "
            f"(with {option('overwrite')}, what reads it too)"
        )
    if step := _STEP.get():
        return f"start over with {option('overwrite', [step])} (and what reads it)"
    asked = "" if _GIVEN.get() == "command line" else f" (and {option('yes')} where nobody can be asked)"
    return f"start over with {option('overwrite')}{asked}"


def unconfirmed(question: str) -> ConfigError:
    """Returns the error for an overwrite that nobody has said yes to."""
    return ConfigError(f"{option('overwrite')} was not confirmed: {question} Answer yes, or add {option('yes')}.")


def shows_keywords(typed: Any, defaults: Mapping[str, Any] = {}) -> Callable[[F], F]:
    """Returns a decorator for a function of `**options: Unpack[typed]`: its signature then names the keys of that
    TypedDict, with their types. Those that may be left out have these `defaults`, the others of them None.

    >>> from typing import Required, TypedDict
    >>> Options = TypedDict("Options", {"size": Required[int], "loud": bool | None}, total=False)
    >>> @shows_keywords(Options)
    ... def make(name, **options): ...
    >>> str(inspect.signature(make))
    '(name, *, size: int, loud: bool | None = None)'
    """

    # Where annotations are texts, Python does not know which keys are required before they are looked up.
    hints = get_type_hints(typed, include_extras=True)

    def shown(function: F) -> F:
        found = inspect.signature(function)
        own = [one for one in found.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        keys = [_keyword(name, kind, defaults.get(name)) for name, kind in hints.items()]
        function.__signature__ = found.replace(parameters=[*own, *keys])  # type: ignore[attr-defined]
        return function

    return shown


def _keyword(name: str, kind: Any, default: Any) -> Parameter:
    if get_origin(kind) is Required:
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=get_args(kind)[0])
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)
