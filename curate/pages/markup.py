"""Makes HTML and SVG out of values: all text is escaped, and only what was made here is markup.

A page has some hundred elements whose shape the model decides. A template engine would bring a language of its own, a
dependency of everyone who installs curate, and files to ship; this is one function.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

VOID = frozenset({"meta", "link", "br", "hr", "input"})
"""Elements without an end tag."""


class Html(str):
    """Markup, which is not escaped again."""

    __slots__ = ()


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """Returns an element. Children are markup, text, numbers, or iterables of these; None is left out.

    Attributes that are None or False are left out, those that are True have no value. An underscore stands for a
    hyphen, at the end for nothing.

    >>> tag("td", "<b>", class_="number", aria_label='"1"', hidden=False)
    '<td class="number" aria-label="&quot;1&quot;">&lt;b&gt;</td>'
    """
    told = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    return Html(f"<{name}{told}>" if name in VOID else f"<{name}{told}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Returns children one after another, as `tag` takes them.

    >>> join(["a & b", None, [tag("b", 1), "<"]])
    'a &amp; b<b>1</b>&lt;'
    """
    return Html("".join(map(_child, children)))


def _child(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Html):
        return value
    if isinstance(value, str):
        return escape(value, quote=False)
    if isinstance(value, Iterable):
        return join(value)
    return escape(str(value), quote=False)


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
