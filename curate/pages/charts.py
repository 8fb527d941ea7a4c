"""Drawings of a page as SVG. Words are beside them as HTML, so that a drawing may be as wide as the screen.

No state is shown by colour alone: marks differ in shape or place, and each drawing says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from curate.pages.markup import Html, join, tag
from curate.pages.model import LETTERS, StageBooks, Strip
from curate.units import ellipsize, format_bytes, format_duration

WIDE = 1000
"""Units across a drawing that is stretched to the width of its place."""
FILLS = {"done": "f-good", "retried": "f-warn", "failed": "f-bad", "pending": "f-grey"}
CELL = 10
BOX_WIDE, BOX_HIGH, GAP_WIDE, GAP_HIGH = 230, 74, 46, 18
BOX_CHARS = 26
"""Characters of a name in a box."""


def drawing(name: str, says: str, high: float, *shapes: object, wide: float = WIDE, **attributes: object) -> Html:
    """Returns a drawing with its title and its description, for those who do not see it."""
    attributes = {"preserveAspectRatio": "none"} | attributes
    return tag(
        "svg",
        tag("title", name),
        tag("desc", says),
        shapes,
        role="img",
        viewBox=f"0 0 {wide:g} {high:g}",
        aria_label=f"{name}. {says}",
        **attributes,
    )


def area(name: str, says: str, values: Sequence[float], fill: str, lines: Sequence[float] = ()) -> Html:
    """Returns values over equal spans of time as an area, the largest at its full height; with lines across it at these
    shares of the time."""
    most = max(values, default=0.0) or 1.0
    step = WIDE / max(1, len(values))
    points = [f"{number * step:.1f} {100 - 100 * value / most:.1f}h{step:.1f}" for number, value in enumerate(values)]
    path = f"M0 100L{'L'.join(points)}V100z"
    across = "".join(f"M{WIDE * one:.1f} 0v100" for one in lines)
    shapes = [tag("path", d=path, class_=fill), tag("path", d=across, class_="s-mark") if across else None]
    return drawing(name, says, 100, shapes, class_="plot")


def bars(name: str, says: str, spans: Sequence[tuple[float, float]]) -> Html:
    """Returns spans of time, given as shares of all of it, one below the other in the order in which they come."""
    high = 10 * len(spans)
    shapes = [
        f"M{WIDE * begin:.1f} {10 * at + 1}h{max(3.0, WIDE * (end - begin)):.1f}v8H{WIDE * begin:.1f}z"
        for at, (begin, end) in enumerate(spans)
    ]
    return drawing(name, says, high, tag("path", d="".join(shapes), class_="f-blue"), class_="lanes", height=high)


def lane(name: str, values: Sequence[int], fill: str) -> Html:
    """Returns marks at the spans of time in which there was something to count."""
    step = WIDE / max(1, len(values))
    marks = "".join(f"M{number * step:.1f} 0h{step:.1f}v10h-{step:.1f}z" for number, one in enumerate(values) if one)
    return drawing(name, f"{sum(values):,} in all", 10, tag("path", d=marks, class_=fill), class_="lane")


def stacked(name: str, says: str, parts: Sequence[tuple[int, str]], scale: int) -> Html:
    """Returns amounts side by side as one bar, each with its fill; `scale` is the amount that is as wide as it gets."""
    shapes, at = [], 0.0
    for amount, fill in parts:
        wide = WIDE * amount / (scale or 1)
        if amount:
            shapes.append(tag("rect", x=f"{at:.2f}", y=0, width=f"{max(1.0, wide - 1):.2f}", height=10, class_=fill))
        at += wide
    return drawing(name, says, 10, shapes, class_="bar")


def share(name: str, part: float, fill: str) -> Html:
    """Returns a share of a whole as a small bar."""
    bar = tag("rect", width=f"{WIDE * min(1.0, part):.1f}", height=10, class_=fill)
    return drawing(name, f"{100 * part:.0f} %", 10, bar, class_="small")


# Shards


def shards(found: Strip, says: str) -> Html:
    """Returns all shards: a cell each, or columns of several in which each state has its part."""
    if found.cells:
        return _cells(found, says)
    rows: dict[str, list[str]] = {state: [] for state in LETTERS}
    for column, counts in enumerate(found.bins):
        top, total = 0.0, sum(counts)
        for state, count in zip(LETTERS, counts, strict=True):
            if count:
                high = max(4.0, 100 * count / total) if state == "failed" else 100 * count / total
                rows[state].append(f"M{column} {min(top, 100 - high):.3g}h1v{high:.3g}h-1z")
                top += high
    # Those that failed last: a single one is seen among a thousand.
    order = ["done", "retried", "pending", "failed"]
    paths = [tag("path", d="".join(rows[state]), class_=FILLS[state]) for state in order if rows[state]]
    return drawing("Shards in the order of the plan", says, 100, paths, wide=len(found.bins), class_="plot")


def _cells(found: Strip, says: str) -> Html:
    columns = 50 if found.total <= 500 else 100
    rows = -(-found.total // columns)
    places: dict[str, list[tuple[int, int]]] = {letter: [] for letter in LETTERS.values()}
    for number, letter in enumerate(found.cells):
        places[letter].append((number % columns * CELL, number // columns * CELL))
    paths = [
        tag("path", d="".join(_cell(state, *place) for place in places[letter]), class_=_ink(state))
        for state, letter in LETTERS.items()
        if places[letter]
    ]
    high = rows * CELL
    return drawing("Shards in the order of the plan", says, high, paths, wide=columns * CELL, preserveAspectRatio=None)


def _cell(state: str, x: int, y: int) -> str:
    """Returns a cell: whole if done, half if retried, a cross if failed, a dot if pending."""
    if state == "done":
        return f"M{x} {y}h9v9h-9z"
    if state == "retried":
        return f"M{x} {y}h9l-9 9z"
    if state == "failed":
        return f"M{x + 1} {y + 1}l7 7m0-7l-7 7"
    return f"M{x + 3} {y + 3}h3v3h-3z"


def _ink(state: str) -> str:
    return "s-bad" if state == "failed" else FILLS[state]


def key(state: str) -> Html:
    """Returns the cell of a state, for a legend."""
    path = tag("path", d=_cell(state, 0, 0), class_=_ink(state))
    return tag("svg", path, viewBox="0 0 10 10", aria_hidden="true")


def swatch(fill: str) -> Html:
    """Returns a colour, for a legend."""
    return tag("svg", tag("rect", width=10, height=10, class_=fill), viewBox="0 0 10 10", aria_hidden="true")


# The plan


def graph(stages: Sequence[StageBooks], slowest: str | None, says: str) -> Html:
    """Returns the stages as boxes, from left to right, with an arrow from each to those that read it."""
    places = _places(stages)
    wide = max(x for x, _ in places.values()) + BOX_WIDE + 2
    high = max(y for _, y in places.values()) + BOX_HIGH + 2
    arrows = [
        tag("path", d=_arrow(places[before], places[one.key]), class_="s-line")
        for one in stages
        for before in dict.fromkeys(one.reads)
        if before in places
    ]
    boxes = [_box(one, *places[one.key], limits=one.key == slowest) for one in stages]
    return drawing("The plan", says, high, arrows, boxes, wide=wide, width=wide, height=high, class_="plan")


def _places(stages: Sequence[StageBooks]) -> Mapping[str, tuple[int, int]]:
    """Returns the place of each stage's box: a column to the right of all that it reads, the last stage rightmost."""
    column: dict[str, int] = {}
    for one in stages:
        column[one.key] = max((column[before] + 1 for before in one.reads if before in column), default=0)
    column[stages[-1].key] = max(column.values()) if len(stages) > 1 else 0
    if len(stages) > 1 and any(column[one.key] == column[stages[-1].key] for one in stages[:-1]):
        column[stages[-1].key] += 1
    rows: dict[int, int] = {}
    places = {}
    for one in stages:
        at = column[one.key]
        row = rows.get(at, 0)
        rows[at] = row + 1
        places[one.key] = (1 + at * (BOX_WIDE + GAP_WIDE), 1 + row * (BOX_HIGH + GAP_HIGH))
    return places


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + BOX_WIDE, start[1] + BOX_HIGH // 2
    to_x, to_y = end[0], end[1] + BOX_HIGH // 2
    bend = (x + to_x) / 2
    return f"M{x} {y}C{bend:g} {y} {bend:g} {to_y} {to_x} {to_y}m-6 -4l6 4l-6 4"


def _box(one: StageBooks, x: int, y: int, *, limits: bool) -> Html:
    took = "" if one.seconds is None else f", {format_duration(one.seconds)}"
    lines = [
        ("t", ellipsize(one.name, BOX_CHARS)),
        ("", f"{one.rows_in:,} rows in, {one.rows_out:,} out"),
        ("", f"{format_bytes(one.bytes_in)} in, {format_bytes(one.bytes_out)} out"),
        ("", f"{one.done:,} of {one.shards:,} shards{took}"),
    ]
    texts = [tag("text", text, x=x + 8, y=y + 17 + 16 * n, class_=kind or None) for n, (kind, text) in enumerate(lines)]
    fill = "f-soft s-limit" if limits else "f-soft"
    return join([tag("rect", x=x, y=y, width=BOX_WIDE, height=BOX_HIGH, rx=5, class_=fill), texts])
