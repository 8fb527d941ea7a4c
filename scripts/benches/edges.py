"""Which rows are dropped of very many pairs that are alike, within a memory budget.

The edges have a chain of a million rows, one component of ten million, and small cliques; rows lie anywhere in 400
shards, in a random order, but for the chain, whose every decision depends on the one before. What is measured is the
part of deduplication that depends on all of them: edges as they are found, in Parquet files, to marks of the rows that
are dropped. Memory is what a process has allocated, its imports among that: run files are mapped, and their pages are
the kernel's to take back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import curate
from curate.dedup.alike import edges_schema
from curate.dedup.choice import Choice
from curate.dedup.clusters import Clusters, Members
from curate.dedup.near import COMPONENT, DROPS, VERIFIED, NearDedup
from curate.exchange.row_ids import ROW_BITS
from curate.plan.nodes import Exchanged
from curate.units import GIB, format_bytes

from .common import Report, expect, once, runs_folder, tree_cpu_s
from .memory import anonymous_bytes, descendants, sampled
from .rivals import complete
from .rows import CODEC

FILES = 64
SHARDS = 400
CLIQUE = 5
CHAIN, COMPONENT_ROWS, DEGREE = 1 / 50, 1 / 5, 3
"""Rows of the chain and of the large component, to all edges; and edges of each row of that to rows before it."""
BUDGET_BYTES = GIB
ROWS = pa.schema([("text", pa.string()), ("id", pa.int64())])


@dataclass(frozen=True)
class Graph:
    """Edges between numbered rows, each from the earlier to the later one."""

    u: Any
    v: Any
    rows: int
    components: int


def graph(edges: int, seed: int = 0) -> Graph:
    """Returns a graph of about so many edges.

    >>> made = graph(5000)
    >>> len(made.u), made.rows, made.components
    (4996, 2050, 192)
    """
    random = np.random.default_rng(seed)
    chain, component = int(edges * CHAIN), int(edges * COMPONENT_ROWS)
    own = np.repeat(np.arange(1, component), DEGREE)
    inside = (random.random(len(own)) * own).astype(np.int64)
    cliques = max(1, (edges - chain - len(own)) // (CLIQUE * (CLIQUE - 1) // 2))
    a, b = np.triu_indices(CLIQUE, 1)
    first = np.arange(cliques)[:, None] * CLIQUE
    rows = chain + component + cliques * CLIQUE
    place = random.permutation(rows)
    # Of a chain each row comes after the one that it is like.
    place[:chain] = np.sort(place[:chain])
    one = np.concatenate([np.arange(chain - 1), chain + inside, chain + component + (first + a).ravel()])
    other = np.concatenate([np.arange(1, chain), chain + own, chain + component + (first + b).ravel()])
    ends = place[one], place[other]
    order = random.permutation(len(one))
    return Graph(np.minimum(*ends)[order], np.maximum(*ends)[order], rows, 2 + cliques)


def places(numbers: Any, rows: int) -> Any:
    """Returns the ids of rows by their numbers: as many in each shard."""
    each = -(-rows // SHARDS)
    return (numbers // each << ROW_BITS) + numbers % each


def edge_files(folder: Path, drop: str, made: Graph) -> Path:
    """Writes edges as they are found, unless they are there."""

    def make() -> None:
        schema = edges_schema(NearDedup("text", "id", drop=drop), ROWS)
        each = -(-len(made.u) // FILES)
        for number in range(FILES):
            u, v = made.u[number * each : (number + 1) * each], made.v[number * each : (number + 1) * each]
            columns = {
                "__place": places(v, made.rows),
                "__other": places(u, made.rows),
                "__similarity": 0.8 + (u * 31 + v) % 200 / 1000,
                "__class": np.ones(len(u), np.int32),
                "__id": v,
                "__other_class": np.ones(len(u), np.int32),
                "__other_id": u,
            }
            table = pa.table([pa.array(columns[name]) for name in schema.names], schema=schema)
            pq.write_table(table, folder / f"part-{number:05d}.parquet", compression=CODEC)

    return once(folder, make)


class Processes:
    """Looks at what this process and all below it have allocated."""

    def look(self) -> dict[str, int]:
        """Returns bytes by process."""
        return {f"{pid}": anonymous_bytes(pid) for pid in self._pids()}

    def _pids(self) -> Iterator[int]:
        # This process holds the graph, to check what comes out.
        yield from (pid for pid, _ in descendants(os.getpid()))


def check(drop: str, made: Graph, marks: Path) -> None:
    """Holds marks against the edges: each dropped row is dropped for one that is kept, and is like it; no two rows
    that are kept are alike. So it is what a walk over the rows decides. Of components one row each is kept.
    """
    table = pads.dataset(marks, format="parquet").to_table(columns=["__place", "__kept_id"])
    each = -(-made.rows // SHARDS)
    ids = table["__place"].to_numpy()
    dropped = (ids >> ROW_BITS) * each + (ids & ((1 << ROW_BITS) - 1))
    kept_for = table["__kept_id"].to_numpy()
    kept = np.ones(made.rows, bool)
    kept[dropped] = False
    expect("rows that are marked twice", len(dropped) - int((~kept).sum()), 0)
    expect("rows that are dropped for one that is dropped", int((~kept[kept_for]).sum()), 0)
    expect("rows that are dropped for a later one", int((kept_for >= dropped).sum()), 0)
    if drop == COMPONENT:
        expect("rows that are kept", int(kept.sum()), made.components)
        return
    expect("pairs of rows that are both kept", int((kept[made.u] & kept[made.v]).sum()), 0)
    known, asked = np.sort(made.u * made.rows + made.v), kept_for * made.rows + dropped
    unlike = known[np.minimum(np.searchsorted(known, asked), len(known) - 1)] != asked
    expect("rows that are dropped for one that they are not like", int(unlike.sum()), 0)


def measure_edges(report: Report, scratch: Path, edges: int, drops: Sequence[str] = DROPS) -> None:
    """Measures these ways to drop rows."""
    made = graph(edges)
    click.echo(
        f"{len(made.u):,} edges between {made.rows:,} rows: a chain of {int(edges * CHAIN):,}, a component of "
        f"{int(edges * COMPONENT_ROWS):,}, {made.components - 2:,} cliques of {CLIQUE}; {os.cpu_count()} CPUs"
    )
    for drop in drops:
        near = NearDedup("text", "id", drop=drop)
        source = edge_files(scratch / f"edges-{drop}-{len(made.u)}", drop, made)
        plan = curate.read_parquet(source)
        if drop == VERIFIED:
            marked = plan._then(Exchanged((plan._plan,), Choice(near)))
        else:
            joined = Exchanged((plan._plan,), Clusters(near))
            marked = plan._then(Exchanged((joined,), Members(near)))
        with runs_folder(scratch) as runs, sampled(Processes()) as peaks:  # type: ignore[arg-type]
            before, started = sum(tree_cpu_s()), time.perf_counter()
            complete(marked.write_parquet(runs / "marks", codec=CODEC, backend="local"))
            took, cpu = time.perf_counter() - started, sum(tree_cpu_s()) - before
            check(drop, made, runs / "marks")
        most = max(peaks.most.values())
        click.echo(f"{drop}: {took:.0f} s, {cpu:.0f} s of CPU, {len(made.u) / took / 1e6:.2f} million edges/s")
        report.target(
            f"{drop}, memory of the largest process",
            format_bytes(most),
            f"at most {format_bytes(BUDGET_BYTES)}",
            most <= BUDGET_BYTES,
        )
        click.echo(f"  all processes together: {format_bytes(peaks.together)}")
