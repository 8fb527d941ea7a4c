"""A job run in the test's own process: its inputs and output, the shards that it begins, what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from curate.clock import Clock, SystemClock
from curate.graph import inputs, keys, outdated, start
from curate.graph.entry import run
from curate.job import inputs as job_inputs
from curate.ledger.summary import RunState, Summary
from curate.observe.job import read_status
from curate.observe.status import JobStatus
from curate.resume import prepare
from curate.runtime.protocol import PoolSpec, Resources
from curate.storage.protocol import Store
from curate.stores.open import Stores
from tests.e2e.jobs.curation import Curation
from tests.support.harness import Place, balanced, check_same, executions


class NoBackend:
    """A backend that must not be needed."""

    name = "none"

    def start(self, resources: Resources, pools: Sequence[PoolSpec] = ()) -> float:
        raise AssertionError(f"a backend was started for {resources} and {pools}")

    def cancel(self) -> None:
        """Called when a run fails, started or not."""

    def close(self) -> None:
        """Called when a run fails, started or not."""


@dataclass
class Bench:
    """A job's inputs and output, and the shards that its runs began."""

    place: Place
    trace: Path
    source: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def run(self, *, output: str = "out", backend: Any = None, clock: Clock | None = None, **options: Any) -> Summary:
        """Runs the job inline, or on the backend that is given."""
        job = Curation(trace=str(self.trace), **self.parameters)
        given: dict[str, Any] = dict.fromkeys(
            ("limit", "sample", "confirm", "max_failed_shards", "max_in_flight", "display")
        ) | dict.fromkeys(("overwrite", "accept_code_change", "allow_incomplete_input", "handle_signals"), False)
        given |= {"target_task_seconds": 120.0, "backend": "inline"} | options
        made = Curation.options(input=self.source, output=f"{self.place.root}/{output}", **given)
        return run(job.spec(), made, clock=clock, backend=backend)

    def begun(self) -> list[str]:
        """Returns the inputs that were read since the last call, once for each attempt."""
        found = executions(self.trace)
        self.trace.unlink(missing_ok=True)
        return sorted(name.split(":")[0] for name, n in found.items() for _ in range(n))

    def objects(self, output: str = "out") -> dict[str, bytes]:
        """Returns everything under the output prefix."""
        return self.place.objects(output)

    def check_as_fresh(self) -> None:
        """Checks that the output is that of one run from nothing."""
        complete(self.run(output="fresh"))
        check_same(self.objects(), self.objects("fresh"))

    def status(self) -> JobStatus:
        """Returns what `curate status` shows."""
        return read_status(f"{self.place.root}/out", SystemClock().now())


def complete(summary: Summary) -> Summary:
    """Checks what holds for every complete run."""
    assert summary.state is RunState.COMPLETE, summary.failures
    assert summary.done == summary.total
    assert balanced(summary.as_dict()["rows"])
    return summary


def open_in_driver(monkeypatch: pytest.MonkeyPatch, opened: Callable[..., Store]) -> None:
    """From now on, drivers of this process open stores so, and what runs their tasks as ever."""

    class OfDriver(Stores):
        def of(self, uri: str) -> Store:
            scheme = uri.partition("://")[0] if "://" in uri else ""
            if scheme not in self._stores:
                self._stores[scheme] = opened(uri, scratch=self.scratch)
            return self._stores[scheme]

    for module in (start, inputs, keys, outdated, prepare, job_inputs):
        monkeypatch.setattr(module, "Stores", OfDriver)
