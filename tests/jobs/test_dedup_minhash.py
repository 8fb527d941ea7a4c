"""The job of near deduplication."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from curate.dedup.minhash import found_share
from curate.errors import ConfigError
from curate.testing.local import run_local
from jobs import dedup_minhash
from jobs.dedup_minhash import DedupMinhash
from tests.dedup.corpus import corpus
from tests.jobs.test_dedup_exact import deduplicated

WORDS = " ".join(f"w{n}" for n in range(40))
TEXTS = [WORDS, f"{WORDS} x", WORDS.upper() + "!", "short", None, None, "Short."]
ROWS = [{"id": str(n), "text": text, "n": n} for n, text in enumerate(TEXTS)]


def test_the_first_of_each_cluster_is_kept() -> None:
    """All columns are kept; the others are told with the similarity that their n-grams have; nulls are nobody's."""
    ran = run_local(DedupMinhash(), ROWS)
    assert ran.rows == [ROWS[n] for n in (0, 3, 4, 5)]
    told = [(row["id"], row["kept_id"], row["similarity"]) for row in ran.sides["duplicates"].to_pylist()]
    assert told == [("1", "0", 36 / 37), ("2", "0", 1.0), ("6", "3", 1.0)]
    assert ran.summary.books.dropped == {"duplicate": 3}


def test_the_threshold_holds() -> None:
    """A pair below it is none; characters are another measure."""
    strict = run_local(DedupMinhash(threshold=0.98), ROWS)
    assert [row["id"] for row in strict.rows] == ["0", "1", "3", "4", "5"]
    characters = run_local(DedupMinhash(unit="character", threshold=0.9), ROWS)
    assert [row["id"] for row in characters.rows] == ["0", "3", "4", "5", "6"]


def test_what_makes_no_sense_is_refused() -> None:
    """Numbers are looked at before anything runs."""
    with pytest.raises(ConfigError, match=r"threshold is 1\.5, expected more than 0, at most 1"):
        run_local(DedupMinhash(threshold=1.5), ROWS)


@pytest.mark.slow
def test_the_script_itself_finds_what_was_made_a_copy(tmp_path: Path) -> None:
    """Of 20 % exact and 10 % near copies at least 99 % go, and at least 99 % of what goes is a copy."""
    summary = deduplicated("dedup_minhash.py", tmp_path, "--backend", "inline")
    kept = set(pq.read_table(tmp_path / "out")["id"].to_pylist())
    copies = {row for row, origin in corpus(2_000, 7, seed=5, words=100).origin.items() if row != origin}
    dropped = set(range(2_000)) - kept
    assert summary["rows"]["dropped"] == {"duplicate": len(dropped)}
    assert len(dropped & copies) >= 0.99 * len(copies)
    assert len(dropped & copies) >= 0.99 * len(dropped)


def test_the_table_of_the_docstring() -> None:
    """What it says that bands find is what the curve gives, rounded."""
    lines = [line.split() for line in (dedup_minhash.__doc__ or "").splitlines() if line.endswith("%")]
    assert len(lines) == 3
    for bands, _, _, rows, *shares in lines:
        told = [float(one) for one in shares if one != "%"]
        similarities = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
        assert told == [round(100 * found_share(one, int(bands), int(rows)), 1) for one in similarities]
