"""For tests of jobs and of stores: a local run in three lines, faults on a store, a clock that does not wait.

    from curate.testing import Fault, faulty_stores, run_local

    def test_it_scores():
        ran = run_local(Toxicity(threshold=0.7), [{"id": "1", "body": "you are great"}])
        assert ran.table.column("toxicity").to_pylist() == [0.0]

    def test_it_survives_a_store_that_fails_now_and_then():
        with faulty_stores(Fault("publish", nth=3, when="after"), rate=0.01, seed=7):
            assert run_local(Toxicity(), rows).summary.state == "complete"

    class TestMyStore(StoreContract):
        @pytest.fixture
        def place(self, tmp_path):
            return StorePlace(f"{tmp_path}/root/", lambda: MyStore())

Importing it takes no pytest; using `StoreContract` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curate.storage.faults import Fault, Faults, When, kill, lost, parse_faults
    from curate.stores.faulty import FaultyStore
    from curate.testing.clock import FakeClock
    from curate.testing.contract import StoreContract, StorePlace
    from curate.testing.local import LocalRun, run_local
    from curate.testing.stores import faulty_stores

_HOME = {
    # a job, run here
    "run_local": "curate.testing.local",
    "LocalRun": "curate.testing.local",
    # time
    "FakeClock": "curate.testing.clock",
    # a store that fails
    "FaultyStore": "curate.stores.faulty",
    "faulty_stores": "curate.testing.stores",
    "Fault": "curate.storage.faults",
    "Faults": "curate.storage.faults",
    "When": "curate.storage.faults",
    "kill": "curate.storage.faults",
    "lost": "curate.storage.faults",
    "parse_faults": "curate.storage.faults",
    # a store of one's own
    "StoreContract": "curate.testing.contract",
    "StorePlace": "curate.testing.contract",
}

__all__ = [
    "FakeClock",
    "Fault",
    "Faults",
    "FaultyStore",
    "LocalRun",
    "StoreContract",
    "StorePlace",
    "When",
    "faulty_stores",
    "kill",
    "lost",
    "parse_faults",
    "run_local",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'curate.testing' has no attribute {name!r}")
    home = _HOME[name]
    if home == "curate.testing.contract":
        # Before it is imported, so that its assertions show what they compared.
        import_module("pytest").register_assert_rewrite(home)
    return getattr(import_module(home), name)
