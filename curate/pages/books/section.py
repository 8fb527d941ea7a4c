"""The section of a page that shows where rows went, each number with a link to some of those rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from curate.pages import charts
from curate.pages.elements import command, number, section, table
from curate.pages.markup import Html, tag
from curate.pages.model import Page
from curate.units import format_count, shell_word

WENT = "went"
QUARANTINE = "quarantine"
OPEN_SAMPLES = 2
"""Reasons whose rows are shown at once."""
UNSAMPLED = (
    "A number without a link has no rows to show: the job called drop() with a number instead of rows, a reader "
    "skipped the rows by the statistics of their file, a limit or a group took them, or the run kept no samples."
)


def rows(page: Page) -> Html | None:
    """Returns the books: of the whole job as two bars, and of each stage."""
    if not page.books:
        return None
    parts = [_flow(page)] if page.head.rows else []
    columns = ["stage", "state", "shards", "in", "created", "out", "dropped", "quarantined"]
    values = [
        [
            *(one.name, one.state, f"{one.done:,} of {one.shards:,}"),
            *(number(count) for count in (one.rows_in, one.created, one.rows_out)),
            _link(WENT, number(sum(count for _, count in one.dropped)), leads=bool(one.dropped)),
            _link(QUARANTINE, number(one.quarantined), leads=bool(one.quarantined and page.bad_rows)),
        ]
        for one in page.books
    ]
    parts.append(table("Rows: in + created = out + dropped + quarantined", columns, values, "..nnnnnn"))
    parts += _reasons(page)
    if page.head.counters:
        counted = [[name, number(value)] for name, value in page.head.counters.items()]
        parts.append(table("Counters of the job", ["counter", "sum"], counted, ".n"))
    parts += [*_sampled(page), *_bad_rows(page)]
    return section("rows", "Rows", parts)


def _link(anchor: str, text: str, *, leads: bool) -> Any:
    return tag("a", text, href=f"#{anchor}") if leads else text


def _reasons(page: Page) -> Iterator[Html]:
    """Yields the rows that did not come out by reason, each number with a link to some of them."""
    there = {(one.stage, one.reason): f"dropped-{at}" for at, one in enumerate(page.sampled)}
    reasons = []
    bare = False
    for one in page.books:
        for reason, count in one.dropped:
            anchor = there.get((one.key, reason))
            bare |= anchor is None
            shown = _link(anchor or "", number(count), leads=anchor is not None)
            reasons.append([one.name, reason, shown, _percent(count, one.rows_in + one.created)])
        if one.quarantined:
            shown = _link(QUARANTINE, number(one.quarantined), leads=bool(page.bad_rows))
            reasons.append([one.name, "quarantined", shown, _percent(one.quarantined, one.rows_in + one.created)])
    if not reasons:
        return
    columns = ["stage", "reason", "rows", "share"]
    yield tag("div", table("Rows that did not come out", columns, reasons, "..nn"), id=WENT)
    if bare:
        yield tag("p", UNSAMPLED, class_="soft")


def _sampled(page: Page) -> Iterator[Html]:
    """Yields some of the rows that were dropped, by stage and reason."""
    if page.sampled:
        yield tag("h3", "Some of the rows that were dropped")
        yield tag("p", "Chosen by a hash of their values, so they are the same each time.", class_="soft")
    books = {one.key: one for one in page.books}
    for at, one in enumerate(page.sampled):
        stage = books[one.stage]
        count = dict(stage.dropped)[one.reason]
        where = f" by {stage.name}" if len(page.books) > 1 else ""
        title = f"{len(one.rows):,} of {format_count(count, 'row')} dropped{where}: {one.reason}"
        cut = any(row.cut for row in one.rows)
        values = [[row.shard, tag("code", row.row), *([row.cut] if cut else [])] for row in one.rows]
        columns = ["shard", "row", *(["cut, whole length"] if cut else [])]
        # A link opens what it leads into, where a browser knows that; it is within what is closed.
        shown = tag("div", table(title, columns, values), id=f"dropped-{at}")
        yield tag("details", tag("summary", title), shown, open=at < OPEN_SAMPLES)


def _bad_rows(page: Page) -> Iterator[Html]:
    if page.bad_rows:
        shown = [[one.shard, number(one.line), one.reason, tag("code", one.row)] for one in page.bad_rows]
        caption = "Some of the rows in quarantine, by reason"
        yield tag("div", table(caption, ["shard", "line", "reason", "row"], shown, ".n.."), id=QUARANTINE)
        yield command(f"curate quarantine {shell_word(page.head.output)}")


def _flow(page: Page) -> Html:
    told = page.head.rows
    dropped = sum(told["dropped"].values())
    before = [(told["in"], "f-blue"), (told["created"], "f-grey")]
    after = [(told["out"], "f-good"), *((count, "f-warn") for count in told["dropped"].values())]
    after.append((told["quarantined"], "f-bad"))
    scale = max(told["in"] + told["created"], 1)
    told_of = [
        ("f-blue", f"{told['in']:,} in"),
        ("f-grey", f"{told['created']:,} created"),
        ("f-good", f"{told['out']:,} out"),
        ("f-warn", f"{dropped:,} dropped"),
        ("f-bad", f"{told['quarantined']:,} quarantined"),
    ]
    legend = [tag("li", charts.swatch(fill), text) for fill, text in told_of if not text.startswith("0 ")]
    return tag(
        "figure",
        tag("figcaption", "Above, the rows that went in; below, where they went"),
        charts.stacked("Rows that went in", ", ".join(text for _, text in told_of[:2]), before, scale),
        charts.stacked("Where the rows went", ", ".join(text for _, text in told_of[2:]), after, scale),
        tag("ul", legend, class_="legend"),
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else ""
