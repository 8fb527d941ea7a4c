"""The sections of a page, each from the part of the model that it shows; empty where there is nothing to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from curate.observe.eta import format_range
from curate.observe.summary_text import rows_text
from curate.pages import charts
from curate.pages.elements import command, facts, moment, number, section, state, table
from curate.pages.markup import Html, join, tag
from curate.pages.model import FailureGroup, Page, StageBooks, Timeline
from curate.units import format_bytes, format_count, format_took, shell_word

AGAIN = "See every try of it, run it here, and after fixing the cause run again what failed:"
MEMORY = (
    "A process holds some batches of each of its operators, their models and Python itself: its most memory is that of "
    "all of these, so operators in one process have the same."
)
OPEN_GROUPS = 3
"""Groups of failures whose traceback is shown at once."""


def head(page: Page) -> Html:
    """Returns which job it is, and how far it is."""
    one = page.head
    shards, run = one.shards, page.runs[0] if page.runs else None
    total = shards.get("total", 0)
    parts = [
        tag("p", tag("span", one.output, class_="data"), class_="soft"),
        tag("h1", one.job, " ", state(one.state)),
        tag("p", one.says, class_="says"),
    ]
    if total:
        done, label = shards["done"], "Shards that are done"
        parts.append(tag("progress", f"{done:,} of {total:,}", value=done, max=total, aria_label=label))
    others = [f"{shards[name]:,} {name}" for name in ("running", "pending", "failed", "stale") if shards.get(name)]
    rate = one.rate and (
        f"{one.rate['shards_per_s']:,.1f} shards/s, {one.rate['rows_per_s']:,.0f} rows/s, "
        f"{format_bytes(one.rate['bytes_per_s'])}/s"
    )
    of_input = f" of {format_bytes(one.bytes_total)}" if one.bytes_total > one.bytes_in else ""
    parts.append(
        facts(
            [
                ("At", one.stage),
                ("Shards", ", ".join([f"{shards['done']:,} of {total:,} done", *others]) if total else ""),
                ("Rows", rows_text(one.rows) if one.rows else None),
                ("Input", f"{format_bytes(one.bytes_in)}{of_input}" if total else ""),
                ("Output", format_bytes(one.bytes_out)),
                ("Rate", rate or None),
                ("Time left", format_range(one.eta_range_s) if one.rate else None),
                ("Waits for", one.waits),
                ("Cost so far", cost_text(page)),
                ("Newest run", run and join([run.run_id, ", ", run.state])),
                ("Ended by", run and run.ended_by),
                ("Who and where", run and f"{run.who} on {run.where}"),
                ("From", run and run.started and moment(run.started)),
                ("To" if run and run.state != "running" else "Last word", run and run.updated and moment(run.updated)),
            ]
        )
    )
    if run and run.command:
        parts += [tag("p", "Command, in ", tag("code", run.cwd or "an unknown folder"), class_="soft")]
        parts.append(command(run.command))
    return tag("header", parts)


def cost_text(page: Page) -> str:
    """Returns the cost of a job in a line."""
    if page.costs is None:
        return ""
    money = "" if page.costs.money is None else f"{page.costs.money:,.2f} {page.costs.currency}: "
    requests = sum(page.costs.requests.values())
    return f"{money}{page.costs.slots}, {format_count(requests, 'storage request')}"


def notes(page: Page) -> Html | None:
    """Returns what could not be read."""
    if not page.notes:
        return None
    title = tag("h2", "What this page cannot show", id="notes")
    listed = tag("ul", [tag("li", one) for one in page.notes])
    return tag("section", title, listed, class_="note", aria_labelledby="notes")


def time(page: Page) -> Html | None:
    """Returns slots in use and throughput over time."""
    told = page.time
    if told is None:
        return None
    span = f"{format_count(len(told.runs), 'run')}: {', '.join(told.runs)}" if told.runs else "all runs"
    text = [f"{span}; the events of {format_count(len(page.runs) + page.earlier_runs, 'run')} are in the ledger."]
    if page.head.state == "running":
        text.append("Shards that are running now are not in it.")
    charts_of = [
        ("Slots in use", "shards at once", told.slots, "f-blue", lambda value: f"{value:,.1f}"),
        ("Input read", "bytes per second", told.bytes_per_s, "f-good", lambda value: f"{format_bytes(value)}/s"),
        ("Rows read", "rows per second", told.rows_per_s, "f-good", lambda value: f"{value:,.0f}/s"),
    ]
    shown = [_over_time(told, *one) for one in charts_of if any(one[2]) or one[0] == "Slots in use"]
    return section("time", "Time", tag("p", " ".join(text), class_="soft"), shown, _stages_over_time(told))


def _stages_over_time(told: Timeline) -> Html | None:
    if not told.stages:
        return None
    values = [[one.name, moment(one.start), moment(one.end), format_took(one.end - one.start)] for one in told.stages]
    return table("When each stage ran", ["stage", "from", "to", "time"], values, "...n")


def _shares(told: Timeline) -> list[tuple[float, float]]:
    """Returns when each stage was at work, as shares of all the time."""
    whole_s = _whole_s(told)
    return [((one.start - told.start) / whole_s, (one.end - told.start) / whole_s) for one in told.stages]


def _over_time(told: Timeline, name: str, unit: str, values: Sequence[float], fill: str, shown: Any) -> Html:
    most, mean = max(values), sum(values) / len(values)
    says = f"{unit}: {shown(mean)} on average, {shown(most)} at most, over {format_took(_whole_s(told))}"
    lanes = []
    if name == "Slots in use" and told.stages:
        many = format_count(len(told.stages), "stage")
        lanes += [
            tag("span", many, class_="axis lane-name"),
            charts.bars(many, "when each of them ran", _shares(told)),
        ]
    if name == "Slots in use":
        for what, marks, ink in (
            ("tried again", told.retried, "f-warn"),
            ("failed", told.failed, "f-bad"),
            ("node lost", told.lost, "f-grey"),
        ):
            if any(marks):
                lanes += [
                    tag("span", f"{what}: {sum(marks):,}", class_="axis lane-name"),
                    charts.lane(what, marks, ink),
                ]
    end = told.start + _whole_s(told)
    return tag(
        "figure",
        tag("figcaption", tag("strong", name), ", ", says),
        tag(
            "div",
            tag("div", tag("span", shown(most)), tag("span", "0"), class_="up axis"),
            charts.area(name, says, values, fill, [begin for begin, _ in _shares(told)[1:]]),
            lanes,
            tag("div", moment(told.start), moment(end), class_="along axis"),
            class_="chart",
        ),
    )


def _whole_s(told: Timeline) -> float:
    return told.span_s * len(told.slots)


SAID = {
    "done": "done by the first try",
    "retried": "done by a later try",
    "failed": "failed",
    "pending": "not done yet",
}


def shards(page: Page) -> Html | None:
    """Returns the strip of shards, and the longest."""
    told = page.shards
    if told is None:
        return None
    says = ", ".join(f"{count:,} {SAID[name]}" for name, count in told.counts.items() if count)
    each = "one shard a cell" if told.per_cell == 1 else f"{told.per_cell:,} shards a column"
    legend = [
        tag("li", charts.key(name) if told.cells else charts.swatch(charts.FILLS[name]), f"{count:,} {SAID[name]}")
        for name, count in told.counts.items()
        if count
    ]
    at = f" of {page.head.stage}" if page.head.stage else ""
    parts = [
        tag(
            "figure",
            tag("figcaption", f"{format_count(told.total, 'shard')}{at}, in the order of the plan, {each}"),
            charts.shards(told, says),
            tag("ul", legend, class_="legend"),
        )
    ]
    if page.longest:
        values = [
            [one.shard, format_took(one.seconds), number(one.tries), format_bytes(one.bytes), one.state, one.why]
            for one in page.longest
        ]
        columns = ["shard", "time", "tries", "input", "state", "why"]
        parts.append(table("The shards that took longest, all tries together", columns, values, ".nnn.."))
    return section("shards", "Shards", parts)


def plan(page: Page) -> Html | None:
    """Returns the stages as a graph, and the operators of the stage at work, or of the last one."""
    if not page.books:
        return None
    timed = [one for one in page.books if one.seconds]
    slowest = max(timed, key=lambda one: one.seconds or 0.0) if len(timed) > 1 else None
    says = "; ".join(map(_stage_text, page.books))
    drawn = charts.graph(page.books, None if slowest is None else slowest.key, says)
    about = {"class_": "wide", "tabindex": 0, "role": "region", "aria_label": "The plan as a graph"}
    parts: list[Any] = [tag("div", drawn, **about)]
    if slowest is not None:
        parts.append(
            tag("p", f"{slowest.name} took the most time: {format_took(slowest.seconds or 0.0)} of the newest run.")
        )
    if page.operators:
        most = next((one for one in page.operators if one.limits), None)
        values = [
            [
                *(one.name, number(one.rows_in), number(one.rows_out), format_bytes(one.bytes_out)),
                *(format_bytes(one.largest_bytes), format_bytes(one.peak_bytes) if one.peak_bytes else ""),
                *(format_took(one.seconds), format_took(one.cpu_seconds)),
                charts.share(f"Share of {one.name}", one.share, "f-warn" if one.limits else "f-blue"),
                f"{100 * one.share:.0f} %",
                "" if one.actors is None else f"{one.actors:,}, {100 * (one.busy or 0):.0f} % busy",
            ]
            for one in page.operators
        ]
        columns = ["operator", "rows in", "rows out", "bytes out", "largest batch", "process at most"]
        columns += ["busy", "of it on a CPU", "of all", "share", "actors"]
        parts.append(table("Operators in the newest run", columns, values, ".nnnnnnn.n."))
        if most is not None:
            parts.append(
                tag("p", f"{most.name} limits: it took {100 * most.share:.0f} % of the time of all operators.")
            )
        largest = max(page.operators, key=lambda one: one.largest_bytes)
        if largest.largest_bytes:
            says = f"{largest.name} makes the largest batches, up to {format_bytes(largest.largest_bytes)}. {MEMORY}"
            parts.append(tag("p", says, class_="soft"))
    return section("plan", "Plan", parts)


def _stage_text(one: StageBooks) -> str:
    return f"{one.name}: {one.rows_in:,} rows in, {one.rows_out:,} out, {one.state}"


def failures(page: Page) -> Html | None:
    """Returns what failed for good, and what is tried again."""
    if not page.failures and not page.retrying:
        return None
    parts: list[Any] = []
    if page.failures:
        reasons = format_count(len(page.failures) + page.more_failures, "reason")
        parts.append(tag("h3", f"Given up, for {reasons}"))
        parts += [_failure(one, shown=number < OPEN_GROUPS) for number, one in enumerate(page.failures)]
    if page.more_failures:
        parts.append(tag("p", f"{format_count(page.more_failures, 'more reason')}; all of them:"))
        parts.append(command(f"curate failures {shell_word(page.head.output)} --json"))
    if page.retrying:
        parts.append(tag("h3", "Tried again now"))
        values = [[one.error, number(one.shards), one.shard] for one in page.retrying]
        parts.append(table("Shards that are tried again", ["error", "shards", "for example"], values, ".n."))
    return section("failures", "Failures", parts)


def _failure(one: FailureGroup, *, shown: bool) -> Html:
    trace = None
    if one.traceback:
        title = tag("summary", f"Traceback of {one.shard}")
        trace = tag("details", title, tag("pre", one.traceback, tabindex=0), open=shown)
    return tag(
        "article",
        tag("p", tag("strong", one.error or "no error was recorded", class_="bad data")),
        facts(
            [
                ("Shards", f"{one.shards:,}, with {format_count(one.tries, 'failed attempt')}"),
                ("Kind", one.kinds),
                ("Line of the job", one.frame and tag("code", one.frame)),
                ("Stage", one.stage),
                ("For example", one.shard),
                ("Its input", one.input),
                ("It ran in", one.where),
                ("Last", moment(one.last)),
            ]
        ),
        trace,
        tag("p", AGAIN if len(one.commands) > 1 else "See every try of it:", class_="soft"),
        [command(text) for text in one.commands],
    )


def lineage(page: Page) -> Html | None:
    """Returns what the output was made from."""
    told = page.lineage
    if told is None:
        return None
    parts: list[Any] = [
        facts(
            [
                ("Inputs as given", ", ".join(told.given)),
                ("Input files", f"{told.inputs:,}, {format_bytes(told.bytes)}" if told.inputs else ""),
                ("For example", ", ".join(told.examples)),
            ]
        )
    ]
    around = (("Jobs whose output is read", told.upstream), ("Known jobs that read this output", told.downstream))
    for caption, jobs in around:
        if jobs:
            values = [[one.job, one.state, f"{one.done:,} of {one.total:,}", one.output] for one in jobs]
            parts.append(table(caption, ["job", "state", "shards", "output"], values, "..n."))
    parts += [tag("p", one, class_="warn") for one in told.remarks]
    identity = page.head.identity
    parts.append(tag("h3", "Identity: what decides the bytes of the output"))
    parts.append(facts(identity.items()))
    if page.head.parameters:
        parts.append(table("Parameters", ["parameter", "value"], page.head.parameters.items()))
    return section("lineage", "Lineage", parts)


def runs(page: Page) -> Html | None:
    """Returns the runs of the output, newest first."""
    if not page.runs:
        return None
    values = [
        [
            join([one.run_id, f" part {one.part}" if one.part else ""]),
            join([state(one.state), f" by {one.ended_by}" if one.ended_by else ""]),
            moment(one.started) if one.started else "",
            format_took(max(0.0, one.updated - one.started)),
            join([one.who, " on ", one.where]),
            one.backend,
            *(number(count) for count in (one.done, one.tries, sum(one.calls.values()))),
            tag("code", one.command),
        ]
        for one in page.runs
    ]
    columns = ["run", "state", "began", "time", "who", "backend", "shards done", "tries", "requests", "command"]
    caption = "Runs of this output, newest first, with their storage requests"
    more = page.earlier_runs and tag("p", f"{page.earlier_runs:,} earlier runs are not shown.")
    return section("runs", "Runs", table(caption, columns, values, "...n..nnn."), more or None)


def costs(page: Page) -> Html | None:
    """Returns what the job has cost."""
    told = page.costs
    if told is None:
        return None
    priced = told.money is not None
    columns = ["what", "amount", *(["price"] if priced else [])]
    caption = "Slots that shards held, and storage requests, of all runs"
    parts: list[Any] = [table(caption, columns, [line[: len(columns)] for line in told.lines], ".nn")]
    if priced:
        parts.append(tag("p", tag("strong", f"{told.money:,.2f} {told.currency} in all")))
    else:
        parts.append(tag("p", "For money, write prices into $CURATE_HOME/prices.toml.", class_="soft"))
    parts += [tag("p", one, class_="soft") for one in told.remarks]
    return section("costs", "Costs", parts)
