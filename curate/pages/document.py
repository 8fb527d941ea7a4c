"""Makes one HTML file of the model of a page: no network, no other file, and readable without its script."""

from __future__ import annotations

import base64
import hashlib

from curate.pages import sections
from curate.pages.elements import moment
from curate.pages.markup import Html, tag
from curate.pages.model import Page
from curate.pages.style import SCRIPT, STYLE

GENERATOR = "curate page"
"""What a page says that made it: only such a file is replaced by another page."""
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
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="generator", content=GENERATOR),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("title", f"{page.head.job}: {page.head.state}"),
        tag("style", Html(STYLE)),
    )
    body = tag(
        "body",
        sections.head(page),
        sections.notes(page),
        tag("nav", tag("ul", links), aria_label="Sections of this page"),
        tag("main", made.values()),
        tag("footer", tag("p", "Made by curate page on ", moment(page.made), class_="soft")),
        tag("script", Html(SCRIPT)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


def policy() -> str:
    """Returns what the page may do: use its own style and its own script, and reach nothing."""
    own = {name: f"'sha256-{_digest(text)}'" for name, text in (("style", STYLE), ("script", SCRIPT))}
    only = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {own['style']}; script-src {own['script']}; {only}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
