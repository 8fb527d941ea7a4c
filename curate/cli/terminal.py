"""Prints lines of untrusted data without control characters that would act on the terminal."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

LABEL_COLUMNS = 10


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
