"""A job killed before and after every single storage operation, one after the other, and run again.

To storage, after one operation is before the next, so the quick tests do one side.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.harness import (
    CURATION,
    Place,
    Zygote,
    balanced,
    corpus,
    executions,
    job_summary,
    outputs,
    strangers,
    totals,
)

SIZES = (120, 3, 0)


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_killed_at_every_operation_and_run_again(place: Place, tmp_path: Path, when: str) -> None:
    """Wherever the kill hits: the rerun ends complete with the same bytes, names and books; at most the one shard at
    hand is begun once more; nothing lies under the output prefix but outputs and the ledger, at no time; and the run
    after that finds nothing to do."""
    source = place.write("in", corpus(sizes=SIZES))
    common = ("--backend", "inline", "--json", "--input", source)
    with Zygote(tmp_path / "zygote", place.env) as zygote:
        trace = tmp_path / "trace"
        whole = zygote.run(CURATION, *common, "--output", f"{place.root}/whole", "--trace", str(trace))
        assert whole.code == 0, whole.err
        expected, kept = place.objects("whole"), totals(whole.json)
        assert balanced(kept["rows"])
        begun = executions(trace).total()
        operations = zygote.operations(CURATION, *common, "--output", f"{place.root}/count")
        assert operations > 30

        for number in range(operations):
            name, trace = f"killed-{number}", tmp_path / f"trace-{number}"
            argv = (CURATION, *common, "--output", f"{place.root}/{name}", "--trace", str(trace))
            where = f"{when} operation {number} of {operations}"
            killed = zygote.run(*argv, kill_operation=number, kill_when=when)
            assert killed.code == -9, f"{where}: {killed.code} {killed.err}"
            left = place.objects(name)
            assert set(outputs(left).items()) <= set(outputs(expected).items()), where
            assert not strangers(left), where
            again = zygote.run(*argv)
            assert again.code == 0, f"{where}: {again.err}"
            after = place.objects(name)
            assert outputs(after) == outputs(expected), where
            assert not strangers(after), where
            assert totals(again.json) == kept, where
            assert job_summary(after) == job_summary(expected), where
            assert executions(trace).total() - begun <= 1, f"{where}: {executions(trace)}"
            if number % 4 == 0:
                calls = zygote.run(*argv).json["storage_calls"]
                assert (calls["list"], calls["put"], calls["delete"]) == (2, 0, 0), f"{where}: {calls}"
