"""Shows what a deduplication removed: pairs of texts side by side, with what differs marked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from curate.pages.charts import share
from curate.pages.elements import section, table
from curate.pages.markup import Html, join, tag

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
SHOWN_SOURCES = 50


def duplicates(report: Mapping[str, Any]) -> Html | None:
    """Returns the section on duplicates; None if the corpus has none listed."""
    told = report["job"] and report["job"]["duplicates"]
    if not told:
        return None
    clusters = sum(count for _, count in told["clusters"])
    says = f"{told['rows']:,} rows were removed as duplicates of {clusters:,} that are kept."
    return section(
        "duplicates",
        "Duplicates",
        tag("p", says),
        _counted("Clusters by their size, with the row that is kept", "rows", "clusters", told["clusters"]),
        _counted("Rows that were removed, by similarity", "from", "rows", told["similarities"]),
        _counted("Rows that were removed, by source", "source", "rows", told["sources"][:SHOWN_SOURCES]),
        _lost_to(told["lost_to"]),
        [_pair(one) for one in told["pairs"]] or tag("p", NO_PAIRS, class_="soft"),
    )


def _lost_to(rows: Sequence[Sequence[Any]]) -> Html | None:
    """Returns the table of what each source lost to which."""
    if not rows:
        return None
    most = rows[0][2]
    named = ((*("null" if name is None else name for name in pair), count) for *pair, count in rows[:SHOWN_SOURCES])
    shown = (
        (source, kept, f"{count:,}", share(f"{source} to {kept}", count / most, "f-blue"))
        for source, kept, count in named
    )
    heads = ("source", "lost to", "rows", "share")
    return table("Rows that were removed, by the source of the row that is kept", heads, shown, "..n")


NO_PAIRS = "No pairs are shown: texts of removed rows are known of samples, which this run does not have."


def _counted(caption: str, what: str, of: str, rows: Sequence[Sequence[Any]]) -> Html | None:
    if not rows:
        return None
    most = max(count for _, count in rows) or 1
    shown = (
        ("null" if name is None else str(name), f"{count:,}", share(f"{name}", count / most, "f-blue"))
        for name, count in rows
    )
    return table(caption, (what, of, "share"), shown, ".n")


def _pair(one: Mapping[str, Any]) -> Html:
    title = f"{one['id']}, kept as {one['kept_id']}: {100 * one['similarity']:.0f} % alike"
    ours, theirs = marked(one["text"], one["kept_text"])
    heads = (f"removed, {one['column']}", f"kept, {one['column']}")
    shown = table(title, heads, [(tag("span", ours, class_="data"), tag("span", theirs, class_="data"))])
    return tag("details", tag("summary", title), shown)


def marked(left: str, right: str) -> tuple[Html, Html]:
    """Returns two texts in which the words that only one of them has are marked.

    >>> marked("a <b> c", "a c")
    ('a <mark>&lt;b&gt; </mark>c', 'a c')
    """
    words = _WORDS.findall(left), _WORDS.findall(right)
    steps = SequenceMatcher(None, *words, autojunk=False).get_opcodes()
    return join(_side(words[0], steps, 1)), join(_side(words[1], steps, 3))


def _side(words: Sequence[str], steps: Sequence[tuple[Any, ...]], at: int) -> Iterator[Any]:
    for step in steps:
        text = "".join(words[step[at] : step[at + 1]])
        if text:
            yield text if step[0] == "equal" else tag("mark", text)
