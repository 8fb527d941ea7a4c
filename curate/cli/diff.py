"""Renders how two outputs differ."""

from __future__ import annotations

import click
from rich.text import Text

from curate.cli.terminal import Console, fact, line, print_table, print_what_is_read
from curate.clock import Clock
from curate.observe.diff import Comparison, RowDifference, compare_outputs
from curate.units import ellipsize, json_line, plain_line

ID_CHARS = 40


def show_difference(left: str, right: str, clock: Clock, *, id_column: str | None, as_json: bool) -> int:
    """Prints what two outputs do not have in common. Returns the exit code: 0 if they are equal, else 1."""
    found = compare_outputs(left, right, id_column, clock.now())

    def printing() -> None:
        if as_json:
            click.echo(json_line(found.as_dict()))
        else:
            _render(Console(highlight=False), found)

    print_what_is_read(printing)
    return 0 if found.equal else 1


def _render(console: Console, found: Comparison) -> None:
    for label, side in (("left", found.left), ("right", found.right)):
        about = f"  {side.state}  {plain_line(side.output)}"
        fact(console, label, Text.assemble((plain_line(side.job), "bold"), about))
    if found.differences:
        cells = [
            {"differs": one.kind, "name": one.name, "left": one.left, "right": one.right} for one in found.differences
        ]
        line(console, Text())
        print_table(console, ["differs", "name", "left", "right"], cells)
        line(console, Text())
    if found.rows is not None:
        _render_rows(console, found.rows)
    told = ["equal" if found.equal else "different"]
    told += ["identity, plan, books and schema are equal"] if not found.differences else []
    told += ["rows were not compared: --id-column NAME does"] if found.rows is None else []
    fact(console, "result", Text("; ".join(told)), "bold")


def _render_rows(console: Console, rows: RowDifference) -> None:
    fact(console, "ids", Text(f"{rows.equal:,} have equal rows"))
    texts = {
        "changed": f"{rows.changed:,} have other rows",
        "only_left": f"{rows.only_left:,} are only in left",
        "only_right": f"{rows.only_right:,} are only in right",
    }
    for kind, text in texts.items():
        if ids := rows.examples[kind]:
            shown = ", ".join(ellipsize(one, ID_CHARS) for one in ids)
            fact(console, "", Text(f"{text}: {shown}{', ...' * (getattr(rows, kind) > len(ids))}"))
