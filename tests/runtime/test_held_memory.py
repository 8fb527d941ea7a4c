"""Rules of what a process says it held."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest

from curate.runtime import held_memory
from curate.runtime.held_memory import HeldMemory

MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")


@pytest.fixture(autouse=True)
def _at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_memory, "LOOK_S", 0.0)
    monkeypatch.setattr(held_memory, "SHARED_S", 0.0)


def test_a_peak_between_two_looks_is_told_once() -> None:
    """However short it was."""
    held = HeldMemory()
    held.begin()
    base = held.look()
    assert base > 0
    taken = bytearray(200 * MIB)
    del taken
    assert 180 * MIB < held.look() - base < 230 * MIB
    assert abs(held.look() - base) < 20 * MIB


def test_what_was_before_does_not_count() -> None:
    taken = bytearray(200 * MIB)
    del taken
    held = HeldMemory()
    held.begin()
    first = held.look()
    taken = bytearray(100 * MIB)
    assert first + 80 * MIB < held.look() < first + 150 * MIB
    del taken


def test_files_that_are_mapped_do_not_count(tmp_path: Path) -> None:
    """They are there once for all processes of a machine."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(200 * MIB))
    held = HeldMemory()
    held.begin()
    base = held.look()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[at] for at in range(0, len(mapped), mmap.PAGESIZE)) == 0
        assert held.look() < base + 20 * MIB


def test_what_is_shared_with_the_process_it_was_forked_from_does_not_count() -> None:
    """Such as what a module has loaded; until it is changed. Each has its part of it."""
    loaded = bytearray(b"x") * (200 * MIB)
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        held = HeldMemory()
        held.begin()
        first = held.look()
        loaded[::4096] = bytes(len(loaded[::4096]))
        os.write(theirs, f"{first} {held.look()}".encode())
        os._exit(0)
    first, then = map(int, os.read(ours, 100).split())
    os.waitpid(pid, 0)
    base = HeldMemory()
    base.begin()
    assert abs(base.look() / 2 - first) < 30 * MIB
    assert then - first > 80 * MIB


def test_looks_are_rare_and_the_next_one_tells_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(held_memory, "LOOK_S", 0.1)
    monkeypatch.setattr(held_memory.time, "monotonic", lambda: now_s)
    held = HeldMemory()
    held.begin()
    taken = bytearray(200 * MIB)
    del taken
    now_s = 0.05
    assert held.look() == 0
    now_s = 0.2
    assert held.look() > 180 * MIB


@pytest.mark.parametrize("lacks", ["_STATUS", "_FORGET"])
def test_nothing_is_told_where_the_system_does_not(lacks: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(held_memory, lacks, str(tmp_path / "none" / "such"))
    held = HeldMemory()
    held.begin()
    assert held.look() == 0
