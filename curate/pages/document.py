"""Makes one HTML file of the model of a page: no network, no other file, and readable without its script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from curate.errors import CurateError
from curate.observe.place import NoJobError
from curate.observe.status import JobStatus, quiet_text
from curate.pages import sections
from curate.pages.books.section import rows
from curate.pages.elements import moment, state, table
from curate.pages.markup import Html, tag
from curate.pages.model import Page
from curate.pages.shell import linked, shell
from curate.units import ellipsize

GENERATOR = "curate page"
"""What a page says that made it: only such a file is replaced by another page."""
SECTIONS = {
    "rows": rows,
    "time": sections.time,
    "shards": sections.shards,
    "plan": sections.plan,
    "failures": sections.failures,
    "lineage": sections.lineage,
    "runs": sections.runs,
    "costs": sections.costs,
}


def document(page: Page) -> bytes:
    """Returns a page as an HTML file."""
    made = {name: section(page) for name, section in SECTIONS.items()}
    if page.failures:
        # What went wrong is what is looked for.
        made = {"failures": made.pop("failures"), **made}
    shown = {name: one for name, one in made.items() if one is not None}
    title = f"{page.head.job}: {page.head.state}"
    return shell(title, GENERATOR, sections.head(page), sections.notes(page), linked(shown), _made(page.made))


def index(jobs: Sequence[tuple[Mapping[str, Any], JobStatus | CurateError]], now: float) -> bytes:
    """Returns a list of jobs, each with a link to its page."""
    rows = []
    for entry, one in jobs:
        link = tag("a", ellipsize(entry["output"]), href=f"/job?output={quote(entry['output'], safe='')}")
        if isinstance(one, JobStatus):
            began = moment(one.runs[0].started) if one.runs else ""
            how = [state(one.state), f", {quiet_text(one.quiet_s)}" if one.quiet_s else ""]
            told = [tag("span", *how), f"{one.done:,} of {one.total:,}", f"{one.failed:,}", began]
        else:
            told = [state("gone" if isinstance(one, NoJobError) else "unreachable"), "", "", ""]
        job = one.job if isinstance(one, JobStatus) else entry["job"]
        rows.append([ellipsize(job), *told, link])
    columns = ["job", "state", "shards", "failed", "began", "output"]
    listed = table("Jobs, the one that was started last first", columns, rows, "..nn..")
    return shell("Jobs", GENERATOR, tag("header", tag("h1", "Jobs")), tag("main", listed), _made(now))


def refusal(text: str) -> bytes:
    """Returns a page that says why there is no other."""
    return shell("curate", GENERATOR, tag("main", tag("h1", "curate"), tag("p", ellipsize(text))))


def _made(when: float) -> Html:
    return tag("footer", tag("p", "Made by curate on ", moment(when), class_="soft"))
