"""Nodes of several kinds join and vanish under a running job with a pool and an exchange."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_exchange import files
from tests.support.harness import ROOT, Driver, Place, check_same, run, totals, wait_until
from tests.support.nodes import Fleet, begun, fleet, looks

pytestmark = [pytest.mark.slow, pytest.mark.ray_lane]
NOMAD = "tests/e2e/jobs/nomad.py"


@pytest.fixture
def nodes() -> Iterator[Fleet]:
    with fleet(ROOT) as made:
        yield made


@pytest.mark.nightly
def test_nodes_come_and_go_under_a_job(nodes: Fleet, local: Place, tmp_path: Path) -> None:
    """It says what it waits for while there is no worker, and while none has the chips of its pool. The head gets no
    task, and a draining node no other one. The bytes are those of an undisturbed run, and no more work is done twice
    than was going on where nodes vanished."""
    source, trace, hold = local.write("in", files(18, 100)), tmp_path / "trace", tmp_path / "hold"
    common = [NOMAD, "--json", "--input", source]
    errors = tmp_path / "errors"
    argv = [*common, "--output", f"{local.root}/out", "--trace", str(trace), "--hold", str(hold), "--chips", "2"]
    argv += ["--pause-s", "0.3", "--target-task-seconds", "0.001"]

    def running(what: str) -> set[str]:
        """Returns the nodes on which a look of a kind goes on."""
        open_now = {}
        for one in looks(trace):
            open_now[one.what, one.pid] = one
            if not one.begun:
                del open_now[one.what, one.pid]
        return {one.node for one in open_now.values() if one.stage == what}

    def held(what: str, where: set[str]) -> None:
        """Returns once there are looks of a kind on these nodes that do not end; some before them did."""
        wait_until(lambda: running(what) >= where, "nodes are at work")

    for what in ("map", "reduce"):
        Path(f"{hold}-{what}").write_text("3")
    with Driver(argv, nodes.env, errors=errors) as driver:
        wait_until(lambda: "no node" in errors.read_text(), "it says that no node can hold what it needs")
        small, large = nodes.add("small"), nodes.add("large")
        tpu = nodes.add("tpu")
        held("map", {small.node_id, large.node_id})
        nodes.drain(small)
        more = nodes.add("large")
        # Whoever knows of a node that came later knows that one drains.
        held("map", {more.node_id})
        before = len(looks(trace))
        nodes.kill(large)
        Path(f"{hold}-map").unlink()
        held("reduce", {more.node_id})
        assert not [one for one in looks(trace)[before:] if one.begun and one.node == small.node_id]
        nodes.kill(small)
        nodes.kill(more)
        nodes.add("small")
        Path(f"{hold}-reduce").unlink()
        ended = driver.end()
    assert ended.code == 0, errors.read_text()
    assert nodes.head_id not in {one.node for one in looks(trace)}
    assert {one.node for one in looks(trace) if one.stage == "actor"} == {tpu.node_id}
    quiet = tmp_path / "quiet"
    whole = run(*common, "--backend", "inline", "--output", f"{local.root}/whole", "--trace", str(quiet))
    assert whole.code == 0, whole.err
    expected, found = local.objects("whole"), local.objects("out")
    check_same(found, expected)
    assert totals(ended.json) == totals(whole.json)
    assert begun(trace).keys() == begun(quiet).keys()
    assert begun(trace).total() - begun(quiet).total() <= nodes.lost(trace)
    assert re.search(r"TPU", errors.read_text())
