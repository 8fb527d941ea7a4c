"""What a file of TOML may have that other files do not."""

from __future__ import annotations

from pathlib import Path

from curate.chain.chain import Chain
from curate.chain.file import read_steps
from curate.chain.run import digest_of
from tests.chain.chains import CHAIN, place, predicted

__all__ = ["place"]


def test_a_byte_order_mark_says_nothing(tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain.toml", tmp_path / "marked.toml"
    plain.write_text(CHAIN)
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert read_steps(str(marked)) == read_steps(str(plain))


def test_whole_numbers_of_any_size(place: Path) -> None:
    """As a job takes them; two that differ are two."""
    digests = set()
    for number in (4, 2**63, 2**64, 2**64 + 1, -(2**63) - 1, 10**400):
        (place / "pipeline.toml").write_text(CHAIN.replace("least = 4", f"least = {number}"))
        chain = Chain.read(place / "pipeline.toml")
        assert predicted(chain)
        digests.add(digest_of(chain.steps))
    assert len(digests) == 6
