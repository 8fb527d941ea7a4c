"""Texts in Parquet that are not UTF-8, which Arrow reads as they are: they cost themselves, in every job over texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.job.job import Job
from jobs.decontaminate import Decontaminate
from jobs.dedup_exact import DedupExact
from jobs.dedup_minhash import DedupMinhash
from jobs.langid import LangId
from jobs.paragraphs import Paragraphs
from jobs.pii import Pii
from jobs.quality import Quality
from jobs.shuffle import Shuffle
from jobs.tokens import Tokenize
from jobs.toxicity import Toxicity
from jobs.urls import Urls
from tests.job.inline import quarantined
from tests.support.tiny_tokenizers import byte_level

GOOD = b"https://example.com/the-quick-brown-fox jumps over the lazy dog"
BAD = [b"\xff\xfe", GOOD + b"\xc3", b"\xed\xa0\x80 half a surrogate", b"\xc0\x80", b"\xf5\x80\x80\x80"]
TEXTS = [GOOD, *BAD, None]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    texts = pa.array(TEXTS, pa.binary()).view(pa.string())
    # The second file has texts as a dictionary, which is read otherwise.
    for name, dictionary in (("a", False), ("b", True)):
        ids = [f"{name}{number}" for number in range(len(TEXTS))]
        table = pa.table({"id": ids, "text": texts})
        pq.write_table(table, folder / f"{name}.parquet", use_dictionary=dictionary)
    (folder / "evaluation.jsonl").write_bytes(orjson.dumps({"text": " ".join(f"w{n}" for n in range(20))}))
    (folder / "domains.txt").write_text("blocked.com\n")
    return folder


def ran(job: Job, source: Path, output: Path) -> tuple[Any, set[str]]:
    """Returns the books of a run, and the ids that are left."""
    summary = job.run(input=f"{source}/*.parquet", output=str(output), backend="inline")
    assert summary.state == "complete"
    assert summary.books.rows_in == 2 * len(TEXTS)
    return summary.books, {one for file in output.glob("*.parquet") for one in pq.read_table(file)["id"].to_pylist()}


@pytest.mark.parametrize("job", [LangId, Pii, Quality, Tokenize, Toxicity, Urls], ids=lambda one: one.__name__)
def test_rows_whose_text_is_judged_are_set_aside(job: type[Job], source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"annotate": True} if job is Quality else {}
    if job is Tokenize:
        options = {"tokenizer": str(byte_level(tmp_path / "tokenizer.json"))}
    if job is Urls:
        options = {"url_column": "text", "block_domains": str(source / "domains.txt")}
    books, left = ran(job(**options), source, tmp_path / "out")
    reasons = sorted(row["reason"].removeprefix("column ").replace("'", "") for row in quarantined(tmp_path / "out"))
    assert reasons == ["text is not UTF-8"] * 10 + ["text is null"] * 2
    assert (left, books.quarantined) == ({"a0", "b0"}, 12)


@pytest.mark.parametrize(
    ("job", "options"),
    [
        (DedupMinhash, {}),
        (DedupMinhash, {"drop_by": "component"}),
        (DedupMinhash, {"unit": "character"}),
        (Paragraphs, {}),
        (Paragraphs, {"unit": "sentences"}),
        (Decontaminate, {"sets": ["evaluation.jsonl"]}),
    ],
    ids=lambda one: str(one) if isinstance(one, dict) else one.__name__,
)
def test_rows_that_are_compared_stay_and_are_counted(
    job: type[Job], options: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    if "sets" in options:
        options = {"sets": [str(source / one) for one in options["sets"]]}
    books, left = ran(job(**options), source, tmp_path / "out")
    assert books.counters["texts that are not UTF-8"] == 10
    assert {f"{name}{number}" for name in "ab" for number in range(1, 6)} <= left
    assert books.quarantined == 0


@pytest.mark.parametrize("exact", [True, False])
def test_copies_to_the_letter_are_found(exact: bool, source: Path, tmp_path: Path) -> None:
    """What cannot be read is compared byte by byte, and is never like a null, or like what else cannot be read."""
    _, left = ran(DedupExact(normalise=not exact), source, tmp_path / "out")
    assert left == {f"a{number}" for number in range(len(TEXTS))}


def test_rows_that_pass_through_stay_as_they_are(source: Path, tmp_path: Path) -> None:
    ran(Shuffle(shards=1), source, tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.parquet")
    table = pq.read_table(file).sort_by("id")
    assert table["text"].combine_chunks().view(pa.binary()).to_pylist() == TEXTS * 2
