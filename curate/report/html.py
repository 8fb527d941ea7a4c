"""Makes one HTML file of a report: no network, no other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from curate.pages.charts import drawing, share
from curate.pages.elements import facts, section, table
from curate.pages.markup import Html, join, tag
from curate.pages.shell import linked, shell
from curate.report.pairs import duplicates
from curate.units import format_bytes, format_count, plain_line

GENERATOR = "curate report"
"""What a report says that made it: only such a file is replaced by another report."""
SHOWN_SOURCES = 200
SHOWN_VALUES = 10
THRESHOLDS = 10
"""Thresholds for which it is told how many rows they keep: each tenth."""


def document(report: Mapping[str, Any]) -> bytes:
    """Returns a report as an HTML file."""
    plain = _plain(report)
    made = {name: part(plain) for name, part in PARTS.items()}
    shown = {name: section for name, section in made.items() if section is not None}
    name = plain["job"]["name"] if plain["job"] else "corpus"
    return shell(f"{name}: report", GENERATOR, _head(plain, name), linked(shown))


def _plain(value: Any) -> Any:
    """Returns a report in which each text is one line that acts nowhere."""
    match value:
        case str():
            return plain_line(value)
        case Mapping():
            return {_plain(key): _plain(own) for key, own in value.items()}
        case list() | tuple():
            return [_plain(own) for own in value]
    return value


def _head(report: Mapping[str, Any], name: str) -> Html:
    told = {
        "rows": f"{report['rows']:,}",
        "characters of text": f"{report['characters']:,}",
        "in memory": format_bytes(report["bytes"]),
        "columns": f"{len(report['columns']):,}",
    }
    return tag(
        "header",
        tag("p", "What is in a corpus", class_="soft"),
        tag("h1", name),
        tag("p", tag("code", report["corpus"])),
        facts(told.items()),
    )


def _books(report: Mapping[str, Any]) -> Html | None:
    job = report["job"]
    if job is None:
        return None
    rows = job["rows"]
    parts = [("in", rows.get("in", 0)), ("created", rows.get("created", 0)), ("out", rows.get("out", 0))]
    dropped = rows.get("dropped", {})
    parts += [(f"dropped: {reason}", count) for reason, count in sorted(dropped.items(), key=lambda one: -one[1])]
    parts.append(("quarantined", rows.get("quarantined", 0)))
    most = max((count for _, count in parts), default=0) or 1
    told = table(
        f"The rows of {job['name']}, which is {job['state']}: in + created = out + dropped + quarantined",
        ("what", "rows", "share of the most"),
        ((name, f"{count:,}", share(name, count / most, "f-blue")) for name, count in parts),
        ".n",
    )
    return section("rows", "Rows of the job", told)


def _sources(report: Mapping[str, Any]) -> Html | None:
    if not report["by"]:
        return None
    sources: Sequence[Mapping[str, Any]] = report["sources"]
    known = any("kept" in one for one in sources)
    lost = [one for one in sources if one.get("lost")]
    says = f"{format_count(len(sources), 'source')} by the column {report['by']!r}. "
    if known:
        says += (
            f"More than 90 % of the rows went in {format_count(len(lost), 'source')}."
            if lost
            else "No source lost more than 90 % of its rows."
        )
    heads = ("source", "rows in", "rows", "characters", "kept") if known else ("source", "rows", "characters", "share")
    rows = _source_rows(sources[:SHOWN_SOURCES], report["rows"], known=known)
    more = len(sources) - SHOWN_SOURCES
    note = tag("p", f"and {more:,} more, in report.json", class_="soft") if more > 0 else None
    told = table("Sources, the largest first", heads, rows, ".nnn" if known else ".nn")
    unknown = report["job"]["inputs_unknown"] if report["job"] else ""
    why = tag("p", f"What the job kept of each source is not known: {unknown}", class_="warn") if unknown else None
    return section("sources", "Sources", tag("p", says), why, told, note)


def _source_rows(sources: Sequence[Mapping[str, Any]], total: int, *, known: bool) -> Iterator[tuple[Any, ...]]:
    for one in sources:
        name, characters = _value(one["source"]), f"{one['characters']:,}"
        if not known:
            part = one["rows"] / total if total else 0.0
            yield name, f"{one['rows']:,}", characters, share("share of all rows", part, "f-blue")
        elif "kept" in one:
            yield name, f"{one['rows_in']:,}", f"{one['rows']:,}", characters, _kept(one)
        else:
            yield name, "?", f"{one['rows']:,}", characters, ""


def _kept(one: Mapping[str, Any]) -> Html:
    says = f"{100 * one['kept']:.1f} %"
    if not one["lost"]:
        return join([share("share kept", one["kept"], "f-good"), says])
    return join([share("share kept", one["kept"], "f-bad"), tag("strong", f"{says}: most of it went", class_="bad")])


def _columns(report: Mapping[str, Any]) -> Html:
    return section("columns", "Columns", [_column(one) for one in report["columns"]])


def _column(one: Mapping[str, Any]) -> Html:
    told = {"type": one["type"], "nulls": f"{one['nulls']:,}"}
    if one["distinct"] is not None:
        about = "about " if one["frequent_missed"] else ""
        told["different values"] = f"{about}{one['distinct']:,}"
    if "bytes" in one:
        told["bytes"] = format_bytes(one["bytes"])
    if one.get("not_finite"):
        told["not finite"] = f"{one['not_finite']:,}"
    if "least" in one:
        what = "" if one["of"] == "values" else f"{one['of']}, "
        told[f"{what}least"] = number(one["least"])
        if one["mean"] is not None:
            told[f"{what}mean"] = number(one["mean"])
        told[f"{what}greatest"] = number(one["greatest"])
        middle = {"0.05": "5 %", "0.5": "median", "0.95": "95 %"}
        told |= {f"{what}{name}": number(one["quantiles"][share]) for share, name in middle.items()}
    return tag(
        "section",
        tag("h3", tag("code", one["name"])),
        facts(told.items()),
        histogram(one) if one.get("histogram") else None,
        _thresholds(one) if "kept_from" in one else None,
        _frequent(one) if one["frequent"] else None,
    )


def histogram(one: Mapping[str, Any]) -> Html:
    """Returns the histogram of a column, with the threshold that its job compared it with."""
    bars = one["histogram"]
    most = max(bar[2] for bar in bars)
    wide = 1000 / len(bars)
    path = "".join(
        f"M{at * wide:.1f} 100v-{100 * bar[2] / most:.2f}h{wide * 0.92:.1f}v{100 * bar[2] / most:.2f}z"
        for at, bar in enumerate(bars)
        if bar[2]
    )
    bound = one.get("threshold")
    marks = [tag("path", d=path, class_="f-blue")]
    if bound is not None:
        marks.append(tag("path", d=f"M{1000 * bound:.1f} 0v100", class_="s-bad"))
    name = f"{one['of'].capitalize()} of {one['name']}"
    low, high = (0, 1) if "kept_from" in one else (one["least"], one["greatest"])
    says = f"{number(low)} to {number(high)}, at most {most:,} rows in a bar"
    line = "" if bound is None else f"; the line is the threshold of the job, {number(bound)}"
    return tag(
        "figure",
        tag(
            "div",
            tag("div", tag("span", f"{most:,}"), tag("span", "0"), class_="axis up"),
            drawing(name, says, 100, marks, class_="plot"),
            tag("div", tag("span", number(low)), tag("span", number(high)), class_="axis along"),
            class_="chart",
        ),
        tag("figcaption", f"Rows by {one['of']}{line}"),
    )


def _thresholds(one: Mapping[str, Any]) -> Html:
    counts = {round(bound, 2): count for bound, count in one["kept_from"]}
    total = counts[0.0]
    bounds = sorted({at / THRESHOLDS for at in range(THRESHOLDS)} | ({one["threshold"]} & counts.keys()))
    rows = (
        (
            join([number(bound), " (the job's)" if bound == one["threshold"] else ""]),
            f"{counts[bound]:,}",
            f"{total - counts[bound]:,}",
            share("share of rows", counts[bound] / (total or 1), "f-blue"),
        )
        for bound in bounds
    )
    title = f"Rows that another threshold of {one['name']} would part"
    told = table(title, ("threshold", "at or above", "below", "share"), rows, ".nn")
    return tag("details", tag("summary", "Other thresholds"), told)


def _frequent(one: Mapping[str, Any]) -> Html:
    total = one["rows"] - one["nulls"]
    missed = one["frequent_missed"]
    title = f"The most frequent values of {one['name']}" + (f"; a count may lack {missed:,}" if missed else "")
    rows = (
        (_value(value), f"{count:,}", share("share of rows", count / (total or 1), "f-blue"))
        for value, count in one["frequent"][:SHOWN_VALUES]
    )
    told = table(title, ("value", "rows", "share"), rows, ".n")
    return tag("details", tag("summary", title), told, open=one["frequent"][0][1] > total / 100)


def _bad(report: Mapping[str, Any]) -> Html | None:
    reasons = report["job"]["quarantine"] if report["job"] else []
    if not reasons:
        return None
    read, every = report["job"]["quarantine_read"], report["job"]["rows"].get("quarantined", 0)
    says = f"The first {read:,} of {every:,} were looked at: numbers of reasons are of these." if read < every else None
    note = None if says is None else tag("p", says, class_="warn")
    return section("quarantine", "Quarantined rows", note, [_reason(one) for one in reasons])


def _dropped(report: Mapping[str, Any]) -> Html | None:
    reasons = [one for one in report["job"]["dropped"] if one["rows"]] if report["job"] else []
    if not reasons:
        return None
    says = "Of each reason some rows, chosen by a hash of their values: the same ones each time."
    stages = {one["stage"] for one in reasons}
    told = [_dropped_for(one, where=f" by {one['stage']}" if len(stages) > 1 else "") for one in reasons]
    return section("dropped", "Dropped rows", tag("p", says, class_="soft"), told)


def _dropped_for(one: Mapping[str, Any], where: str) -> Html:
    title = f"{format_count(one['rows'], 'row')}{where}: {one['reason']}"
    if not one["samples"]:
        return tag("p", title, "; the rows are not known", class_="data")
    rows = [(tag("code", row["shard"]), tag("span", row["row"], class_="data"), _cut(row)) for row in one["samples"]]
    return tag("details", tag("summary", title), table(title, ("shard", "row", "cut, whole length"), rows))


def _cut(row: Mapping[str, Any]) -> str:
    told = [f"{name}: {size:,}" for name, size in row["cut"].items()]
    return ", ".join([*told, *([f"columns left out: {row['left_out']:,}"] if row["left_out"] else [])])


def _reason(one: Mapping[str, Any]) -> Html:
    rows = (
        (tag("code", sample["shard"]), f"{sample['line']:,}", tag("span", sample["row"], class_="data"))
        for sample in one["samples"]
    )
    title = f"{format_count(one['rows'], 'row')}: {one['reason']}"
    return tag("details", tag("summary", title), table(title, ("shard", "line", "row"), rows, ".n"))


def _value(value: Any) -> Html:
    if value is None:
        return tag("i", "null", class_="soft")
    return tag("span", value if isinstance(value, str) and value else repr(value), class_="data")


def number(value: Any) -> str:
    """Returns a number as text: whole ones with their thousands apart, others in four digits.

    >>> number(1234567), number(0.123456), number(2.0), number("2024-01-01")
    ('1,234,567', '0.1235', '2', '2024-01-01')
    """
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _against(report: Mapping[str, Any]) -> Html | None:
    told = report.get("against")
    if told is None:
        return None
    other = told["report"]
    names = [one["name"] for one in report["columns"]]
    names += [one["name"] for one in other["columns"] if one["name"] not in names]
    ours, theirs = ({one["name"]: one for one in side["columns"]} for side in (report, other))
    columns = [row for name in names for row in _beside(name, ours.get(name), theirs.get(name))]
    return section(
        "against",
        "Beside another corpus",
        tag("p", "The other one is ", tag("code", other["corpus"])),
        table("Both as a whole", SIDES, _wholes(report, other), ".nnn"),
        _ids(told["ids"], ours, theirs),
        table("Columns that are not the same in both", ("column", *SIDES), columns, "..nnn") if columns else None,
        None if columns else tag("p", "All columns have the same numbers."),
    )


SIDES = ("number", "here", "there", "difference")
COMPARED = ("type", "nulls", "distinct", "least", "mean", "greatest")
"""Numbers of a column that are put beside those of the other one, with its quantiles."""


def _wholes(report: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yields rows, characters and books of both."""
    for name in ("rows", "characters", "bytes"):
        yield (name, *_pair(report[name], other[name]))
    ours, theirs = (_booked(one["job"]) for one in (report, other))
    for name in dict.fromkeys([*ours, *theirs]):
        yield (name, *_pair(ours.get(name), theirs.get(name)))


def _booked(job: Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the books of a job by what became of rows."""
    if job is None:
        return {}
    told = {name: job["rows"].get(name, 0) for name in ("in", "created", "out")}
    told |= {f"dropped: {reason}": count for reason, count in job["rows"].get("dropped", {}).items()}
    return {f"job, {name}": count for name, count in told.items()} | {
        "job, quarantined": job["rows"].get("quarantined", 0)
    }


def _beside(name: str, ours: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> Iterator[tuple[Any, ...]]:
    """Yields what differs of a column."""
    one, other = _numbers(ours), _numbers(theirs)
    for what in dict.fromkeys([*one, *other]):
        if one.get(what) != other.get(what):
            yield (tag("code", name), what, *_pair(one.get(what), other.get(what)))


def _numbers(column: Mapping[str, Any] | None) -> dict[str, Any]:
    if column is None:
        return {}
    told = {name: column[name] for name in COMPARED if name in column}
    return told | {f"quantile {share}": value for share, value in column.get("quantiles", {}).items()}


def _pair(here: Any, there: Any) -> tuple[str, str, str]:
    """Returns two values as text, and how far they are from each other."""
    shown = ["none" if one is None else number(one) for one in (here, there)]
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in (here, there)):
        return shown[0], shown[1], ""
    share = f", {100 * (here - there) / abs(there):+,.1f} %" if there else ""
    return shown[0], shown[1], f"{'+' * (here > there)}{number(here - there)}{share}" if here != there else ""


def _ids(ids: Mapping[str, Any] | None, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Html:
    if ids is None:
        return tag("p", "Rows were not compared: no column of ids was named.", class_="soft")
    says = {
        "equal": "have equal rows",
        "changed": "have other values",
        "appeared": "are only here",
        "went": "are only there",
    }
    caption = f"Ids, by the column {ids['column']!r}"
    counted = table(
        caption, ("state", "ids", "which"), ((name, f"{ids[name]:,}", text) for name, text in says.items()), ".n."
    )
    shown = [
        tag(
            "details",
            tag("summary", f"{len(own):,} of {ids[name]:,} that {name}"),
            tag("ul", [tag("li", tag("i", "null") if one is None else tag("code", one)) for one in own]),
        )
        for name, own in ids["examples"].items()
        if own
    ]
    here, there = (side.get(ids["column"], {}).get("type") for side in (ours, theirs))
    note = f"Ids are {here} here and {there} there, and compared as texts: 1.00 and 1 are two." if here != there else ""
    return tag("div", counted, tag("p", note, class_="soft") if note else None, shown)


PARTS = {
    "against": _against,
    "rows": _books,
    "sources": _sources,
    "columns": _columns,
    "duplicates": duplicates,
    "dropped": _dropped,
    "quarantine": _bad,
}
