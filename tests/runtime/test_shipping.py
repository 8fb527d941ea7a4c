"""Code that travels to workers by value."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from curate.runtime import shipping


def test_a_module_that_was_replaced_or_forgotten_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may be loaded from its file again in one process: the last one counts, and only while it is there."""
    monkeypatch.setattr(shipping, "BY_VALUE", [])
    monkeypatch.setattr(shipping, "FOLDERS", [])
    first, second = ModuleType("travels"), ModuleType("travels")
    for module in (first, second):
        monkeypatch.setitem(sys.modules, "travels", module)
        shipping.ship(module, "/jobs")
        assert shipping.shipped() == [module]
    assert shipping.FOLDERS == ["/jobs"]
    monkeypatch.delitem(sys.modules, "travels")
    assert shipping.shipped() == []


CACHED = """
import functools, sys, threading
import curate

LOCK = threading.Lock()

@functools.lru_cache(maxsize=7, typed=True)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def nested():
    @functools.cache
    def square(n):
        return n * n
    return square

square = nested()

def told(row):
    return {"fib": fib(row["id"]), "square": square(row["id"]), "how": str(fib.cache_parameters())}

def locked(row):
    with LOCK:
        return row

if __name__ == "__main__":
    rows = curate.range(5).map(told).using(backend=sys.argv[1]).take_all()
    assert [row["fib"] for row in rows] == [0, 1, 1, 2, 3], rows
    assert [row["square"] for row in rows] == [0, 1, 4, 9, 16], rows
    assert {row["how"] for row in rows} == {"{'maxsize': 7, 'typed': True}"}, rows
    try:
        curate.range(5).map(locked).using(backend=sys.argv[1]).take_all()
    except curate.ConfigError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "backend", ["local", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.ray_lane, pytest.mark.nightly])]
)
def test_what_a_script_defines_is_consumed_on_workers(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that remembers what it gave travels as any other, though Python calls it by a name that leads nowhere
    there; what cannot be sent is refused with its name, as for a write."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    (tmp_path / "script.py").write_text(CACHED)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = [sys.executable, "script.py", backend]
    ended = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("what this dataset does cannot be sent to worker processes: cannot pickle"), (
        ended.stdout
    )
    assert "(it is LOCK in locked); make that where it is used" in ended.stdout


def test_what_can_be_imported_is_sent_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the one there, with what it remembers; unless its module travels, or something else has its name now."""
    assert pickle.loads(shipping.pickle_value(remembers)) is remembers
    module = sys.modules[__name__]
    with monkeypatch.context() as patch:
        patch.setattr(module, "remembers", None)
        assert pickle.loads(shipping.pickle_value(KEPT))(2) == 4
    with monkeypatch.context() as patch:
        patch.setattr(shipping, "BY_VALUE", [module])
        again = pickle.loads(shipping.pickle_value(remembers))
        cloudpickle.unregister_pickle_by_value(module)
        assert again is not remembers
        assert again(3) == 6


@functools.cache
def remembers(number: int) -> int:
    return 2 * number


KEPT = remembers
