"""Made-up URLs, and what curate's job and datatrove's filter decide of each: by each list alone, and by all at once.

They differ by design on hosts with capitals, which datatrove compares as they are spelt, and on hosts that are no
registered domains: IP addresses, and names below a top domain that nobody knows. datatrove has no domain and no host
for these, so a list cannot name them; curate compares them as hosts. A few of these are among the URLs, and are shown.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from datatrove.data import Document  # type: ignore[import-not-found, unused-ignore]
from datatrove.pipeline.filters import URLFilter  # type: ignore[import-not-found, unused-ignore]
from tldextract import TLDExtract  # type: ignore[import-not-found, unused-ignore]

from comparisons.common import agreement
from curate.jobs import urls
from curate.jobs.urls import Urls

THEIRS = {
    urls.DOMAIN: "domain",
    urls.HOST: "subdomain",
    urls.URL: "url",
    urls.WORD: "hard_blacklisted",
    urls.SOFT_WORDS: "soft_blacklisted",
    urls.PART: "blacklisted_subword",
}
LISTS = {
    "block_domains": ("extra_domains", [urls.DOMAIN, urls.HOST]),
    "block_urls": ("extra_urls", [urls.URL]),
    "block_words": ("banned_words", [urls.WORD]),
    "soft_words": ("soft_banned_words", [urls.SOFT_WORDS]),
    "block_parts": ("banned_subwords", [urls.PART]),
}
"""Our lists, what theirs are called, and our reasons."""
SUFFIXES = ["com", "org", "de", "co.uk", "com.br", "github.io", "blogspot.com", "tokyo.jp", "co.jp", "info"]
ODD_HOSTS = ["8.8.8.8", "[2001:db8::1]", "EXAMPLE.com", "localhost", "intranet.local"]
MOST = 20_000


class UrlWriter:
    """Writes URLs, and lists that have some of their domains, hosts, words and parts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = [self._name() for _ in range(2_000)]
        self.domains = [f"{name}.{self.random.choice(SUFFIXES)}" for name in self.names]
        self.vocabulary = [self._name() for _ in range(400)]
        self.urls: list[str] = []

    def _name(self) -> str:
        return "".join(self.random.choices("abcdefghijklmnopqrstuvwxyz", k=self.random.randint(3, 9)))

    def url(self) -> str:
        """Returns a URL: of any host, and sometimes with a user, a port, capitals or signs."""
        pick = self.random
        host = pick.choice(self.domains)
        if pick.random() < 0.6:
            host = f"{pick.choice(['www', 'a.b', 'ads', 'm'])}.{host}"
        if pick.random() < 0.1:
            host = pick.choice([f"{host}.", f"user:word@{host}", f"{host}:8080"])
        words = [self.word() for _ in range(pick.randint(0, 6))]
        path = "".join(pick.choice(["/", "-", "_", ".", "%20", "?q=", "&", "é"]) + word for word in words)
        return f"{pick.choice(['http', 'https', 'https', 'HTTPS'])}://{host}/{path}"

    def word(self) -> str:
        word = self.random.choice(self.vocabulary)
        change = self.random.random()
        return word.upper() if change < 0.05 else word + self.random.choice(self.vocabulary) if change < 0.2 else word

    def lists(self, made: list[str]) -> dict[str, list[str]]:
        """Returns lists that each drop some of these URLs."""
        pick = self.random
        whole = pick.sample(self.domains, 120)
        some = [f"{sub}.{one}" for sub in ("www", "a.b", "ads") for one in pick.sample(self.domains, 240)]
        return {
            "block_domains": [*whole, *some, *map(str.lower, ODD_HOSTS[:3])],
            "block_urls": ["https://example.com/", *pick.sample(made, len(made) // 20)],
            "block_words": pick.sample(self.vocabulary, 12),
            "soft_words": pick.sample(self.vocabulary, 60),
            "block_parts": [a[-2:] + b[0] for a, b in zip(self.vocabulary[:24], self.vocabulary[24:48], strict=True)],
        }


def compared(count: int, seed: int) -> list[dict[str, Any]]:
    """Returns for each reason how often both say the same with its list alone, and the reasons of all lists at once."""
    writer = UrlWriter(seed)
    made = [writer.url() for _ in range(count - count // 5_000)]
    made += [f"http://{writer.random.choice(ODD_HOSTS)}/" for _ in range(count - len(made))]
    lists = writer.lists(made)
    found = []
    for name, (_, alone) in LISTS.items():
        ours, theirs = reasons(made, {name: lists[name]}), filtered(made, {name: lists[name]})
        for reason in alone:
            mine, other = [one == reason for one in ours], [one == THEIRS[reason] for one in theirs]
            found.append(agreement(f"url: {reason}", made, mine, other, 0))
    mine = [THEIRS[one] if one else None for one in reasons(made, lists)]
    found.append(agreement("url: the reason, with all lists", made, mine, filtered(made, lists), 0))
    return found


def reasons(made: list[str], lists: dict[str, list[str]]) -> list[str | None]:
    """Returns for what curate's job drops each URL."""
    first: list[str | None] = [None] * len(made)
    for reason, failed in ready(lists).failed(pa.array(made, pa.string())):
        first = [one or (reason if fails else None) for one, fails in zip(first, failed, strict=True)]
    return first


def ready(lists: dict[str, list[str]]) -> Urls:
    """Returns the job with these lists, set up."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, name) for name in lists}
        for name, path in paths.items():
            path.write_text("".join(f"{one}\n" for one in lists[name]))
        job = Urls(**{name: str(path) for name, path in paths.items()})
        job.setup()
    return job


def their_filter(lists: dict[str, list[str]]) -> Any:
    """Returns datatrove's filter with these lists, and the suffix list that its package carries."""
    made = URLFilter(use_integrated_lists=False, **{LISTS[name][0]: lists[name] for name in lists})
    made.tldextractor = TLDExtract(suffix_list_urls=())
    return made


def filtered(made: list[str], lists: dict[str, list[str]]) -> list[str | None]:
    """Returns for what datatrove drops each URL."""
    one = their_filter(lists)
    answers = [one.filter(Document(text="", id="", metadata={"url": url})) for url in made]
    return [None if answer is True else answer[1] for answer in answers]


def rate(seed: int) -> dict[str, Any]:
    """Returns how many URLs a second both decide about with all lists, by the processor's time."""
    writer = UrlWriter(seed)
    made = [writer.url() for _ in range(MOST)]
    lists = writer.lists(made)
    job, other = ready(lists), their_filter(lists)
    seconds = {"curate": 0.0, "datatrove": 0.0}
    for _ in range(2):
        before = time.process_time()
        for start in range(0, MOST, 1_000):
            for _one in job.failed(pa.array(made[start : start + 1_000], pa.string())):
                pass
        between = time.process_time()
        for url in made:
            other.filter(Document(text="", id="", metadata={"url": url}))
        seconds = {"curate": between - before, "datatrove": time.process_time() - between}
    return {"set": "url", **{who: MOST / taken for who, taken in seconds.items()}}
