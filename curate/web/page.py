"""The text of a page: out of its bytes, whatever charset they are in, by a published extractor.

- `resiliparse`: the main content, as DCLM's pool was made (Li et al. 2024, section 3.2)
- `trafilatura`: in favour of precision, as FineWeb was made (Penedo et al. 2024, section 3.2; `Trafilatura` of
  datatrove 0.10.1). It leaves out what it has seen in pages before, which would make a text depend on others: here
  only what it has seen in the page itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from curate.errors import BadRow, ConfigError
from curate.keywords import option
from curate.web import http

RESILIPARSE, TRAFILATURA = "resiliparse", "trafilatura"
OPTIONS: dict[str, dict[str, Any]] = {
    RESILIPARSE: {"main_content": True, "alt_texts": False},
    TRAFILATURA: {"favor_precision": True, "include_comments": False, "deduplicate": True},
}
"""What each extractor is called with."""
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|meta)\b", re.I)
_ESCAPE = b"\x1b"
_WIDE = ("utf-16-le", "utf-16-be")
_SUPERSETS = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
}
"""Codecs of what browsers read as a charset, and pages are written in: more characters than Python's of that name."""
_UNKNOWN = {"x-mac-cyrillic": "mac-cyrillic", "x-mac-ukrainian": "mac-cyrillic"}
"""Charsets of browsers that resiliparse does not know."""
_NARROW = 20
"""Of so many characters of a page in UTF-16 at least one is ASCII, whatever it is written in."""
_SNIFFED = 1024
_SAMPLE = f"<html><title>A title</title><body><article><p>{'Some words of a page. ' * 20}</p></article></body></html>"


class Page(NamedTuple):
    """What was found in a page."""

    charset: str
    title: str | None
    text: str


class Extractor:
    """Extracts pages, where a page that crashes or hangs does no harm: it is a function of one row, a dictionary with
    payload, encoding, transfer and charset, and returns a Page, or None for one that is too large once unpacked."""

    def __init__(self, name: str, options: Mapping[str, Any], most: int) -> None:
        """`options` are those of the extractor's own function; `most`: bytes of a page. Raises ConfigError if its
        package is not installed."""
        self.name = name
        self.options = {**OPTIONS[name], **options}
        self.most = most
        self._text: Callable[[str], tuple[str | None, str]] | None = None
        needed(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_text": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Where it is sent: before the first page, whose time the imports are no part of.
        self._text = _FUNCTIONS[self.name](self.options)

    def __call__(self, row: Mapping[str, Any]) -> Page | None:
        try:
            data = http.unpacked(row["payload"], row["encoding"], row["transfer"], self.most)
        except http.TooLarge:
            return None
        charset, html = decoded(data, row["charset"])
        try:
            title, text = self.extracted(html)
        except Exception as error:  # whatever a parser raises about a page
            raise BadRow(f"{self.name} raised {type(error).__name__}: {str(error)[:200]}") from error
        return Page(charset, None if title is None else _encodable(title), _encodable(text))

    def check(self) -> None:
        """Raises ConfigError for options with which no plain page can be extracted, or which its function lacks."""
        try:
            self.extracted(_SAMPLE)
        except Exception as error:  # whatever it raises, it would for each page
            found = f"{self.name} raised {type(error).__name__}: {error}"
            other = option("extractor_options", ...)
            raise ConfigError(f"{found}, on a plain page; give it other options ({other})") from error

    def extracted(self, html: str) -> tuple[str | None, str]:
        """Returns title and text of a page."""
        if self._text is None:
            self._text = _FUNCTIONS[self.name](self.options)
        return self._text(html)


def needed(name: str) -> None:
    """Raises ConfigError if what an extractor needs is not installed."""
    for module in ("fastwarc", "resiliparse", name):
        if find_spec(module) is None:
            raise ConfigError(f"{module} is not installed: pip install 'curate[web]'")


def is_html(answer: http.Answer, most: int) -> bool:
    """Returns whether what has no type seems to be a page, of at most so many bytes: it begins as one, unpacked."""
    try:
        page = answer.page(most)
    except (http.TooLarge, BadRow):
        return False
    return _HTML.search(page[:_SNIFFED]) is not None


def decoded(data: bytes, declared: str | None) -> tuple[str, str]:
    """Returns the charset of a page and its text: UTF-8 if it is that, whatever is said; then the charset that is
    declared, if the bytes are of it; then what the page says or what its bytes look like. A page of which some bytes
    are of none of these, such as one that is cut off within a character, is UTF-8 if most of its other characters are,
    and else of that charset of these in which the fewest are replaced.

    >>> decoded("é".encode("latin-1"), "utf-8")[1], decoded("é".encode(), "iso-8859-1")[1]
    ('é', 'é')
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16", data.decode("utf-16", "replace")
    known = (map_encoding_to_html5(declared, False) or _UNKNOWN.get(declared.strip().lower())) if declared else None
    said = _possible(known, data)
    if said is not None and said in _WIDE:
        return said, data.decode(said, "replace")
    try:
        # Of seven bits, too, is what changes its alphabet.
        if not (_ESCAPE in data and (said or detect_encoding(data, from_html_meta=True)) == "iso2022_jp"):
            return "utf-8", data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    # What a page says of itself is looked for only where nothing, or something wrong, was said of it.
    guesses: tuple[Callable[[], str | None], ...] = (
        lambda: said,
        partial(detect_encoding, data, from_html_meta=True),
        partial(detect_encoding, data),
    )
    names: list[str] = []
    for guess in guesses:
        name = _possible(guess(), data)
        if name and name != "utf-8":
            try:
                return name, data.decode(_SUPERSETS.get(name, name))
            except UnicodeDecodeError:
                names.append(name)
            except LookupError:
                continue
    text = data.decode("utf-8-sig", "replace")
    if not names or _replaced(text) <= sum(not one.isascii() for one in text) / 2:
        return "utf-8", text
    texts = [(name, data.decode(_SUPERSETS.get(name, name), "replace")) for name in names]
    return min(texts, key=lambda one: _replaced(one[1]))


def _possible(name: str | None, data: bytes) -> str | None:
    """Returns the name of a charset, unless the bytes cannot be of it: in UTF-16 each letter of a tag has a zero, on
    one side of it, where an ASCII page has one by mistake now and then."""
    if name not in _WIDE:
        return name
    upper, lower = (data[1::2], data[::2]) if name == "utf-16-le" else (data[::2], data[1::2])
    return name if lower.count(0) < upper.count(0) >= len(upper) / _NARROW else None


def _replaced(text: str) -> int:
    return text.count("\ufffd")


def _resiliparse(options: Mapping[str, Any]) -> Callable[[str], tuple[str | None, str]]:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    def extracted(html: str) -> tuple[str | None, str]:
        tree = HTMLTree.parse(html)
        title = tree.title
        return title or None, extract_plain_text(tree, **options)

    return extracted


def _trafilatura(options: Mapping[str, Any]) -> Callable[[str], tuple[str | None, str]]:
    from resiliparse.parse.html import HTMLTree
    from trafilatura import extract
    from trafilatura.deduplication import LRU_TEST

    def extracted(html: str) -> tuple[str | None, str]:
        LRU_TEST.clear()
        return HTMLTree.parse(html).title or None, extract(html, **options) or ""

    return extracted


_FUNCTIONS = {RESILIPARSE: _resiliparse, TRAFILATURA: _trafilatura}


def _encodable(text: str) -> str:
    # As Arrow holds texts: lone surrogates are none.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
