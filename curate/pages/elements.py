"""Elements that sections have in common: tables, labelled values, commands, times, states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from curate.pages.markup import Html, tag

STATES = {
    "complete": "good",
    "running": "blue",
    "pending": "warn",
    "waiting": "soft",
    "interrupted": "warn",
}
"""Classes of states; all others are bad."""


def state(text: str) -> Html:
    """Returns a state, in its colour."""
    return tag("span", text, class_=f"state {STATES.get(text, 'bad')}")


def moment(seconds: float) -> Html:
    """Returns a time in UTC; the script adds the reader's own."""
    at = datetime.fromtimestamp(seconds, UTC)
    return tag("time", at.strftime("%Y-%m-%d %H:%M:%S UTC"), datetime=at.strftime("%Y-%m-%dT%H:%M:%SZ"))


def command(text: str) -> Html:
    """Returns a command to be copied."""
    return tag("div", tag("code", text), class_="command")


def facts(values: Iterable[tuple[str, Any]]) -> Html:
    """Returns labelled values; those that are None or empty are left out."""
    shown = [tag("div", tag("dt", label), tag("dd", value)) for label, value in values if value not in (None, "")]
    return tag("dl", shown, class_="facts")


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: str = "") -> Html:
    """Returns a table; `numbers` has an `n` for each column that holds numbers, and any other letter for the rest."""
    kinds = ["n" if kind == "n" else None for kind in numbers.ljust(len(columns), ".")[: len(columns)]]
    heads = [tag("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)]
    body = [
        tag(
            "tr",
            [
                tag("td" if number else "th", value, scope=None if number else "row", class_=kind)
                for number, (value, kind) in enumerate(zip(row, kinds, strict=True))
            ],
        )
        for row in rows
    ]
    inner = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", heads)), tag("tbody", body))
    return tag("div", inner, class_="wide", role="region", aria_label=caption, tabindex=0)


def number(value: Any) -> str:
    """Returns a number as people read it; None stands for one that JSON has no word for."""
    return "nan" if value is None else f"{value:,}"


def section(anchor: str, title: str, *children: Any) -> Html:
    """Returns a section with its heading."""
    return tag("section", tag("h2", title, id=anchor), children, aria_labelledby=anchor)
