"""Outputs of tokens that are damaged: verifying says so, and what it tells to do makes them as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from curate.cli.head import show_head
from curate.errors import ConfigError
from curate.ledger import layout
from curate.objects.record import OF_TOKENS
from curate.observe.verify import DAMAGED, OK, verify
from tests.job.inline import run_job, write_jsonl

pytest.importorskip("tokenizers")

from jobs.tokens import Tokenize
from tests.support.tiny_tokenizers import END, byte_level

Rerun = Callable[[], Path]


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Rerun]:
    """Returns what makes an output of that format of two files, and again."""
    tokenizer = str(byte_level(tmp_path / "tokenizer.json"))
    for name in "ab":
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"id": k, "text": f"{name} dog" * k} for k in range(4)])

    def of(format: str) -> Rerun:
        def run() -> Path:
            job = Tokenize(tokenizer=tokenizer, end_token=END, format=format)
            assert run_job(job, tmp_path / "in", tmp_path / "out").state == "complete"
            return tmp_path / "out"

        run()
        return run

    return of


def files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def damaged(data: bytes, places: range) -> list[bytes]:
    """Returns bytes with one bit flipped at these places, cut there, and with something behind."""
    flipped = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in places]
    return [*flipped, *(data[:at] for at in places[:: len(places) // 3]), data + b"\n", data * 2]


@pytest.mark.parametrize(
    ("format", "name", "step"), [("datatrove", "a.ds.metadata", 1), ("mds", layout.INDEX, 17)], ids=["datatrove", "mds"]
)
def test_what_other_files_are_known_by(format: str, name: str, step: int, made: Callable[[str], Rerun]) -> None:
    """The checksums of files that carry no record, and the index that readers of MDS find all outputs by."""
    run = made(format)
    out = run()
    before, path = files(out), out / name
    lines = before[name].rfind(b"\n") + 1 or len(before[name])
    for data in damaged(before[name], range(0, lines, step)):
        path.write_bytes(data)
        assert verify(str(out)).state == DAMAGED
    for data in (b"", before[name][: lines // 2], before[name].replace(b"2", b"x"), b"{}"):
        path.write_bytes(data)
        report = verify(str(out))
        assert {one.object.partition(".")[0] for one in report.findings} == {name.partition(".")[0]}
        for remove in {name for one in report.findings for name in one.remove}:
            (out / remove).unlink()
        run()
        assert (files(out), verify(str(out)).state) == (before, OK)


def test_an_index_that_is_gone(made: Callable[[str], Rerun]) -> None:
    """Readers find no output without it; the next run makes it."""
    run = made("mds")
    out = run()
    (out / layout.INDEX).unlink()
    assert [(one.kind, one.object) for one in verify(str(out)).findings] == [("missing", layout.INDEX)]
    assert verify(str(run())).state == OK


@pytest.mark.parametrize("format", OF_TOKENS)
def test_their_rows_are_not_shown(format: str, made: Callable[[str], Rerun]) -> None:
    """Only readers of the format have them, which is said."""
    with pytest.raises(ConfigError, match=f"was written as {format}: only readers of its format have its rows"):
        show_head(str(made(format)()), 5, columns=None, shard=None, side=None, as_json=False)
