"""Renders what `curate verify` found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import click
from rich.text import Text

from curate.cli.terminal import Console, fact, line, print_what_is_read
from curate.clock import Clock
from curate.ledger.heartbeat import RUNNING
from curate.observe.job import read_status
from curate.observe.summary_text import rows_text
from curate.observe.verify import DAMAGED, INCOMPLETE, KINDS, OK, VerifyReport, verify
from curate.units import ellipsize, format_bytes, json_line, plain_line

SHOWN_FINDINGS = 10
"""Findings of one kind that are printed; `--json` has more."""
SHOWN_NAME = 60
_MADE_BY_STAGES = {
    "quarantine": "the rows were set aside by stages that were removed since",
    "summary": "the totals are also of stages that were removed since",
}
"""Why what is off with them is not made again by the next run."""
COLOURS = {OK: "green", INCOMPLETE: "yellow", DAMAGED: "red"}


def show_verified(output: str, clock: Clock, *, as_json: bool) -> int:
    """Verifies a job's outputs and prints what is off. Returns the exit code: 0 if it is complete and all is well."""
    report = _verified(output)

    def printing() -> None:
        if as_json:
            click.echo(json_line(report.as_dict()))
        else:
            at_work = report.state != OK and read_status(output, clock.now()).state == RUNNING
            _render(Console(highlight=False), report, at_work=at_work)

    print_what_is_read(printing)
    return 0 if report.state == OK else 1


def _verified(output: str) -> VerifyReport:
    """Returns what the outputs turned out to be; how far it is, is shown on standard error if that is a terminal."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        return verify(output)
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("verifying"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,}/{task.total:,} outputs, {task.fields[size]}"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=0, size="0 B")
        return verify(
            output,
            lambda done, total, size_bytes: bar.update(
                task, completed=done, total=total, size=format_bytes(size_bytes)
            ),
        )


def _render(console: Console, report: VerifyReport, *, at_work: bool) -> None:
    state = (report.state, COLOURS[report.state])
    line(console, Text.assemble((plain_line(report.job), "bold"), "  ", state, f"  {plain_line(report.output)}"))
    fact(console, "outputs", Text(f"{report.read:,} of {report.shards:,} read, {format_bytes(report.size_bytes)}"))
    for number, one in enumerate(report.stages):
        told = f"{ellipsize(one.job, SHOWN_NAME)}: {one.read:,} of {one.shards:,} read, {format_bytes(one.size_bytes)}"
        fact(console, "" if number else "stages", Text(told))
    fact(console, "rows", Text(rows_text(report.books.rows())))
    if report.earlier is not None:
        fact(console, "", Text(f"{rows_text(report.earlier.rows())} in earlier stages, by the summary"))
    for kind, text in KINDS.items():
        if report.counts[kind]:
            line(console, Text.assemble((f"{kind:<10}", "red"), f"{text}: {report.counts[kind]:,}"))
            for found in _findings(report, kind):
                fact(console, "", Text(found))
    for number, hint in enumerate(_next(report, at_work=at_work)):
        fact(console, "" if number else "next", Text(hint))


def _findings(report: VerifyReport, kind: str) -> Iterator[str]:
    for one in itertools.islice((one for one in report.findings if one.kind == kind), SHOWN_FINDINGS):
        yield f"{plain_line(one.object)}: {ellipsize(one.reason)}"
    more = report.counts[kind] - SHOWN_FINDINGS
    if more > 0:
        yield f"... and {more:,} more"


def _next(report: VerifyReport, *, at_work: bool) -> Iterator[str]:
    """Yields what to do now, if anything."""
    if at_work and report.state == DAMAGED:
        # An output, its extra ones and its rows set aside are published one after another: a file that nothing names
        # is what the next one will name.
        yield "a run is going on, and may be about to replace this: remove nothing; verify again when it has ended"
        return
    if not report.shards and report.counts["foreign"]:
        yield "run the job again: it plans its shards anew if the plan was removed, and keeps what is done; then verify"
        return
    remove = list(dict.fromkeys(name for one in report.findings for name in one.remove))
    if remove:
        names = ", ".join(map(plain_line, remove[:SHOWN_FINDINGS]))
        more = len(remove) - SHOWN_FINDINGS
        whole = f", and {more:,} more, which --json names" if more > 0 else ""
        others = report.counts.total() > len(report.findings)
        again = "; then verify again, for not all that is off is named" if others else ""
        yield f"remove {names}{whole}; then run the job again: it makes only that again{again}"
    for kind, why in _MADE_BY_STAGES.items():
        if any(one.kind == kind and not one.remove for one in report.findings) and not remove:
            yield f"start over (--overwrite, overwrite=True): {why}"
    if any(one.kind == "foreign" and not one.left_behind for one in report.findings):
        yield "move the objects that are not of this job elsewhere, because readers of the output read them too"
    if remove:
        return
    if any(one.left_behind for one in report.findings):
        yield "run the job again, which removes the rest of shards that were taken out of it"
    elif at_work:
        yield "a run is going on and its outputs so far are fine; verify again when it has ended"
    elif report.replaced:
        were = "1 output was" if report.replaced == 1 else f"{report.replaced:,} outputs were"
        yield f"{were} replaced or removed while this read them; verify again"
    elif report.absent:
        missing, them = ("1 output is", "it") if report.absent == 1 else (f"{report.absent:,} outputs are", "them")
        yield f"{missing} missing; run the job again to produce {them}"
    elif report.state == INCOMPLETE and not report.shards:
        what = "the last stage has not begun" if report.stages else "no shard is planned yet"
        yield f"{what}; run the job again, it resumes"
    elif report.state == INCOMPLETE:
        yield "all outputs are there, but no run has finished the job; run it again, which takes a moment"
