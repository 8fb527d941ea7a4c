"""Compares the identity of a job with that of an existing output, and shows the differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from curate.errors import ConfigError
from curate.keywords import option, start_over
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.ledger.run_log import other_python
from curate.log import get_logger
from curate.resume.options import RunOptions
from curate.resume.shown import apart, readable
from curate.sources.listing import ledger_above
from curate.stage.job_record import JobRecord
from curate.units import shell_word

Stages = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
"""Returns the stages of a job as its `job.json` has them, with the seed that is there."""
EXCHANGE = "exchange"
"""The part of an identity that says which exchange comes before a stage, and at its end what that reads."""
_DRAWING = ("random_sample", "train_test_split")
"""Steps that draw a seed of 64 bits where none is given."""
_FEWEST_DRAWN = 1 << 32
"""Hardly any that is drawn is lower, or one that is given as high."""


def job_of(
    record: JobRecord,
    ledger: Ledger,
    listing: OutputListing,
    *,
    before_last: bool = False,
    is_new: bool = False,
    stages: Stages = lambda _: (),
) -> dict[str, Any]:
    """Returns `job.json`: as it is there, refused if it is another job's, or as it is to be. `before_last`: it is that
    of a stage which others read. `is_new`: if it is not there, the job is refused inside of another one's output."""
    if listing.has_job:
        job = ledger.read_job()
        refuse_other_job(record, ledger, job, stages=stages)
        return job
    if is_new and (above := ledger_above(ledger.root.rpartition("/")[0], ledger.store)):
        raise ConfigError(
            f"the output {ledger.root} lies in {above}, the output of another job: who reads that would read these "
            "rows, too; choose one beside it"
        )
    # A plan of such a stage came late: meanwhile another driver had completed the job, and removed the stage. It holds,
    # for the stage is called by what decides it.
    if listing.plan_parts and not before_last:
        raise ConfigError(
            f"{ledger.uri(layout.PLAN)} holds a plan, but {ledger.uri(layout.JOB)} is missing; the ledger was "
            f"damaged from outside: choose another output, or {start_over()}"
        )
    return {
        "format_version": layout.FORMAT_VERSION,
        "job": record.name,
        "fingerprint": record.fingerprint,
        "identity": dict(record.identity),
        "parameters": dict(record.parameters),
        "sides": sorted(record.sides),
        "code_digest": record.code_digest,
        "format": record.format.value,
        "codec": record.codec,
        "suffix": record.suffix,
    }


def accepted_code(
    record: JobRecord,
    options: RunOptions,
    ledger: Ledger,
    listing: OutputListing,
    job: Mapping[str, Any],
    *,
    done: int,
    idle: bool,
) -> str:
    """Guards a job of declared version, of `done` outputs: its code may not change, unless a run is `idle`, with none.

    Returns the digest that this run accepts and the ledger does not know yet.
    """
    recorded = job["code_digest"]
    if not recorded or recorded == record.code_digest or record.code_digest in listing.accepted:
        return ""
    if idle:
        get_logger(job=record.name).warning(
            "the job's code changed under the same version; its outputs are those of the old code",
            output=ledger.root,
            next=f"raise `version` and use another output, or {start_over()}, if the change matters"
            + other_python(ledger),
        )
        return ""
    if not options.accept_code_change:
        go_on = f"Go on with {option('accept_code_change')}"
        raise ConfigError(
            f"the code of {record.name!r} changed (digest {recorded} before, {record.code_digest} now), but not its "
            f"version, and {ledger.root} is unfinished: "
            + (
                f"new outputs may not fit the existing ones. {go_on}, or raise `version` and {start_over()}."
                if done
                else f"no shard is done yet. {go_on}, unless another driver runs the code as it was."
            )
            + other_python(ledger)
        )
    return record.code_digest


def refuse_other_job(
    record: JobRecord, ledger: Ledger, job: Mapping[str, Any], *, raced: bool = False, stages: Stages = lambda _: ()
) -> None:
    """Raises ConfigError, with both sides of the difference, if `job` has another identity than `record`; `raced`: it
    was begun after this run had looked, by a driver that is likely at work."""
    if job["fingerprint"] != record.fingerprint:
        theirs, ours = job["identity"], dict(record.identity)
        root, name = ledger.root, job["job"]
        found = f"{root} already contains output of {name!r}"
        found = f"another driver began {name!r} in {root} meanwhile," if raced else found
        see = f"once it has ended (curate status {shell_word(root)}), " if raced else ""
        values = f"Run with {'its' if raced else 'the old'} values"
        if is_by_code(theirs) and is_by_code(ours) and theirs["version"] != ours["version"]:
            values = (
                "The code is another one, and a job without `version` is known by its code; with a `version` in the "
                f"class, later fixes go on with {option('accept_code_change')}.\nPut the code back"
            )
        raise ConfigError(
            f"{found} with another identity ({job['fingerprint']}, this one is {record.fingerprint}):\n"
            + identity_difference(theirs, ours, lambda: (job.get("stages", ()), stages(job)))
            + f"\n{values}, choose another output, or {see}{start_over()}."
            + (other_python(ledger) if _code(theirs) != _code(ours) else "")
        )


def is_by_code(identity: Mapping[str, Any]) -> bool:
    """Returns whether a job has no version of its own: a digest of its code stands for it.

    >>> is_by_code({"version": "1"}), is_by_code({"version": "code 54a18494993f61dd"})
    (False, True)
    """
    return str(identity.get("version")).startswith("code ")


def _code(identity: Mapping[str, Any]) -> list[Any]:
    version = identity["version"] if is_by_code(identity) else ""
    return [identity.get("operators"), identity.get(EXCHANGE), version]


def identity_difference(
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    stages: Callable[[], tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = lambda: ((), ()),
) -> str:
    """Returns both sides of every difference, one a line; of what an exchange reads, that of the stages of both.

    >>> print(identity_difference({"version": "1", "a": 1}, {"version": "2", "a": 1}))
      version: made with '1', you asked for '2'
    """
    lines = list[str]()
    for key in sorted({*theirs, *ours}):
        there, here = theirs.get(key), ours.get(key)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            for name in sorted({*there, *here}):
                lines += _differences(f"{key}.{name}", there, here, name)
        elif key == EXCHANGE and theirs and ours and _read_other(there, here):
            is_sliced = len(theirs[key]) > 2  # of what was sliced the steps are known, and no stage is
            steps = _differences("steps before the exchange", theirs[key], ours[key], -1) if is_sliced else []
            told = steps or _stage_differences(*stages())
            lines += told or ["  what the exchange reads is another: its inputs, or a step before it"]
        elif key == EXCHANGE and isinstance(there, list) and isinstance(here, list):  # what they read is told by a hash
            lines += _differences(key, {key: there[:-1]}, {key: here[:-1]}, key)
        else:
            lines += _differences(key, theirs, ours, key)
    return "\n".join(lines)


def _stage_differences(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the differences of the first stage that is another; none where that is not known, as earlier versions did
    not tell it, or where there is another number of stages."""
    pairs = list(zip(theirs, ours, strict=False)) if len(theirs) == len(ours) else []
    for there, here in pairs:
        made, asked = there.get("identity"), here.get("identity")
        if isinstance(made, Mapping) and isinstance(asked, Mapping) and made != asked:
            found = identity_difference(made, asked)
            return [f"  in a step before the exchange, {here['name']}:", *(f"  {one}" for one in found.splitlines())]
    return []


def _read_other(theirs: Any, ours: Any) -> bool:
    """Returns whether two exchanges are the same, but for the stages that come before them."""
    both = [isinstance(one, list) and len(one) > 1 for one in (theirs, ours)]
    return all(both) and bool(theirs[:-1] == ours[:-1]) and bool(theirs[-1] != ours[-1])


def _differences(name: str, theirs: Any, ours: Any, key: Any) -> list[str]:
    """Returns a line for each difference of what two have by a key."""
    has = [not isinstance(one, Mapping) or key in one for one in (theirs, ours)]
    if all(has):
        there, here = theirs[key], ours[key]
        if there == here:
            return []
        if file := _changed_file(name, there, here):
            return [file]
        parts, seeds = list(apart(name, there, here)), list(_drawn_seeds(there, here))
    else:  # one that is not there is not None
        told = [
            repr(readable(one[key])) if there else "nothing" for one, there in zip((theirs, ours), has, strict=True)
        ]
        parts, seeds = [(name, told[0], told[1])] if any(has) else [], []
    return [*(f"  {part}: made with {there}, you asked for {here}" for part, there, here in parts), *seeds]


def _drawn_seeds(theirs: Any, ours: Any) -> Iterator[str]:
    """Yields a line for each step that had no seed, of which each run of a script draws another one."""
    for one, other in zip(theirs, ours, strict=False) if isinstance(theirs, list) and isinstance(ours, list) else ():
        if isinstance(one, list) and isinstance(other, list) and one[:1] == other[:1] and one and one[0] in _DRAWING:
            seeds = [both for both in zip(one, other, strict=False) if both[0] != both[1]]
            if len(seeds) == 1 and all(isinstance(seed, int) and seed >= _FEWEST_DRAWN for seed in seeds[0]):
                yield f"  without a seed, {one[0]} draws one each time: seed={seeds[0][0]} keeps the rows of before"


def _changed_file(name: str, theirs: Any, ours: Any) -> str:
    """Returns the line for assets whose files were written again; empty for any other difference."""
    lists = isinstance(theirs, list) and isinstance(ours, list)
    pairs = list(itertools.zip_longest(theirs, ours)) if lists else [(theirs, ours)]
    assets = [isinstance(one, Mapping) and one.keys() == {"uri", "generation"} for pair in pairs for one in pair]
    if not all(assets) or any(one["uri"] != other["uri"] for one, other in pairs):
        return ""
    told = [
        f"{one['uri']} was written again since (generation {one['generation']} before, {other['generation']} now)"
        for one, other in pairs
        if one != other
    ]
    return f"  {name}: {', '.join(told)}"
