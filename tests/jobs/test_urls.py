"""The job that keeps pages by their URL: each list with its reason, in order; lists and columns that do not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.testing.local import run_local
from jobs import urls
from jobs.urls import Urls
from tests.job.inline import refusing, run_job, write_jsonl

LISTS = {
    "keep_domains": "example.com\nbad.org\nshop.co.uk\nother.net\n8.8.8.8\nwww.kept.de\n",
    "block_domains": "bad.org\nads.example.com\n",
    "block_urls": "https://example.com/Blocked\n",
    "block_words": "sex\n",
    "soft_words": "hot\ngirl\nwild\n",
    "block_parts": "hard core\n",
}
URLS = {
    "https://www.example.com/page": None,
    "https://www.kept.de/": None,
    "https://kept.de/": urls.NOT_KEPT,
    "http://bad.org.uk/": urls.NOT_KEPT,
    "http://8.8.8.8/sex": urls.WORD,
    "HTTP://A.BAD.ORG./": urls.DOMAIN,
    "https://ads.example.com/sex": urls.HOST,
    "https://x.ads.example.com/": None,
    "https://example.com/Blocked": urls.URL,
    "https://example.com/blocked": None,
    "https://example.com/a-sex-b": urls.WORD,
    "https://example.com/Sex": None,
    "https://example.com/sexy": None,
    "https://shop.co.uk/hot/girl?sex": urls.WORD,
    "https://shop.co.uk/hot/girl": urls.SOFT_WORDS,
    "https://shop.co.uk/hot/hot-hot": None,
    "https://other.net/xHARD-core": urls.PART,
}


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("lists")
    for name, text in LISTS.items():
        (folder / name).write_text(text)
    return {name: str(folder / name) for name in LISTS}


def test_each_list_has_its_reason_and_the_first_decides(lists: dict[str, str]) -> None:
    ran = run_local(Urls(**lists), [{"url": url, "n": n} for n, url in enumerate(URLS)])
    assert [row["url"] for row in ran.rows] == [url for url, reason in URLS.items() if reason is None]
    assert ran.table.column_names == ["url", "n"]
    reasons = [reason for reason in URLS.values() if reason]
    assert ran.summary.books.dropped == {reason: reasons.count(reason) for reason in set(reasons)}
    assert ran.summary.books.balanced


def plain(url: str) -> str | None:
    """What the lists above but the first make of a URL, in plain Python."""
    host = re.sub(r"^https?://", "", url).split("/")[0]
    split = set(re.split("[^a-zA-Z0-9]+", url))
    if host.endswith("bad.org"):
        return urls.DOMAIN
    if host == "ads.example.com":
        return urls.HOST
    if url == "https://example.com/Blocked":
        return urls.URL
    if "sex" in split:
        return urls.WORD
    if len(split & {"hot", "girl", "wild"}) > 1:
        return urls.SOFT_WORDS
    return urls.PART if "hardcore" in re.sub("[^a-z0-9]", "", url.lower()) else None


HOSTS = ["bad.org", "a.bad.org", "ads.example.com", "example.com", "hardcore.net", "hot.girl.de", "8.8.8.8"]
PATHS = st.lists(
    st.sampled_from(["sex", "hot", "girl", "wild", "Blocked", "HARD", "core", "-", "/", "_", "é"]), max_size=6
)
ADDRESSES = st.tuples(st.sampled_from(["http", "https"]), st.sampled_from(HOSTS), PATHS.map("".join))


@given(st.lists(ADDRESSES.map(lambda one: f"{one[0]}://{one[1]}/{one[2]}"), max_size=20))
def test_the_same_as_plain_python(lists: dict[str, str], addresses: list[str]) -> None:
    job = Urls(**{name: path for name, path in lists.items() if name != "keep_domains"})
    job.setup()
    first: list[str | None] = [None] * len(addresses)
    for reason, failed in job.failed(pa.array(addresses, pa.string())):
        first = [one or (reason if fails else None) for one, fails in zip(first, failed, strict=True)]
    assert first == [plain(url) for url in addresses]


@pytest.mark.parametrize("size", [1, 4096])
def test_the_same_whatever_the_batches(lists: dict[str, str], size: int) -> None:
    rows = [{"url": url} for url in URLS]
    assert run_local(Urls(**lists, batch_size=size), rows).table == run_local(Urls(**lists), rows).table


def test_a_row_without_a_url_is_set_aside(lists: dict[str, str]) -> None:
    rows = [{"url": None}, {"url": "https://example.com/"}, {"url": ""}]
    ran = run_local(Urls(block_words=lists["block_words"]), rows)
    assert [row["url"] for row in ran.rows] == ["https://example.com/", ""]
    assert [one["reason"] for one in ran.quarantine] == ["url is null"]


def test_no_row_is_no_error(lists: dict[str, str]) -> None:
    assert run_local(Urls(**lists), pa.table({"url": pa.array([], pa.string())})).rows == []


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("block_domains", b"", "line 1: the file has no entry"),
        ("keep_domains", b"a.de\nhttp://b.de\n", "line 2: expected one domain or host a line"),
        ("block_urls", b"a.de/b\n", "line 1: expected one whole URL a line"),
        ("block_words", b"\xff\xfe", "line 1: is not UTF-8"),
        ("soft_words", b"a,b\n", "line 1: expected one word a line"),
        ("block_parts", b"\x00", "line 1: is binary data, not text"),
    ],
)
def test_a_list_of_the_wrong_shape_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    """Before anything is written, so that the mended list is that of the same job."""
    path = tmp_path / "list.txt"
    path.write_bytes(data)
    with refusing(f"{path}, {message}"):
        run_local(Urls(**{name: str(path)}), [{"url": "https://a.de/"}])
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"url": "https://a.de/"}])
    with refusing(f"{path}, {message}"):
        run_job(Urls(**{name: str(path)}), tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"address": "https://a.de"}],
            "no column 'url'; there are address. Another one is chosen with url_column=...",
        ),
        ([{"url": 1}], "column 'url' is int64, expected text. Another one is chosen with url_column=..."),
    ],
)
def test_a_column_that_is_missing_or_no_text_is_refused(
    lists: dict[str, str], rows: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    """Before anything is written, so that another column is one of the same output."""
    write_jsonl(tmp_path / "in" / "a.jsonl", rows)
    with refusing(message):
        run_job(Urls(block_words=lists["block_words"]), tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_makes_no_sense_is_refused(lists: dict[str, str]) -> None:
    with refusing("no list is given, so every row would be kept; give one of --keep-domains, --block-domains"):
        run_local(Urls, [{"url": "https://a.de/"}])
    with refusing("--max-soft-words -1 would keep no URL; give 0 or more"):
        run_local(Urls(soft_words=lists["soft_words"], max_soft_words=-1), [{"url": "https://a.de/"}])
    with refusing("does not exist"):
        run_local(Urls(block_words=lists["block_words"] + "s"), [{"url": "https://a.de/"}])
