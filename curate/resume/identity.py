"""Refuses a job whose identity, or code, is not that of the output that is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.errors import ConfigError
from curate.keywords import option, start_over
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.ledger.run_log import other_python
from curate.log import get_logger
from curate.resume.differences import EXCHANGE, Stages, identity_difference
from curate.resume.options import RunOptions
from curate.sources.listing import ledger_above
from curate.stage.job_record import JobRecord
from curate.units import shell_word


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
