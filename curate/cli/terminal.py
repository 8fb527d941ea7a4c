"""Prints lines and tables of untrusted data without control characters that would act on the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from rich import console
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from curate.units import ellipsize, plain_line

LABEL_COLUMNS = 10
MOST_CHARS = 80
"""Characters of a value that are shown."""
READABLE_CHARS = 12
"""Characters down to which a column is shortened before others are left out."""
_GAP = 2


class Console(console.Console):
    """Prints to a terminal, or elsewhere, of a width that is known or of 80 columns: also where `COLUMNS` is 0, which
    says that it is not known, and by which nothing would be printed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.width:
            self.width = shutil.get_terminal_size().columns

    def on_broken_pipe(self) -> None:
        """Passes the error on."""
        raise


def print_what_is_read(printing: Callable[[], None]) -> None:
    """Has something printed, all of it or what is read (`| head`): the exit code says what was found all the same."""
    try:
        printing()
    except BrokenPipeError:
        # What Python holds back is not to fail when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def moment(seconds: float) -> str:
    """Returns a time in UTC as people read it.

    >>> moment(0)
    '1970-01-01 00:00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def line(console: Console, text: Text) -> None:
    """Prints a line as it is: what is too long is wrapped by the terminal, so that a URI can still be copied.

    Nothing in it acts on the terminal, wherever it comes from: what would is shown as a replacement character.
    """
    if not text.plain.replace("\n", "").isprintable():
        # As many characters as before, so that what is bold, or red, stays that.
        harmless = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text.plain)
        text = Text(harmless, text.style, spans=text.spans)
    console.print(text, soft_wrap=True)


def fact(console: Console, label: str, value: Text, style: str = "") -> None:
    """Prints a labelled value, wrapped beside its label on a terminal, in one line elsewhere."""
    lines = value.wrap(console, max(20, console.width - LABEL_COLUMNS)) if console.is_terminal else [value]
    for number, wrapped in enumerate(lines):
        wrapped.rstrip()
        head = label if not number else ""
        line(console, Text.assemble((f"{head:<{LABEL_COLUMNS}}", style), wrapped))


def prose(console: Console, text: str) -> None:
    """Prints a sentence, wrapped between words on a terminal, in one line elsewhere."""
    found = Text(text)
    for wrapped in found.wrap(console, console.width) if console.is_terminal else [found]:
        wrapped.rstrip()
        line(console, wrapped)


def show(console: Console, render: Callable[[], None], watched: str) -> None:
    """Has something printed; if it is `watched`, on a terminal, in the place of what was there, and no more than fits:
    what stands first is what somebody watches. `watched` is the command that prints all of it; empty: it is printed
    once."""
    if not (watched and console.is_terminal):
        render()
        return
    with console.capture() as captured:
        render()
    lines, room, shown = captured.get().splitlines(), max(1, console.height - 1), 0
    rows = [max(1, -(-Text.from_ansi(one).cell_len // console.width)) for one in lines]
    if sum(rows) > room:
        while shown < len(lines) and sum(rows[: shown + 1]) <= room - 1:
            shown += 1
        lines = [*lines[:shown], f"... and {len(lines) - shown:,} more lines: {watched}"]
    console.clear()
    console.file.write("".join(f"{one}\n" for one in lines))
    console.file.flush()


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Prints rows as a table, one line a row, values shortened as it takes. Returns the columns that had no room.

    Not on a terminal there is room for all.
    """
    cells = {name: [_cell(row.get(name)) for row in rows] for name in columns}
    # In columns of the terminal, of which some characters take two.
    widths = {name: max([cell_len(plain_line(name)), *(cell.cell_len for cell in cells[name])]) for name in columns}
    if not console.is_terminal:
        # As wide as it is: what is cut could not be searched.
        console.width = sum(widths.values()) + _GAP * len(widths)
    shown = _fitting(widths, console.width, READABLE_CHARS)
    most_columns = max(widths.values(), default=1)
    widest = next(most for most in range(most_columns, 0, -1) if most == 1 or _fits(shown, console.width, most))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name, width in shown.items():
        number = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(
            Text(plain_line(name)),
            no_wrap=True,
            overflow="ellipsis",
            justify="right" if number else "left",
            width=min(width, widest),
        )
    for at in range(len(rows)):
        table.add_row(*(cells[name][at] for name in shown))
    with console.capture() as capture:
        console.print(table)
    for text in capture.get().splitlines():
        line(console, Text.from_ansi(text.rstrip()))
    return [name for name in columns if name not in shown]


def _fitting(widths: Mapping[str, int], room: int, most: int) -> dict[str, int]:
    """Returns the first columns that fit if none is wider than `most`; one at least."""
    shown: dict[str, int] = {}
    for name, width in widths.items():
        if shown and not _fits({**shown, name: width}, room, most):
            break
        shown[name] = width
    return shown


def _fits(widths: Mapping[str, int], room: int, most: int) -> bool:
    return sum(min(width, most) + _GAP for width in widths.values()) - _GAP <= room


def _cell(value: Any) -> Text:
    if value is None:
        return Text("null", "dim")
    if isinstance(value, str):
        return Text(ellipsize(value, MOST_CHARS))
    return Text(ellipsize(orjson.dumps(value).decode(), MOST_CHARS))
