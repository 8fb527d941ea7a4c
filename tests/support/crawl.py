"""Web archives of made-up pages, of which each step of a recipe keeps and drops some; all follows from the seed."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from scripts.benches.pages import packed, record, response

BLOCKED = "casino-of-ours.example.org"
"""A host that a list of domains is to have."""
SHARED = "Sign up for our letter and read on Monday what all the others in the town will hear of on Friday at last."
"""A line that many pages have."""
EXAMPLE = (
    "Four painters need nine hours for the fence of the old school, so how many hours do seven of them need if each "
    "third one of these sleeps until noon?"
)
"""An example of an evaluation set, which some pages quote."""
KINDS = {
    "page": 50,
    "mail": 8,
    "copy": 8,
    "same url": 4,
    "quote": 3,
    "shared line": 8,
    "short": 5,
    "german": 8,
    "blocked": 6,
    "missing": 4,
    "picture": 3,
    "empty": 3,
}
"""Kinds of records, and how many of each there are among 110."""
_WORDS = {
    "adj": "old quiet narrow bright broken wooden distant careful nervous golden early bitter local famous strange "
    "heavy modern gentle empty crowded northern patient silver honest sudden ancient proper clever frozen hidden",
    "noun": "bridge market teacher river harbour garden letter winter window doctor village engine painter forest "
    "ladder kitchen station farmer lantern captain mountain library baker orchard captain chapel mirror soldier basket "
    "cottage journey island carpenter tailor meadow violin blanket compass widow merchant tower stable",
    "verb": "found followed painted carried noticed repaired borrowed described watched remembered opened measured "
    "sold visited lost cleaned praised counted wanted crossed guarded bought studied lifted ignored",
    "place": "Ely Bath Wells York Ripon Durham Truro Oxford Leeds Exeter Lincoln Chester Derby Salford Lisburn Newry",
    "time": "Monday Tuesday spring summer autumn winter January August October dawn noon midnight",
    "adverb": "slowly often rarely gladly quickly secretly finally together again alone outside",
}
_SENTENCES = [
    "The {adj} {noun} from {place} {verb} a {noun} with {adj} hands before {time}.",
    "In {place} they {verb} the {noun} {adverb}, and nobody {verb} it until {time}.",
    "She {adverb} {verb} her {noun} because that {adj} {noun} was of no use to a {noun}.",
    "By {time} every {noun} near {place} had {verb} some {adj} {noun}.",
    "There was one {noun} that the {adj} {noun} of {place} {adverb} {verb}.",
    "Who {verb} the {noun} and left such a {adj} {noun} in {place}?",
    "My {noun} {verb} it {adverb}, though our {adj} {noun} said that {time} would be better.",
    "A {noun} is {adj}, but to have a {noun} in {place} is worth more than the {noun} of a {noun}.",
    "They {verb} this {noun} at {time}, when {place} was {adj} and its {noun} {adj}.",
    "It was {adverb} that a {adj} {noun} {verb} what the {noun} had {verb} in {place}.",
]
_GERMAN = [
    "Der alte Mann aus {place} hat gestern seinen Garten verkauft, weil ihm die Arbeit zu schwer geworden ist.",
    "Niemand wusste, warum die Brücke über den Fluss noch immer nicht fertig war, obwohl man seit Jahren daran baute.",
    "Am Abend gingen sie zusammen durch die engen Gassen und sprachen über das Wetter und über ihre Kinder.",
    "Wer im Winter nach {place} fährt, sollte warme Schuhe und ein gutes Buch für die langen Nächte mitnehmen.",
]


@dataclass
class Crawl:
    """Files of records, and what they have."""

    files: dict[str, bytes] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    """Responses by what they are; `broken` are those whose record is."""
    others: int = 0
    """Records that are no responses."""

    @property
    def responses(self) -> int:
        return self.kinds.total()


def crawl(pages: int, files: int, seed: int = 0) -> Crawl:
    """Returns archives of about so many pages in all, of which each has a record that is broken."""
    writer, made = _Writer(random.Random(seed)), Crawl()
    for number in range(files):
        records = list(writer.records(pages // files, made))
        made.files[f"{number % 2}/crawl-{number:04d}.warc.gz"] = packed(records)
    return made


class _Writer:
    def __init__(self, draw: random.Random) -> None:
        self.random = draw
        self.words = {name: words.split() for name, words in _WORDS.items()}
        self.number = 0
        self.before: list[tuple[str, list[str]]] = []
        """URLs and texts of some pages."""

    def records(self, pages: int, made: Crawl) -> Iterator[bytes]:
        kinds = self.random.choices(list(KINDS), list(KINDS.values()), k=pages - 1)
        kinds.insert(self.random.randrange(pages), "broken")
        for kind in kinds:
            made.kinds[kind] += 1
            made.others += 2
            url, one = self._record(kind)
            yield record("request", url, b"GET / HTTP/1.1\r\n\r\n")
            yield one
            yield record("metadata", url, b"fetchTimeMs: 100\r\n")

    def _record(self, kind: str) -> tuple[str, bytes]:
        self.number += 1
        url = f"https://www.site{self.number % 97}.example.com/{self.number}"
        paragraphs = [self._prose(4) for _ in range(self.random.randint(3, 6))]
        known = self.random.choice(self.before) if self.before else (url, paragraphs)
        head, status = "Content-Type: text/html; charset=utf-8", 200
        match kind:
            case "page" if len(self.before) < 500:
                self.before.append((url, paragraphs))
            case "mail":
                paragraphs[1] += " Write to someone@example.com, or to the server 8.8.8.8 itself."
            case "copy":
                paragraphs = [*known[1][:-1], f"{known[1][-1]} {self.random.choice(self.words['adverb'])}."]
            case "same url":
                url = known[0]
            case "quote":
                paragraphs.insert(1, EXAMPLE)
            case "shared line":
                paragraphs.append(SHARED)
            case "short":
                paragraphs = [self._prose(2)]
            case "german":
                paragraphs = [" ".join(self._filled(one) for one in _GERMAN) for _ in range(3)]
            case "blocked":
                url = f"https://{BLOCKED}/{self.number}"
            case "missing":
                status = 404
            case "picture":
                head = "Content-Type: image/png"
            case "empty":
                paragraphs = []
        body = "".join(f"<p>{one}</p>\n" for one in paragraphs)
        title = f"<h1>{self._filled('The {adj} {noun}')}</h1>\n" if paragraphs else ""
        html = f"<!DOCTYPE html><html><head><title>{self.number}</title></head><body>\n<nav><a href='/'>Home</a></nav>"
        html += f"\n<main><article>{title}{body}</article></main>\n</body></html>"
        one = response(url, html.encode(), head, status)
        if self.number % 5:
            name = f"WARC-Record-ID: <urn:uuid:{uuid.UUID(int=self.random.getrandbits(128))}>"
            one = one.replace(b"\r\n", f"\r\n{name}\r\n".encode(), 1)
        if kind == "broken":
            one = one.replace(b"Content-Length: ", b"Content-Length: 9", 1)
        return url, one

    def _prose(self, sentences: int) -> str:
        return " ".join(self._filled(one) for one in self.random.sample(_SENTENCES, sentences))

    def _filled(self, sentence: str) -> str:
        while "{" in sentence:
            before, _, rest = sentence.partition("{")
            name, _, after = rest.partition("}")
            sentence = f"{before}{self.random.choice(self.words[name])}{after}"
        return sentence
