"""The HTML file around the sections of a page or a report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

from curate.pages.markup import Html, join, tag
from curate.pages.style import SCRIPT, STYLE


def shell(title: str, generator: str, *body: Html | None) -> bytes:
    """Returns an HTML file with this body; `generator` is what it says that made it."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="generator", content=generator),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    whole = tag("html", head, tag("body", body, tag("script", Html(SCRIPT))), lang="en")
    return f"<!doctype html>\n{whole}\n".encode()


def linked(sections: Mapping[str, Html]) -> Html:
    """Returns sections, with links to them by their names before them."""
    links = [tag("li", tag("a", name.capitalize(), href=f"#{name}")) for name in sections]
    return join([tag("nav", tag("ul", links), aria_label="Sections of this page"), tag("main", sections.values())])


def policy() -> str:
    """Returns what the page may do: use its own style and its own script, and reach nothing."""
    own = {name: f"'sha256-{_digest(text)}'" for name, text in (("style", STYLE), ("script", SCRIPT))}
    only = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {own['style']}; script-src {own['script']}; {only}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
