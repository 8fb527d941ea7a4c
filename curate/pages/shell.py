"""The HTML file around the sections of a page or a report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

from curate.pages.markup import Html, tag
from curate.pages.style import SCRIPT, STYLE


def shell(title: str, generator: str, head: Html, sections: Mapping[str, Html], foot: Html | None = None) -> bytes:
    """Returns an HTML file: what is above all, links to the sections by their names, and these."""
    links = [tag("li", tag("a", name.capitalize(), href=f"#{name}")) for name in sections]
    top = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="generator", content=generator),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    body = tag(
        "body",
        head,
        tag("nav", tag("ul", links), aria_label="Sections of this page"),
        tag("main", sections.values()),
        tag("footer", foot),
        tag("script", Html(SCRIPT)),
    )
    return f"<!doctype html>\n{tag('html', top, body, lang='en')}\n".encode()


def policy() -> str:
    """Returns what the page may do: use its own style and its own script, and reach nothing."""
    own = {name: f"'sha256-{_digest(text)}'" for name, text in (("style", STYLE), ("script", SCRIPT))}
    only = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; style-src {own['style']}; script-src {own['script']}; {only}"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
