"""Folders of one user in places that all share: nobody else can put anything there, and what is there was not put there
by anybody else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from curate.errors import ConfigError
from curate.folders import private


@pytest.fixture(params=[private.SCRATCH, private.CACHE])
def variable(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the two kinds of folders, by its variable, in a folder for temporaries of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(request.param, raising=False)
    return str(request.param)


def test_each_user_has_a_folder(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default; what is named is what is used."""
    mine = private.place(variable)
    assert Path(mine).parent == tmp_path
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert private.place(variable) != mine
    monkeypatch.setenv(variable, f"{tmp_path}/a/../b/")
    assert private.place(variable) == f"{tmp_path}/b"


@pytest.mark.parametrize("named", [True, False])
def test_what_is_made_is_for_its_owner_alone(
    variable: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parents too, and with a umask that forbids nothing."""
    if named:
        monkeypatch.setenv(variable, f"{tmp_path}/deep/er/place")
    before = os.umask(0)
    try:
        made = private.private(f"{private.place(variable)}/a/b", variable)
    finally:
        os.umask(before)
    assert Path(made).is_dir()
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")} == {"0o700"}
    assert private.is_private(made, variable)


def _linked(path: Path) -> None:
    (path.parent / "theirs").mkdir()
    path.symlink_to("theirs")


def _open_to_group(path: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


def _open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o1777)


def _file(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("plant", [_linked, _open_to_group, _open_to_all, _file])
@pytest.mark.parametrize("below", ["", "/a"], ids=["itself", "below"])
@pytest.mark.parametrize("named", [True, False])
def test_what_others_could_have_put_there_is_refused(
    variable: str, plant: object, below: str, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link, a folder that others may write to, a file: which one, and what to do; nothing is made or changed."""
    if named:
        monkeypatch.setenv(variable, f"{tmp_path}/named")
    path = Path(private.place(variable) + below)
    if below:
        private.private(str(path.parent), variable)
    plant(path)  # type: ignore[operator]
    before = sorted((str(one), one.lstat().st_mode) for one in tmp_path.rglob("*"))
    for look in (private.private, private.is_private):
        with pytest.raises(ConfigError, match=rf"{path} .*Next: .*{variable}"):
            look(str(path), variable)
    with pytest.raises(ConfigError, match=str(path)):
        private.private(f"{path}/x/y", variable)
    assert sorted((str(one), one.lstat().st_mode) for one in tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser may give a folder away")
@pytest.mark.parametrize("below", ["", "/a"], ids=["itself", "below"])
def test_a_folder_of_somebody_elses_is_refused(variable: str, below: str) -> None:
    """Whatever its mode."""
    path = Path(private.place(variable) + below)
    path.mkdir(parents=True, mode=0o700)
    path.parent.chmod(0o700)
    os.chown(path, 4711, 4711)
    with pytest.raises(ConfigError, match=rf"{path} belongs to user id 4711, and this is 0.*{variable}"):
        private.private(str(path), variable)


def test_a_default_folder_that_others_may_list_is_closed(variable: str) -> None:
    """It was made under a umask."""
    path = Path(private.place(variable))
    path.mkdir(mode=0o755)
    private.private(str(path), variable)
    assert path.stat().st_mode & 0o777 == 0o700


def test_nothing_is_made_to_look(variable: str, tmp_path: Path) -> None:
    """Who only looks leaves no folder."""
    assert not private.is_private(f"{private.place(variable)}/a", variable)
    assert list(tmp_path.iterdir()) == []
