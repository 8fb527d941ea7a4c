"""A working folder that was removed is said in a line, wherever a program asks for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from curate.cli.chain import recipe_main
from curate.cli.main import main
from curate.errors import ConfigError
from curate.folders.working import naming_lost_folder
from curate.job.job import Job
from jobs.fineweb import FineWeb

GONE = "works in was removed; change to one that exists"


class Plain(Job):
    """Passes rows on."""

    version = "1"

    def process(self, batch: object) -> object:
        return batch


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the test works in, which is no more."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    return folder


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize(
    "words", ["status out", "page out", "head out", "forget out", "report out", "logs out", "replay out --shard a"]
)
def test_a_command_says_it_in_a_line(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["curate", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n"), GONE in said) == (2, 1, True)


@pytest.mark.usefixtures("gone")
def test_a_job_says_it_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["plain.py", "-i", "in", "-o", "out", "--backend", "inline"])
    with pytest.raises(SystemExit) as ended:
        Plain.main()
    assert (ended.value.code, GONE in capsys.readouterr().err) == (2, True)


@pytest.mark.usefixtures("gone")
def test_a_recipe_says_it_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fineweb.py", "-i", "in", "-o", "out", "--shards", "2"])
    with pytest.raises(SystemExit) as ended:
        recipe_main(FineWeb)
    assert (ended.value.code, GONE in capsys.readouterr().err) == (2, True)


def test_another_file_that_is_not_there_is_another_matter(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), naming_lost_folder():
        (tmp_path / "nowhere").read_bytes()


@pytest.mark.usefixtures("gone")
def test_it_is_the_cause_where_a_path_was_relative() -> None:
    with pytest.raises(ConfigError, match=GONE), naming_lost_folder():
        Path("nowhere").absolute()
