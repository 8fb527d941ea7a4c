"""A job of very many shards, planned, run, looked at and run again: time and memory of each phase, a process each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson

from .common import Report, expect

MOST_BYTES_A_SHARD = 150
"""Target: 1.5 GB for ten million."""
STATUS_S = 2.0
"""Target, beyond the listing of outputs."""
RERUN = 1.3
"""Target: of the listings."""
PHASES = ("run", "listings", "listing", "status", "quick", "rerun")


@dataclass(frozen=True)
class Conditions:
    """How a job of very many shards is made up."""

    shard_s: float
    """What a shard is said to take."""
    listed: str
    """Where inputs and outputs are: `disk`, or `made-up`."""
    page_s: float
    """What a page of a listing that is made up takes."""


def measure_shards(report: Report, scratch: Path, counts: tuple[int, ...], how: Conditions, *, as_json: bool) -> None:
    """Goes through all phases for each number of shards. Where pages take a while, as those of a bucket do, what counts
    is the time; else the CPU, which is all that the machine gives."""
    found = {count: _phases(scratch / "shards", count, how) for count in counts}
    measure, kind = ("seconds", "time") if how.page_s else ("cpu_s", "CPU")
    click.echo(f"{'shards':>12}  {'phase':<10}{'seconds':>9}{'CPU':>9}{'peak MB':>9}{'bytes a shard':>15}")
    for count, phases in found.items():
        for name, one in phases.items():
            grown = one["peak_bytes"] - one["base_bytes"]
            click.echo(
                f"{count:>12,}  {name:<10}{one['seconds']:>9.1f}{one['cpu_s']:>9.1f}{one['peak_bytes'] / 1e6:>9.0f}"
                f"{grown / count:>15.0f}"
            )
        most = max((one["peak_bytes"] - one["base_bytes"]) / count for one in phases.values())
        report.target(
            f"{count:,}: memory a shard", f"{most:.0f} B", f"{MOST_BYTES_A_SHARD} B", most <= MOST_BYTES_A_SHARD
        )
        beyond_s = phases["status"][measure] - phases["listing"][measure]
        says = f"{count:,}: {kind} of status beyond the listing of outputs"
        report.target(says, f"{beyond_s:.2f} s", f"{STATUS_S} s", beyond_s <= STATUS_S)
        ratio = phases["rerun"][measure] / phases["listings"][measure]
        says = f"{count:,}: {kind} of the rerun, to that of both listings"
        report.target(says, f"{ratio:.2f} x", f"{RERUN} x", ratio <= RERUN)
    if as_json:
        click.echo(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS).decode())


def _phases(folder: Path, count: int, how: Conditions) -> dict[str, dict[str, Any]]:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    found = {}
    for phase in PHASES:
        program = [sys.executable, str(Path(__file__).with_name("shards_run.py")), phase, str(count), str(folder)]
        program += [str(how.shard_s), how.listed, str(how.page_s)]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{' '.join(program)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
        found[phase] = orjson.loads(done.stdout.splitlines()[-1])
        _expect_done(phase, count, found[phase])
    shutil.rmtree(folder)
    return found


def _expect_done(phase: str, count: int, said: Mapping[str, Any]) -> None:
    """Raises ClickException where a phase did not go through all shards: it would be a fast one."""
    wanted: dict[str, dict[str, Any]] = {
        "run": {"state": "complete", "total": count, "skipped": 0},
        "rerun": {"state": "complete", "total": count, "skipped": count},
        "status": {"done": count},
        "quick": {"done": count},
    }
    for name, value in wanted.get(phase, {}).items():
        expect(f"{phase}: {name}", said.get(name), value)
    # Beside the outputs, the ledger lies there.
    least = {"listings": 2 * count, "listing": count}.get(phase, 0)
    expect(f"{phase}: at least {least:,} objects were listed", said.get("objects", 0) >= least, True)
