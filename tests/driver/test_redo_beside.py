"""A run beside one that replaces outputs which are out of date: it takes nothing away that these will name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from curate.ledger.summary import RunState
from curate.observe.verify import verify
from curate.storage.protocol import Store
from curate.stores.faulty import FaultyStore
from curate.stores.open import wrap_stores
from tests.job.inline import everything, quarantined, run_job, write_jsonl
from tests.resume.test_removal import Parted

CHANGES = ("publish", "replace", "delete")


class Before(FaultyStore):
    """Has something happen once, before the `at`th change to an output."""

    def __init__(self, inner: Store, at: list[int], act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._at, self._act = at, act

    def _call(self, operation: str, uri: str, *how: Any) -> Any:
        if operation in CHANGES and "heartbeat" not in uri:
            self._at[0] -= 1
            if not self._at[0]:
                self._act()
        return super()._call(operation, uri, *how)


def rows(name: str, bad: str) -> list[dict[str, str]]:
    return [{"id": f"{name}{k}", "text": "ok"} for k in range(3)] + [{"id": bad, "text": "bad"}]


@pytest.mark.parametrize("options", [{}, {"allow_concurrent": True}], ids=["plain", "helps"])
def test_rows_set_aside_stay(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whenever the other one looks: they are published before the output that names them. What is left of the old
    input goes at the end."""
    ran = 0
    for at in itertools.count(1):
        source, out = tmp_path / f"{at}" / "in", tmp_path / f"{at}" / "out"
        for name in "ab":
            write_jsonl(source / f"{name}.jsonl", rows(name, f"bad {name}"))
        assert run_job(Parted(), source, out).state is RunState.COMPLETE
        write_jsonl(source / "a.jsonl", rows("a", "another"))
        left = [at]

        def other(source: Path = source, out: Path = out) -> None:
            nonlocal ran
            ran += 1
            assert run_job(Parted(), source, out, **options).state is RunState.COMPLETE

        with wrap_stores(lambda store, left=left, other=other: Before(store, left, other)):  # type: ignore[misc]
            ended = run_job(Parted(), source, out, redo_stale=True)
        assert ended.state is RunState.COMPLETE
        if left[0] > 0:
            break
        assert verify(str(out)).findings == [], at
        assert sorted(orjson.loads(row["row"])["id"] for row in quarantined(out)) == ["another", "bad b"], at
        assert len([one for one in everything(out) if one.startswith("_curate/quarantine/")]) == 2, at
    assert ran > 5
