"""From what a user names as input to the objects that are read, each with the name that its output will carry.

Files, directories and globs (`*`, `?`, `[..]`, `**`), local or in a bucket. One paged listing a prefix. Names with a
part that starts with `_` or `.` are never data: the output of another job is a valid input: its ledger does not match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from curate.dataset.formats import detect
from curate.errors import ConfigError
from curate.storage import normalise
from curate.storage.protocol import Object, Store
from curate.tasks import layout

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class InputPattern:
    """One `--input`, understood."""

    text: str
    """As the user wrote it."""
    root: str
    """URI that output names are relative to; ends with `/`."""
    prefix: str
    """What is listed."""
    pattern: re.Pattern[str] | None
    """What the part after `root` must match; None: everything (a directory)."""
    is_file: bool = False


def understand(text: str) -> InputPattern:
    """Returns how an `--input` is to be listed. A path with a known suffix is a file, one without is a directory."""
    uri = normalise(text)
    magic = _MAGIC.search(uri)
    if magic is not None:
        root = uri[: uri.rindex("/", 0, magic.start()) + 1]
        from fsspec.utils import glob_translate

        pattern = re.compile(glob_translate(uri[len(root) :]))
        return InputPattern(text, root, uri[: magic.start()], pattern)
    if not text.endswith("/") and _has_suffix(uri):
        root, name = uri[: uri.rindex("/") + 1], uri[uri.rindex("/") + 1 :]
        return InputPattern(text, root, uri, re.compile(re.escape(name)), is_file=True)
    root = uri.rstrip("/") + "/"
    return InputPattern(text, root, root, None)


def _has_suffix(uri: str) -> bool:
    try:
        detect(uri)
    except ConfigError:
        return "." in uri.rsplit("/", 1)[1]
    return True


@dataclass(slots=True)
class Inputs:
    """The objects that a job reads, in the order of the inputs named, then of their names."""

    table: Any
    """Columns uri, name (relative to the root of its pattern), size, generation."""
    incomplete: list[str] = field(default_factory=list)
    """Output prefixes of jobs, seen in the listing, that are not complete."""


SCHEMA = pa.schema([("uri", pa.string()), ("name", pa.string()), ("size", pa.int64()), ("generation", pa.string())])


def list_inputs(patterns: Sequence[InputPattern], store_of: Callable[[str], Store]) -> Inputs:
    """Returns the objects that match, one paged listing a pattern; an object that two patterns match counts once.

    Raises ConfigError naming the pattern that matches nothing.
    """
    seen: set[str] | None = set() if len(patterns) > 1 else None
    columns: list[list[Any]] = [[] for _ in SCHEMA]
    ledgers: dict[str, bool] = {}
    for pattern in patterns:
        found = False
        for item, name in _matching(pattern, store_of(pattern.prefix), ledgers):
            found = True
            if seen is not None:
                if item.uri in seen:
                    continue
                seen.add(item.uri)
            for column, value in zip(columns, (item.uri, name, item.size, item.generation), strict=True):
                column.append(value)
        if not found:
            raise ConfigError(_nothing(pattern))
    arrays = [pa.array(column, type) for column, type in zip(columns, SCHEMA.types, strict=True)]
    return Inputs(pa.table(arrays, schema=SCHEMA), sorted(root for root, complete in ledgers.items() if not complete))


def _matching(pattern: InputPattern, store: Store, ledgers: dict[str, bool]) -> Iterator[tuple[Object, str]]:
    cut = len(pattern.root)
    for item in store.list(pattern.prefix):
        name = item.uri[cut:]
        if f"{layout.LEDGER}/" in name:
            _note_ledger(item.uri, ledgers)
        # A file named outright is taken whatever it is called; a listing takes only what readers take for data.
        if pattern.pattern is not None and pattern.pattern.fullmatch(name) is None:
            continue
        if pattern.is_file or not (layout.is_hidden(name) or name.endswith("/")):
            yield item, name


def _note_ledger(uri: str, ledgers: dict[str, bool]) -> None:
    for name in (layout.JOB, layout.SUMMARY):
        if uri.endswith(f"/{name}"):
            root = uri[: -len(name) - 1]
            ledgers[root] = ledgers.get(root, False) or name == layout.SUMMARY


def enclosing_ledgers(patterns: Sequence[InputPattern], store_of: Callable[[str], Store]) -> Iterator[str]:
    """Yields output prefixes of incomplete jobs that *enclose* an input's root and so do not show in its listing.

    Two small reads a directory level; asked only when inputs are new to the plan.
    """
    from curate.errors import ObjectNotFound

    checked: set[str] = set()
    for pattern in patterns:
        store = store_of(pattern.root)
        parent = pattern.root.rstrip("/")
        while parent and parent not in checked and not parent.endswith(":/"):
            checked.add(parent)
            try:
                store.stat(f"{parent}/{layout.JOB}")
            except ObjectNotFound:
                parent = parent.rpartition("/")[0]
                continue
            try:
                store.stat(f"{parent}/{layout.SUMMARY}")
            except ObjectNotFound:
                yield parent
            break


def _nothing(pattern: InputPattern) -> str:
    if pattern.is_file:
        return f"no input: {pattern.text!r} does not exist"
    what = "matches" if pattern.pattern is not None else "is a prefix of"
    return (
        f"no input: {pattern.text!r} {what} no object (listed {pattern.prefix!r}); check the path, "
        "and quote globs so that the shell leaves them alone"
    )


def refuse_overlap(patterns: Sequence[InputPattern], output: str) -> None:
    """Raises ConfigError if an input could match an output, or lies under the output prefix."""
    for pattern in patterns:
        if (pattern.root.rstrip("/") + "/").startswith(output + "/") and not _below(pattern, output):
            raise ConfigError(f"input {pattern.text!r} lies under the output {output!r}; choose an --output beside it")
        if _below(pattern, output):
            raise ConfigError(
                f"output {output!r} lies inside input {pattern.text!r}: a rerun would read its own results; "
                "choose an --output beside the input"
            )


def _below(pattern: InputPattern, output: str) -> bool:
    """Returns whether something under `output` could match the pattern."""
    if pattern.is_file:
        return False
    if not (output + "/").startswith(pattern.root):
        return False
    if pattern.pattern is None:
        return True
    parts = normalise(pattern.text)[len(pattern.root) :].split("/")
    inner = output[len(pattern.root) :].split("/") if len(output) >= len(pattern.root) else []
    for depth, name in enumerate(inner):
        if depth >= len(parts):
            return False
        if "**" in parts[depth]:
            return True
        if not fnmatchcase(name, parts[depth]):
            return False
    return len(parts) > len(inner)
