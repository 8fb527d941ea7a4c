"""Parses inputs without reading storage: files, directories and globs, and whether they overlap an output.

A glob has `*`, `?`, `[..]` (of other characters: `[!..]` or, as in a shell, `[^..]`) and `{a,b}`, which stay within one
part of a path, and `**`, a part that stands for any number of directories. With a slash at its end it means
directories, and everything in them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from fnmatch import fnmatchcase

from curate.dataclass import dataclass
from curate.errors import ConfigError
from curate.storage.uris import is_local, normalise_input

_MAGIC = re.compile(r"[*?\[]|\{[^{}]*,[^{}]*\}|\{(?=.*\{[^{}]*,)")
"""Where a glob begins; braces without a comma stand for themselves."""
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_SET = re.compile(r"\[[!^]?\]?[^\]]*\]")
_MOST_ALTERNATIVES = 1000


class PatternKind(Enum):
    """How an input is to be looked for."""

    FILE_FIRST = "file, else directory"
    """No glob, and a name with a suffix."""
    DIRECTORY_FIRST = "directory, else file"
    """No glob, and a name without one."""
    DIRECTORY = "directory"
    GLOB = "glob"


@dataclass(frozen=True, slots=True)
class InputPattern:
    """One `--input`, understood."""

    text: str
    """As the user wrote it."""
    uri: str
    """The same, absolute, without a slash at its end."""
    kind: PatternKind
    root: str
    """URI that the names of what is found *below* are relative to; ends with `/`."""
    prefix: str
    """What is listed."""
    globs: tuple[str, ...] = ()
    """Of a glob: its alternatives, relative to the root."""
    pattern: re.Pattern[str] | None = None
    """Of a glob: what a name relative to the root must match."""


def parse_input(text: str) -> InputPattern:
    """Returns how an `--input` is to be looked for. Raises ConfigError for one that means nothing."""
    uri = normalise_input(text)
    magic = _MAGIC.search(uri)
    if magic is not None:
        root = uri[: uri.rindex("/", 0, magic.start()) + 1]
        globs = tuple(
            f"{glob}/**" if text.endswith("/") else glob for glob in _alternatives(_negated(uri[len(root) :]))
        )
        return InputPattern(text, uri, PatternKind.GLOB, root, uri[: magic.start()], globs, _compiled(text, globs))
    if text.endswith("/"):
        kind = PatternKind.DIRECTORY
    else:
        kind = PatternKind.FILE_FIRST if "." in uri.rpartition("/")[2] else PatternKind.DIRECTORY_FIRST
    root = uri.rstrip("/") + "/"
    return InputPattern(text, uri, kind, root, root)


def _negated(glob: str) -> str:
    """Returns a glob whose sets of other characters begin with `!`: fsspec and fnmatch take `^` for one of those meant.

    >>> _negated("[^a]*[b^][[^]"), _negated("[^]")
    ('[!a]*[b^][[^]', '[^]')
    """
    return _SET.sub(lambda one: f"[!{one[0][2:]}" if one[0][1] == "^" and len(one[0]) > 3 else one[0], glob)


def _alternatives(glob: str) -> list[str]:
    """Returns the globs without braces that one with braces stands for.

    >>> _alternatives("{a,b{1,2}}/*")
    ['a/*', 'b1/*', 'b2/*']
    """
    found, done = [glob], []
    while found:
        one = found.pop(0)
        braces = _BRACES.search(one)
        if braces is None:
            done.append(one)
        else:
            found[:0] = [one[: braces.start()] + choice + one[braces.end() :] for choice in braces[1].split(",")]
        if len(found) + len(done) > _MOST_ALTERNATIVES:
            raise ConfigError(f"{glob!r} expands to more than {_MOST_ALTERNATIVES} globs; use * or [..] instead")
    return list(dict.fromkeys(done))


def _compiled(text: str, globs: Sequence[str]) -> re.Pattern[str]:
    try:
        # Late: fsspec imports asyncio.
        from fsspec.utils import glob_translate

        return re.compile("|".join(f"(?:{glob_translate(glob)})" for glob in globs))
    except (ValueError, re.error) as error:
        raise ConfigError(
            f"{text!r} is not a glob ({error}); `**` must be a whole path component, as in data/**/*.jsonl"
        ) from error


def refuse_overlap(patterns: Sequence[InputPattern], output: str) -> None:
    """Raises ConfigError if an input could match an output, or lies under the output prefix. Links are followed."""
    for pattern in patterns:
        for root, below in ((pattern.root, output), *_real(pattern.root, output)):
            if could_match(pattern, root, below):
                glob = pattern.kind is PatternKind.GLOB
                where = "lies inside" if root.rstrip("/") != below else "is the directory of" if glob else "is"
                raise ConfigError(
                    f"output {output!r} {where} input {pattern.text!r}: a rerun would read its own results; choose an "
                    "output outside the input"
                )
            if root.startswith(below + "/"):
                raise ConfigError(f"input {pattern.text!r} lies inside the output {output!r}; choose another output")


def _real(root: str, output: str) -> Iterator[tuple[str, str]]:
    """Yields root and output as the file system knows them, links followed, if both are local and that differs."""
    if is_local(root) and is_local(output):
        real = os.path.realpath(root).rstrip("/") + "/", os.path.realpath(output)
        if real != (root, output):
            yield real


def could_match(pattern: InputPattern, root: str, output: str) -> bool:
    """Returns whether something under `output` could match the pattern, whose root is spelled `root`."""
    if not f"{output}/".startswith(root):
        return False
    if pattern.kind is not PatternKind.GLOB:
        return True
    inner = [part for part in output[len(root) :].split("/") if part]
    return any(_leads_below(glob.split("/"), inner) for glob in pattern.globs)


def _leads_below(parts: Sequence[str], inner: Sequence[str]) -> bool:
    for depth, name in enumerate(inner):
        if depth >= len(parts):
            return False
        if parts[depth] == "**":
            return True
        if not fnmatchcase(name, parts[depth]):
            return False
    return len(parts) > len(inner)
