"""HTML that a notebook shows of a value: escaped text in tables, without scripts or anything that is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from curate.units import ellipsize

CELL_CHARS = 200


def html_table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Returns a table; a value is shown as text, on one line, and cut after 200 characters.

    >>> html_table([["a<b", None]], ["name", "n"])
    '<table><tr><th>name</th><th>n</th></tr><tr><td>a&lt;b</td><td></td></tr></table>'
    """
    lines = [_row("th", head)] if head else []
    return f"<table>{''.join([*lines, *(_row('td', row) for row in rows)])}</table>"


def html_facts(title: str, facts: Mapping[str, Any]) -> str:
    """Returns a title and a table of facts, without those that are empty.

    >>> html_facts("Summary", {"state": "complete", "failed": 0})
    '<b>Summary</b><table><tr><td>state</td><td>complete</td></tr></table>'
    """
    told = [(name, value) for name, value in facts.items() if value]
    return f"<b>{escape(ellipsize(title, CELL_CHARS))}</b>{html_table(told)}"


def _row(tag: str, cells: Iterable[Any]) -> str:
    texts = ["" if one is None else f"{one:,}" if type(one) is int else str(one) for one in cells]
    shown = (escape(ellipsize(text, CELL_CHARS)) for text in texts)
    return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in shown)}</tr>"
