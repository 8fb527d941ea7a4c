"""Makes one HTML file of the model of a page: no network, no other file, and readable without its script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from curate.errors import CurateError
from curate.observe.job import NoJobError
from curate.observe.status import JobStatus
from curate.pages import sections
from curate.pages.elements import moment, state, table
from curate.pages.markup import Html, tag
from curate.pages.model import Page
from curate.pages.style import SCRIPT, STYLE
from curate.units import ellipsize

GENERATOR = "curate page"
"""What a page says that made it: only such a file is replaced by another page."""
SHOWN_CHARS = 400
SECTIONS = {
    "rows": sections.rows,
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
    links = [tag("li", tag("a", name.capitalize(), href=f"#{name}")) for name, one in made.items() if one is not None]
    return _file(
        f"{page.head.job}: {page.head.state}",
        page.made,
        sections.head(page),
        sections.notes(page),
        tag("nav", tag("ul", links), aria_label="Sections of this page"),
        tag("main", made.values()),
    )


def index(jobs: Sequence[tuple[Mapping[str, Any], JobStatus | CurateError]], now: float) -> bytes:
    """Returns a list of jobs, each with a link to its page."""
    rows = []
    for entry, one in jobs:
        link = tag("a", ellipsize(entry["output"], SHOWN_CHARS), href=f"/job?output={quote(entry['output'], safe='')}")
        if isinstance(one, JobStatus):
            began = moment(one.runs[0].started) if one.runs else ""
            told = [state(one.state), f"{one.done:,} of {one.total:,}", f"{one.failed:,}", began]
        else:
            told = [state("gone" if isinstance(one, NoJobError) else "unreachable"), "", "", ""]
        job = one.job if isinstance(one, JobStatus) else entry["job"]
        rows.append([ellipsize(job, SHOWN_CHARS), *told, link])
    columns = ["job", "state", "shards", "failed", "began", "output"]
    listed = table("Jobs, the one that was started last first", columns, rows, "--nn--")
    return _file("Jobs", now, tag("header", tag("h1", "Jobs")), tag("main", listed))


def refusal(text: str) -> bytes:
    """Returns a page that says why there is no other."""
    return _file("curate", None, tag("main", tag("h1", "curate"), tag("p", ellipsize(text, SHOWN_CHARS))))


def _file(title: str, made: float | None, *body: Html | None) -> bytes:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="generator", content=GENERATOR),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    when = None if made is None else tag("footer", tag("p", "Made by curate on ", moment(made), class_="soft"))
    whole = tag("html", head, tag("body", body, when, tag("script", Html(SCRIPT))), lang="en")
    return f"<!doctype html>\n{whole}\n".encode()


def policy() -> str:
    """Returns what the page may do: use its own style and its own script, and reach nothing."""
    own = {name: f"'sha256-{_digest(text)}'" for name, text in (("style", STYLE), ("script", SCRIPT))}
    only = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {own['style']}; script-src {own['script']}; {only}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
