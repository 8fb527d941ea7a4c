"""Makes one HTML file of the model of a page: no network, no other file, and readable without its script."""

from __future__ import annotations

from curate.pages import sections
from curate.pages.elements import moment
from curate.pages.markup import join, tag
from curate.pages.model import Page
from curate.pages.shell import shell

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
    shown = {name: one for name, one in made.items() if one is not None}
    head = join([sections.head(page), sections.notes(page)])
    foot = tag("p", "Made by curate page on ", moment(page.made), class_="soft")
    return shell(f"{page.head.job}: {page.head.state}", GENERATOR, head, shown, foot)
