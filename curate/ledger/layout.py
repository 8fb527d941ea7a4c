"""All names under `<output>/_curate/`. Readers ignore them because of the leading `_`.

job.json                      create-only: name, version, identity, fingerprint, code digest, schemas, format version
plan/00000.parquet ...        shards; append-only, create-only; a later row of the same id replaces an earlier one,
                              and takes the shard out of the job if its kind is `removed`
plan/00000-00255-<hash>.parquet ...  the same rows as the parts up to that one, of which the hash tells; may be missing
accepted/<digest>             code digests that a user accepted under an unfinished job
runs/<run-id>/run.json        who, where, when, command line, versions
runs/<run-id>/heartbeat.json  the only mutable object
runs/<run-id>/events-000001.jsonl.zst ...
runs/<run-id>/failures/000001.jsonl.zst ...    every failed attempt, whole
runs/<run-id>/logs/<worker>-000001.jsonl.zst ...   what workers logged and printed
runs/<run-id>/notified/asked.json   somebody is to be told how the run goes
runs/<run-id>/notified/end.json, no-progress-<since>.json   create-only: that was posted, and is not posted again
summary.json                  totals; exists if and only if the job is complete
quarantine/<hash>.jsonl.zst   rows set aside; named by the output's record
samples/<hash>.jsonl.zst      some of the rows that a shard, or a stage, dropped; named by the hash of what it is called
inputs/<hash>.parquet         the inputs of a job with an exchange, as it began with them; named by `job.json`
inputs/00001.json ...         create-only: a run that took more inputs: who, how many, and the name of the list of all
replaced/00001-000001.jsonl.zst ...   checksums of the outputs that an overwrite removed, the first one, the second, ...
stages/<key>/                 stages before the last one, each an output with a ledger of its own; see below
tmp/<attempt>/                temporaries of a local store

Stages are files that only this job reads, and that are removed when it is complete. They are kept where all of its
tasks get at them, and the next run finds them: below the output, if that is local, or if there are several machines, or
may be; else, for one in a bucket, in `$CURATE_SCRATCH/<hash of the output's URI>/<key>/`, by default in a folder
of the user's own in the system's folder for temporaries, so that no row goes to the bucket and back.
"""

from __future__ import annotations

import re

from curate.stores.local import TEMPORARY

LEDGER = "_curate"
JOB = f"{LEDGER}/job.json"
SUMMARY = f"{LEDGER}/summary.json"
INDEX = "index.json"
"""What outputs that name each other in one file have beside them, once all of them are there."""
COMPANIONS = {".idx": (".bin",), ".ds.metadata": (".ds", ".ds.index")}
"""Suffixes of outputs of several files, with those of the others. They lie beside the output, and are published first,
in this order."""
BARE = (".ds", ".ds.index")
"""Those of them that carry no record, because their readers take every byte. So the name says whose such a file is: a
shard is planned only where nobody has a file of that name."""
PLAN = f"{LEDGER}/plan/"
RUNS = f"{LEDGER}/runs/"
SCHEMAS = f"{LEDGER}/schema/"
ACCEPTED = f"{LEDGER}/accepted/"
QUARANTINE = f"{LEDGER}/quarantine/"
SAMPLES = f"{LEDGER}/samples/"
TMP = f"{LEDGER}/tmp/"
INPUTS = f"{LEDGER}/inputs/"
REPLACED = f"{LEDGER}/replaced/"
STAGES = f"{LEDGER}/stages/"


FORMAT_VERSION = 1
"""Version of everything under `_curate/`. A ledger of another version is refused."""


_PLAN_PART = re.compile(rf"{re.escape(PLAN)}(\d{{5,}})\.parquet")
_GROWTH = re.compile(rf"{re.escape(INPUTS)}(\d{{5,}})\.json")
_REPLACED = re.compile(rf"{re.escape(REPLACED)}(\d{{5,}})-\d{{6,}}\.jsonl\.zst")
_EVENTS = re.compile(rf"{re.escape(RUNS)}[^/]+/events-\d+\.jsonl\.zst")
_FAILURES = re.compile(rf"{re.escape(RUNS)}[^/]+/failures/\d+\.jsonl\.zst")
_LOGS = re.compile(rf"{re.escape(RUNS)}[^/]+/logs/[^/]+-\d+\.jsonl\.zst")
_RUN = re.compile(rf"{re.escape(RUNS)}([^/]+)/run\.json")
_TOLD = re.compile(rf"{re.escape(RUNS)}([^/]+)/notified/([^/]+)\.json")
_HASH = "[0-9a-f]{16}"
_MERGED = re.compile(rf"{re.escape(PLAN)}0{{5}}-(\d{{5,}})-{_HASH}\.parquet")
_QUARANTINED = re.compile(rf"{re.escape(QUARANTINE)}{_HASH}\.jsonl\.zst")
_SAMPLES = re.compile(rf"{re.escape(SAMPLES)}{_HASH}\.jsonl\.zst")
_SCRATCH = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}|begin-[0-9a-f]{8}")
_KEY = re.compile(_HASH)
_IN_STAGE = re.compile(r"[^_./][^/]*(/[^_./][^/]*)*\.run")
"""A run file: called after what it was made of, which may be a file of any name, in a folder."""
_FOLDER_IN_STAGE = re.compile(r"([^_./][^/]*/)+")
_OWN = re.compile(
    rf"""{LEDGER}/(
        | job\.json | summary\.json
        | plan/(\d{{5,}}(-\d{{5,}}-{_HASH})?\.parquet)?
        | accepted/({_HASH})?
        | schema/((input|side)-[\w-]+\.arrow | output\.arrow)?
        | quarantine/({_HASH}\.jsonl\.zst)?
        | samples/({_HASH}\.jsonl\.zst)?
        | inputs/({_HASH}\.parquet | \d{{5,}}\.json)?
        | replaced/(\d{{5,}}-\d{{6,}}\.jsonl\.zst)?
        | runs/([^/]+/(run\.json | heartbeat\.json | events-\d{{6,}}\.jsonl\.zst
            | failures/(\d{{6,}}\.jsonl\.zst)? | logs/([^/]+-\d{{6,}}\.jsonl\.zst)?
            | notified/((asked|end|no-progress-\d{{8}}T\d{{6}}Z)\.json)?)?)?
        | tmp/(({_SCRATCH.pattern})/({TEMPORARY})?)?
        | stages/
    )""",
    re.VERBOSE,
)
"""Every name that curate gives below its folder of an output, but for those within a stage; those of folders end with a
slash."""


def plan_part(number: int) -> str:
    """Returns the name of a part of the plan.

    >>> plan_part(0)
    '_curate/plan/00000.parquet'
    """
    return f"{PLAN}{number:05d}.parquet"


def plan_part_number(name: str) -> int | None:
    """Returns the number of a part of the plan, None if `name` is not one.

    >>> plan_part_number("_curate/plan/00012.parquet"), plan_part_number("_curate/plan/00012.parquet.bak")
    (12, None)
    """
    found = _PLAN_PART.fullmatch(name)
    return None if found is None else int(found[1])


def merged_parts(last: int, digest: str) -> str:
    """Returns the name of the parts of the plan up to the `last`th, merged; the digest is that of their sizes.

    >>> merged_parts(255, "0123456789abcdef")
    '_curate/plan/00000-00255-0123456789abcdef.parquet'
    """
    return f"{PLAN}{0:05d}-{last:05d}-{digest}.parquet"


def last_merged(name: str) -> int | None:
    """Returns the number of the last part that is merged in this file, None if `name` is not one.

    >>> last_merged(merged_parts(255, "0123456789abcdef")), last_merged("_curate/plan/00255.parquet")
    (255, None)
    """
    found = _MERGED.fullmatch(name)
    return None if found is None else int(found[1])


def run_of(name: str) -> str | None:
    """Returns the id of the run whose `run.json` this is, None if it is not one.

    >>> run_of("_curate/runs/20240101T000000Z-abc123/run.json")
    '20240101T000000Z-abc123'
    """
    found = _RUN.fullmatch(name)
    return None if found is None else found[1]


def run_file(run_id: str, name: str) -> str:
    """Returns the name of a file of a run."""
    return f"{RUNS}{run_id}/{name}"


def told_file(run_id: str, event: str) -> str:
    """Returns the name of the mark that somebody was told of an event of a run, or, `asked`, is to be told of all."""
    return run_file(run_id, f"notified/{event}.json")


def told_of(name: str) -> tuple[str, str] | None:
    """Returns the run and the event of such a mark, None if `name` is not one.

    >>> told_of("_curate/runs/20240101T000000Z-abc123/notified/end.json")
    ('20240101T000000Z-abc123', 'end')
    """
    found = _TOLD.fullmatch(name)
    return None if found is None else (found[1], found[2])


def events_segment(run_id: str, number: int) -> str:
    """Returns the name of a segment of a run's events."""
    return run_file(run_id, f"events-{number:06d}.jsonl.zst")


def failures_segment(run_id: str, number: int) -> str:
    """Returns the name of a segment of a run's failures."""
    return run_file(run_id, f"failures/{number:06d}.jsonl.zst")


def is_failures_segment(name: str) -> bool:
    """Returns whether `name` (relative to the output) is a segment of failures."""
    return _FAILURES.fullmatch(name) is not None


def log_segment(run_id: str, worker: str, number: int) -> str:
    """Returns the name of a segment of what one worker process of a run logged."""
    return run_file(run_id, f"logs/{worker}-{number:06d}.jsonl.zst")


def is_log_segment(name: str) -> bool:
    """Returns whether `name` (relative to the output) is a segment of a worker's log."""
    return _LOGS.fullmatch(name) is not None


def run_id_of(name: str) -> str:
    """Returns the id of the run that a file under `runs/` belongs to.

    >>> run_id_of("_curate/runs/20240101T000000Z-abc123/failures/000001.jsonl.zst")
    '20240101T000000Z-abc123'
    """
    return name[len(RUNS) :].partition("/")[0]


def inputs_of(digest: str) -> str:
    """Returns the name of the inputs that a job began with.

    >>> inputs_of("0a1b")
    '_curate/inputs/0a1b.parquet'
    """
    return f"{INPUTS}{digest}.parquet"


def growth(number: int) -> str:
    """Returns the name of what says that a run took more inputs: the first such run, the second, ...

    >>> growth(1)
    '_curate/inputs/00001.json'
    """
    return f"{INPUTS}{number:05d}.json"


def growth_number(name: str) -> int | None:
    """Returns the number of what says that a run took more inputs, None if `name` is not that.

    >>> growth_number("_curate/inputs/00012.json"), growth_number("_curate/inputs/0123456789abcdef.parquet")
    (12, None)
    """
    found = _GROWTH.fullmatch(name)
    return None if found is None else int(found[1])


def replaced_segment(overwrite: int, number: int) -> str:
    """Returns the name of a segment of the checksums of outputs that an overwrite removed: the first, the second, ...

    >>> replaced_segment(1, 2)
    '_curate/replaced/00001-000002.jsonl.zst'
    """
    return f"{REPLACED}{overwrite:05d}-{number:06d}.jsonl.zst"


def replaced_number(name: str) -> int | None:
    """Returns the number of the overwrite that such a segment is of, None if `name` is not one.

    >>> replaced_number("_curate/replaced/00012-000001.jsonl.zst"), replaced_number("_curate/replaced/12.jsonl.zst")
    (12, None)
    """
    found = _REPLACED.fullmatch(name)
    return None if found is None else int(found[1])


def stage_of(name: str) -> str | None:
    """Returns the key of the stage that a file is part of; None if it is of none.

    >>> stage_of("_curate/stages/0a1b/part-00000-of-00002.run"), stage_of("_curate/job.json")
    ('0a1b', None)
    """
    return name[len(STAGES) :].partition("/")[0] if name.startswith(STAGES) else None


def is_scratch(name: str) -> bool:
    """Returns whether this is what a folder of temporaries is called, in `tmp/`."""
    return _SCRATCH.fullmatch(name) is not None


def is_key(name: str) -> bool:
    """Returns whether this is what the folder of a stage is called."""
    return _KEY.fullmatch(name) is not None


def is_quarantined(name: str) -> bool:
    """Returns whether `name` (relative to the output) is a file of rows that were set aside."""
    return _QUARANTINED.fullmatch(name) is not None


def quarantine_hash(name: str) -> int:
    """Returns the hash that a file of rows that were set aside is called by, as a number; 0 if it is none.

    >>> quarantine_hash("_curate/quarantine/00000000000000ff.jsonl.zst"), quarantine_hash("")
    (255, 0)
    """
    return int(name[len(QUARANTINE) :].partition(".")[0], 16) if is_quarantined(name) else 0


def samples(called: str) -> str:
    """Returns the name of a file of rows that were dropped.

    >>> samples("0123456789abcdef")
    '_curate/samples/0123456789abcdef.jsonl.zst'
    """
    return f"{SAMPLES}{called}.jsonl.zst"


def is_samples(name: str) -> bool:
    """Returns whether `name` (relative to the output) is a file of rows that were dropped."""
    return name.startswith(SAMPLES) and _SAMPLES.fullmatch(name) is not None


def is_own(name: str) -> bool:
    """Returns whether a name below an output, relative to it, is one that curate gives in its own folder there; a
    folder's ends with a slash. Only what has such a name is ever removed. Whoever adds a name adds it here.

    >>> is_own("_curate/plan/00000.parquet"), is_own("_curate/plan/"), is_own("_curate/plan/notes.txt"), is_own("a")
    (True, True, False, False)
    >>> is_own("_curate/stages/0123456789abcdef/_curate/job.json"), is_own("_curate/stages/mine/_curate/job.json")
    (True, False)
    """
    if name.startswith(STAGES) and name != STAGES:
        return is_of_stage(name[len(STAGES) :])
    return _OWN.fullmatch(name) is not None


def is_of_stage(name: str) -> bool:
    """Returns whether a name, relative to the folder of a job's stages, is one that curate gives there.

    >>> is_of_stage("0123456789abcdef/"), is_of_stage("0123456789abcdef/part-00000-of-00002.run"), is_of_stage("a/")
    (True, True, False)
    """
    key, _, own = name.partition("/")
    return is_key(key) and (not own or _IN_STAGE.fullmatch(own) is not None or is_own(own))


def may_hold_runs(name: str) -> bool:
    """Returns whether a name, relative to the folder of a job's stages, is one that a folder of run files may have.

    >>> may_hold_runs("0123456789abcdef/2023/"), may_hold_runs("0123456789abcdef/_mine/"), may_hold_runs("mine/2023/")
    (True, False, False)
    """
    key, _, folder = name.partition("/")
    return is_key(key) and _FOLDER_IN_STAGE.fullmatch(folder) is not None


def in_stage(name: str) -> str:
    """Returns what a file is called within the stage that it is part of; its name, if it is of none.

    >>> in_stage("_curate/stages/0a1b/_curate/job.json"), in_stage("_curate/job.json")
    ('_curate/job.json', '_curate/job.json')
    """
    return name[len(STAGES) :].partition("/")[2] if name.startswith(STAGES) else name


def removal_rank(name: str) -> int:
    """Returns when a file goes of all that is removed of a job, or of its stages: the lowest first.

    Who removes may be killed at any file, and what is left is to be a job that has begun: the summary goes first, which
    says that it is complete; its plan, and then `job.json`, go last, those of the job behind those of its stages.

    >>> [removal_rank(f"_curate/{name}") for name in ("summary.json", "runs/x", "plan/00000.parquet", "job.json")]
    [0, 1, 4, 5]
    >>> [removal_rank(f"_curate/stages/0a1b/_curate/{name}") for name in ("summary.json", "plan/x", "job.json")]
    [0, 2, 3]
    """
    own = in_stage(name)
    rank = 0 if own == SUMMARY else 2 if own.startswith(PLAN) else 3 if own == JOB else 1
    return rank + 2 if rank > 1 and own == name else rank


def removal_order(name: str) -> tuple[int, tuple[int, ...]]:
    """Returns what names are sorted by to be removed: by rank, in the reverse order of names within one, as the newest
    part of a plan needs those before it.

    >>> sorted(["_curate/job.json", "_curate/plan/00000.parquet", "_curate/plan/00001.parquet"], key=removal_order)[0]
    '_curate/plan/00001.parquet'
    """
    return removal_rank(name), tuple(-ord(character) for character in name)


def is_events_segment(name: str) -> bool:
    """Returns whether `name` (relative to the output) is a segment of events."""
    return _EVENTS.fullmatch(name) is not None


HIDDEN = "(^|/)[_.]"
"""What names have of which no reader takes an object for data."""
