"""Lists the objects of the inputs that a user names, each with the name that its output gets.

One paged listing a prefix. Names with a part that starts with `_` or `.` are never data, however they are matched: the
output of another job is a valid input, and its ledger does not show. (A file that is named outright is taken whatever
it is called.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import escape
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass, field
from curate.errors import ConfigError, ObjectNotFound, PermissionDenied, did_you_mean
from curate.ledger import layout
from curate.ledger.packed import BLOCK_ROWS, POOL, PackedTable, RowBuffer, plain_paths, without_prefix
from curate.log import get_logger
from curate.sources.patterns import InputPattern, PatternKind, could_match
from curate.storage.listing import Columns, in_columns
from curate.storage.protocol import LINK_TO_NOTHING, LIST_PAGE, Object, Special, Store
from curate.storage.uris import is_foreign, is_local, unreplaced

SCHEMA = pa.schema([("uri", pa.string()), ("name", pa.string()), ("size", pa.int64()), ("generation", pa.string())])
_LEDGER_PART = f"{layout.LEDGER}/"
_HIDDEN = ("_", ".")
"""What the name of a file, or of a folder, begins with that is passed over."""


@dataclass(slots=True)
class Inputs:
    """The objects that a job reads, in the order of the inputs named, then of their names."""

    table: PackedTable
    """Columns of `SCHEMA`: uri, name (relative to the root of its pattern), size, generation."""
    upstreams: dict[str, bool] = field(default_factory=dict)
    """Output prefixes of jobs whose ledgers a listing went past, and whether a run has said that they are complete."""
    searches: list[Search] = field(default_factory=list)
    """How the objects were found that were not named outright."""


def list_inputs(patterns: Sequence[InputPattern], store_of: Callable[[str], Store]) -> Inputs:
    """Returns the objects that match, one paged listing a pattern; an object that two patterns match counts once.

    Raises ConfigError naming the pattern that matches nothing.
    """
    seen: set[str] | None = set() if len(patterns) > 1 else None
    columns = RowBuffer(SCHEMA)
    ledgers: dict[str, bool] = {}
    searches: list[Search] = []
    again = 0
    for pattern in patterns:
        search = Search(pattern, store_of(pattern.prefix), ledgers)
        for items, texts, root in search.blocks(BLOCK_ROWS - LIST_PAGE):
            if seen is not None:
                new = []
                for at, uri in enumerate(items.uris):
                    if uri not in seen:
                        seen.add(uri)
                        new.append(at)
                again += len(items) - len(new)
                if len(new) < len(items):
                    items, texts = items.take(new), None
            if items:
                if texts is None:
                    uris = columns.texts(items.uris)
                    texts = uris, without_prefix(uris, root)
                columns.add_block(*texts, items.sizes, items.generations)
        if search.listed is not None:
            searches.append(search)
    if again:
        get_logger().warning("two inputs match the same files; each file is read once", files=again)
    table = columns.table()
    if columns.broken is not None:
        raise ConfigError(
            f"input {columns.broken!r} has a name that is not valid Unicode, and outputs are named after inputs; "
            "rename it"
        )
    return Inputs(table, dict(sorted(ledgers.items())), searches)


Texts = tuple[pa.Array, pa.Array]
"""URIs and names."""
Block = tuple[Columns, Texts | None, str]
"""Some objects that match, their texts if there are any yet, and what their names are relative to."""


class Search:
    """Looks for the objects of one pattern, and remembers what may explain that there are none."""

    def __init__(self, pattern: InputPattern, store: Store, ledgers: dict[str, bool]) -> None:
        self._pattern = pattern
        self._store = store
        self._ledgers = ledgers
        self._planned: set[str] = set()
        """Outputs of jobs that have a plan: one of no rows at all has none."""
        self._hidden = ""
        """An object that was passed over because of its name."""
        self._others: list[str] = []
        """Names that do not match, a page of them."""
        self._exact = False
        """Whether an object has the very name that is a glob, which does not match it."""
        self._first = ""
        """The first object that was found."""
        self.listed: str | None = None
        """What the names are relative to of objects that were found in a listing; None: one was named outright."""

    def found(self) -> Iterator[tuple[Object, str]]:
        """Yields what matches, with its name. Raises ConfigError if nothing does."""
        for items, _, root in self.blocks(1):
            yield from ((item, item.uri[len(root) :]) for item in items.objects())

    def blocks(self, least: int) -> Iterator[Block]:
        """Yields what matches, at least so many objects at a time. Raises ConfigError if nothing does."""
        for search in self._ways():
            matches = iter(search(least))
            for first in matches:
                yield first
                yield from matches
                return
        raise ConfigError(self._nothing())

    def _ways(self) -> Sequence[Callable[[int], Iterable[Block]]]:
        match self._pattern.kind:
            case PatternKind.GLOB:
                return (self._glob, self._file, self._directory)
            case PatternKind.FILE_FIRST:
                return (self._file, self._directory)
            case PatternKind.DIRECTORY_FIRST:
                return (self._directory, self._file)
            case PatternKind.DIRECTORY:
                return (self._directory,)

    def _file(self, least: int) -> Iterator[Block]:
        """Yields the object that has exactly this name: the first of those that begin with it."""
        del least
        uri = self._pattern.uri
        for item in islice(self._store.list(uri), 1):
            if item.uri == uri:
                if isinstance(item, Special):
                    raise _special(item.uri, item.kind, self._pattern)
                yield Columns.of("", [(uri, item.size, item.generation)]), None, uri[: uri.rindex("/") + 1]

    def _directory(self, least: int) -> Iterator[Block]:
        root = f"{self._pattern.uri.rstrip('/')}/"
        return self._listed(root, root, least)

    def _glob(self, least: int) -> Iterator[Block]:
        return self._listed(self._pattern.prefix, self._pattern.root, least)

    def _listed(self, prefix: str, root: str, least: int) -> Iterator[Block]:
        glob = self._glob_of(root)
        self.listed = root
        for items in in_columns(self._store.list(prefix), least):
            texts = self._all_match(items, root, glob)
            if texts is None:
                items = items.take(self._matching(items, root, glob))
            if items:
                self._first = self._first or items.uris[0][len(root) :]
                yield items, texts, root
        if glob is not None and self._exact and self._first:
            text = self._pattern.text
            raise ConfigError(
                f"input {text!r} is the name of an object, and a glob that matches others, such as {self._first!r}; "
                f"{escape(text)!r} names the object alone"
            )

    def _all_match(self, items: Columns, root: str, glob: re.Pattern[str] | None) -> Texts | None:
        """Returns the texts of objects as columns, if it is plain that all of them match: of millions, what is done for
        each one decides how long a listing takes."""
        cut = len(root)
        if items.kinds or not (glob is None or all(glob.fullmatch(uri[cut:]) for uri in items.uris)):
            return None
        try:
            uris = pa.array(items.uris, pa.string(), memory_pool=POOL)
        except UnicodeEncodeError:
            return None
        names = without_prefix(uris, root)
        return (uris, names) if plain_paths(names) else None

    def _matching(self, items: Columns, root: str, glob: re.Pattern[str] | None) -> Iterator[int]:
        """Yields the places of those of some objects that match, and notes what else there is."""
        cut = len(root)
        for at, uri in enumerate(items.uris):
            name = uri[cut:]
            if glob is not None and glob.fullmatch(name) is None:
                self._exact = self._exact or uri == self._pattern.uri
                if len(self._others) < LIST_PAGE:
                    self._others.append(name)
                if _LEDGER_PART in name:
                    self._note_ledger(uri)
            elif _is_hidden(name):
                self._hidden = self._hidden or name
                # Which is hidden, too.
                if _LEDGER_PART in name:
                    self._note_ledger(uri)
            elif name and name[-1] != "/":  # else the mark that a console leaves for a folder
                if at in items.kinds:
                    raise _special(uri, items.kinds[at], self._pattern)
                yield at

    def _glob_of(self, root: str) -> re.Pattern[str] | None:
        return self._pattern.pattern if root == self._pattern.root else None

    def matches(self, uri: str) -> bool:
        """Returns whether an object of that URI would have been found, were it there."""
        if self.listed is None or not uri.startswith(self.listed):
            return False
        name, glob = uri[len(self.listed) :], self._glob_of(self.listed)
        return not _is_hidden(name) and (glob is None or glob.fullmatch(name) is not None)

    def reaches(self, folder: str) -> bool:
        """Returns whether objects below a folder could be among those that are looked for."""
        if self.listed is None:
            return False
        if f"{folder}/".startswith(self.listed):
            hidden = _is_hidden(folder[len(self.listed) :])
            return not hidden and (
                self._glob_of(self.listed) is None or could_match(self._pattern, self.listed, folder)
            )
        return self.listed.startswith(f"{folder}/")

    def _note_ledger(self, uri: str) -> None:
        before, plan, _ = uri.partition(f"/{layout.PLAN}")
        if plan:
            self._planned.add(before)
        for name in (layout.JOB, layout.SUMMARY):
            root = uri[: -len(name) - 1]
            if uri.endswith(f"/{name}") and f"/{_LEDGER_PART}" not in f"{root}/":  # else a stage's, below a ledger
                self._ledgers[root] = self._ledgers.get(root, False) or name == layout.SUMMARY

    def _nothing(self) -> str:
        pattern = self._pattern
        if ledgers := sorted(root for root in self._ledgers if could_match(pattern, pattern.root, root)):
            found = f"no input: {pattern.text!r} matches no object, and {ledgers[0]!r} is the output of a job"
            if self._ledgers[ledgers[0]] and ledgers[0] not in self._planned:
                return f"{found} that is complete and had nothing to write; leave it out, or give that job some input"
            return (
                f"{found}, but has no matching output; run that job first (curate status {ledgers[0]}), or check the "
                "path"
            )
        if f"/{_LEDGER_PART}" in f"/{self._hidden}":
            # Of a job that was killed before it said what it is.
            return f"no input: {pattern.text!r} is the output of a job that has no output yet; run that job first"
        if self._hidden:
            return (
                f"no input: {pattern.text!r} matches only names that begin with '_' or '.', such as {self._hidden!r}, "
                "which are skipped as hidden; rename them, or pass the exact name of a file"
            )
        if why := unreplaced(pattern.text):
            return f"no input: {pattern.text!r} does not exist, for {why}"
        if pattern.kind is PatternKind.GLOB:
            text = f"no input: {pattern.text!r} matches no object (listed {pattern.prefix!r})"
            if folder := self._matching_folder():
                return f"{text}, but a directory, {folder!r}; end it with /** to read the files in it"
            return f"{text}; check the path, and quote globs, so that the shell does not expand them"
        if is_local(pattern.uri) and os.path.isdir(pattern.uri):  # noqa: PTH112 - a URI, not a path
            return f"no input: {pattern.text!r} is a folder without files"
        parent, _, last = pattern.uri.rpartition("/")
        near = {item.uri[len(parent) + 1 :].partition("/")[0] for item in islice(self._store.list(f"{parent}/"), 1000)}
        hint = did_you_mean(last, sorted(near)) or "; check the path"
        return f"no input: {pattern.text!r} does not exist, as a file or a directory{hint}"

    def _matching_folder(self) -> str:
        assert self._pattern.pattern is not None
        for name in self._others:
            parts = name.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                if self._pattern.pattern.fullmatch(folder) is not None:
                    return folder
        return ""


def _special(uri: str, kind: str, pattern: InputPattern) -> ConfigError:
    """Returns the error of an input that is no regular file: to read it might wait for ever, or take what is there
    from somebody else."""
    link = kind == LINK_TO_NOTHING
    way = "see that what it leads to is there, or remove it" if link else "write its content to a file and read that"
    return ConfigError(
        f"input {uri!r} is {kind}, expected a file"
        + ("" if uri == pattern.uri else f" ({pattern.text!r} matches it)")
        + f"; {way}, or pass the files to read, for example with a glob"
    )


def _is_hidden(name: str) -> bool:
    return "/_" in name or "/." in name or name[:1] in _HIDDEN


def refuse_own(uris: Iterable[pa.Array], output: str) -> None:
    """Raises ConfigError if one of the inputs found lies below the output, where a link below an input's root leads."""
    folders: dict[str, None] = {}
    for block in uris:
        folders |= dict.fromkeys(pc.unique(pc.replace_substring_regex(block, "/[^/]*$", "")).to_pylist())
    follow = is_local(output) and os.path.isdir(output)  # noqa: PTH112 - a URI, not a path
    own = os.path.realpath(output) if follow else output
    for folder in folders:
        real = os.path.realpath(folder) if follow and folder[:1] == "/" else folder
        if f"{real}/".startswith(f"{own}/"):
            raise ConfigError(
                f"the inputs in {folder!r} lie inside the output {output!r}: a rerun would read its own results; "
                "choose another output, or remove the link that leads there"
            )


def enclosing_ledgers(patterns: Sequence[InputPattern], store_of: Callable[[str], Store]) -> Iterator[tuple[str, bool]]:
    """Yields output prefixes of jobs that *enclose* an input's root and so do not show in its listing, and whether a
    run has said that they are complete.

    Two small reads a directory level, at most; asked only when inputs are new to the plan.
    """
    checked: set[str] = set()
    for pattern in patterns:
        store = store_of(pattern.root)
        parent = pattern.root.rstrip("/")
        if pattern.prefix == pattern.root:
            # Its own ledger shows in its listing.
            parent = parent.rpartition("/")[0]
        if root := ledger_above(parent, store, checked):
            yield root, _exists(store, f"{root}/{layout.SUMMARY}")


def ledger_above(folder: str, store: Store, checked: set[str] | None = None) -> str:
    """Returns the output prefix of the job that a folder is, or lies in; empty if it is in none. Nothing from folders
    on that are `checked` already; those that are now, are added. One small read a directory level."""
    checked = set() if checked is None else checked
    while folder and folder not in checked and not folder.endswith(":/"):
        checked.add(folder)
        if _exists(store, f"{folder}/{layout.JOB}"):
            return folder
        folder = folder.rpartition("/")[0]
    return ""


def _exists(store: Store, uri: str) -> bool:
    if is_foreign(uri):
        # No output of curate's can be there.
        return False
    if is_local(uri):
        return os.path.isfile(uri)  # noqa: PTH113 - there are many levels, and this is no request to anybody
    try:
        store.stat(uri)
    except (ObjectNotFound, PermissionDenied):
        # Who may read the inputs need not be let into the directories above them.
        return False
    return True
