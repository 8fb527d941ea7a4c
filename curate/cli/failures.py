"""Renders what failed in a job: groups of failures, or one shard whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich.text import Text

from curate.cli.terminal import Console, line, moment
from curate.clock import SystemClock
from curate.ledger.failures import Group
from curate.observe.failures import (
    StageFailures,
    read_all_failures,
    read_shard,
    repeatable,
    replay_command,
    retry_command,
)
from curate.observe.job import find_job, read_status
from curate.observe.retries import shards_text
from curate.observe.summary_text import after_code_change
from curate.resume.identity import is_by_code
from curate.storage.uris import normalise
from curate.tasks.events import Outcome
from curate.tasks.shard import Shard, SliceKind
from curate.units import ellipsize, format_bytes, format_count, format_duration, json_line, plain_line, shell_word

SHOWN_GROUPS = 20
SHOWN_REASONS = 3
INDENT = "  "
AGAIN = "run the script of the dataset again: finished shards are skipped"
"""For a job that no command can make."""


def show_failures(output: str, *, everything: bool, as_json: bool) -> int:
    """Prints the failures of a job, grouped by what went wrong. Returns the exit code."""
    stages = read_all_failures(output)
    found = stages[-1].found
    root = found.ledger.root
    pairs = [
        (stage, one) for stage in stages for one in (stage.found.all_groups() if everything else stage.found.groups())
    ]
    groups = [group for _, group in pairs]
    failed = sum(int(stage.found.failed.sum()) for stage in stages)
    if as_json:
        again = bool(groups) and repeatable(found)
        values = [_group_as_dict(root, stage, group, again=again) for stage, group in pairs]
        click.echo(json_line({"output": root, "failed": failed, "groups": values}, default=str))
        return 0
    console = Console(highlight=False)
    line(console, Text.assemble((plain_line(found.job["job"]), "bold"), "  ", plain_line(root)))
    status = read_status(output, SystemClock().now())
    if status.failed and not failed and not everything:
        # It was killed before it wrote down why, or that was removed.
        text = f"{format_count(status.failed, 'shard')} failed, and the ledger does not record why: run the job again"
        line(console, Text(text, "red"))
        return 0
    for one in _heading(failed, groups, status.retrying, everything=everything):
        line(console, Text(one, "red" if failed else ""))
    again = repeatable(found)
    for stage, group in pairs[:SHOWN_GROUPS]:
        line(console, Text())
        _group(console, root, stage, group, again=again)
    if len(groups) > SHOWN_GROUPS:
        line(console, Text(f"\n... and {len(groups) - SHOWN_GROUPS:,} more reasons; --json shows all"))
    if failed:
        line(console, Text())
        _fact(console, "retry", retry_command(root) if again else AGAIN)
        if again and any(group.in_code for group in groups):
            on = after_code_change(by_code=is_by_code(found.job["identity"]))
            _fact(console, "", f"after a change of the job's code: {on}")
    return 0


def _group_as_dict(output: str, stage: StageFailures, group: Group, *, again: bool) -> dict[str, Any]:
    shard = stage.addressed(group.example["shard"])
    told = {"stage": stage.key, "address": shard} if stage.text else {}
    return group.as_dict() | told | {"replay": replay_command(output, shard) if again else None}


def _heading(
    failed: int, groups: list[Group], retrying: Sequence[Mapping[str, Any]], *, everything: bool
) -> Iterator[str]:
    shards = "1 shard has failed" if failed == 1 else f"{failed:,} shards have failed"
    if everything:
        tries = sum(group.attempts for group in groups)
        yield f"{shards}; {tries:,} tries failed in all, {_in_groups(groups)}" if groups else "no try has failed"
    elif failed:
        yield f"{shards}, {_in_groups(groups)}"
    elif not retrying:
        yield "no shard has failed"
    if retrying:
        shards = "" if failed or everything else "no shard has failed for good; "
        yield f"{shards}{shards_text(sum(one['count'] for one in retrying))} {_reasons(retrying)}"


def _reasons(retrying: Sequence[Mapping[str, Any]]) -> str:
    more = f", and {len(retrying) - SHOWN_REASONS:,} other reasons" if len(retrying) > SHOWN_REASONS else ""
    return ", ".join(ellipsize(one["error"]) for one in retrying[:SHOWN_REASONS]) + more


def _in_groups(groups: list[Group]) -> str:
    return "for one reason" if len(groups) == 1 else f"for {len(groups):,} reasons"


def _group(console: Console, output: str, stage: StageFailures, group: Group, *, again: bool) -> None:
    example = group.example
    shard = stage.addressed(example["shard"])
    kinds = ", ".join(kind.replace("_", " ") for kind, _ in group.kinds.most_common())
    tries = "1 try" if group.attempts == 1 else f"{group.attempts:,} tries"
    shards = "1 shard" if group.shards == 1 else f"{group.shards:,} shards"
    line(console, Text.assemble((shards, "bold red"), f", {tries}: {kinds}, last on {moment(group.last)} UTC"))
    _wrapped(console, ellipsize(example.get("error", "")), "bold")
    _own_line(console, example)
    if stage.text:
        _fact(console, "at", plain_line(stage.text))
    _fact(console, "shard", plain_line(shard))
    _fact(console, "input", plain_line(example.get("input", "")))
    _fact(console, "whole", f"curate failures {shell_word(output)} --shard {shell_word(shard)}")
    if again:
        _fact(console, "replay", replay_command(output, shard))


# One shard


def show_shard(output: str, shard_id: str, *, as_json: bool) -> int:
    """Prints every failed try of one shard, the last one with its traceback. Returns the exit code."""
    stage, own = read_shard(output, shard_id)
    found = stage.found
    rank, shard = found.shard(own)
    tries = found.tries(own)
    root, shard_id = normalise(output).rstrip("/"), stage.addressed(own)
    state = "failed" if found.failed[rank] else "done" if found.matched.done[rank] else "not done"
    if as_json:
        slice = {"kind": shard.kind.value, "start": shard.start, "stop": shard.stop}
        value = {"output": root, "shard": shard_id, "state": state, "input": shard.uri, "slice": slice}
        value |= {"stage": stage.key} if stage.text else {}
        again = repeatable(find_job(output))
        commands = {
            "replay": replay_command(root, shard_id) if again else None,
            "retry": retry_command(root) if again else None,
        }
        click.echo(json_line({**value, "tries": tries, **commands}, default=str))
        return 0
    console = Console(highlight=False)
    colour = {"done": "green", "failed": "red"}.get(state, "yellow")
    line(console, Text.assemble((plain_line(shard_id), "bold"), "  ", (state, colour)))
    _fact(console, "job", f"{plain_line(found.job['job'])}  {plain_line(root)}")
    if stage.text:
        _fact(console, "at", plain_line(stage.text))
    _fact(console, "input", plain_line(shard.uri))
    _fact(console, "slice", _slice_text(shard))
    if not tries:
        line(console, Text("no try of it has failed"))
    for equal in _equal_tries(tries):
        line(console, Text())
        _tries(console, equal)
    if state != "done":
        line(console, Text())
        _commands(console, root, shard_id, again=repeatable(find_job(output)))
    return 0


def _commands(console: Console, root: str, shard_id: str, *, again: bool) -> None:
    if again:
        _fact(console, "replay", f"{replay_command(root, shard_id)} --pdb")
    _fact(console, "logs", f"curate logs {shell_word(root)} --shard {shell_word(shard_id)}")
    _fact(console, "retry", retry_command(root) if again else AGAIN)


def _equal_tries(tries: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Returns the tries in order, those together that follow one another in a run and failed of the very same."""
    found: list[list[Mapping[str, Any]]] = []
    for one in tries:
        alike = found and all(found[-1][-1].get(name) == one.get(name) for name in _SAME)
        if alike:
            found[-1].append(one)
        else:
            found.append([one])
    return found


_SAME = ("run_id", "kind", "error", "traceback")


def _tries(console: Console, equal: Sequence[Mapping[str, Any]]) -> None:
    """Prints tries that failed of the same: where the last one ran, the job's own line, then the whole traceback."""
    failure = equal[-1]
    means = {Outcome.FAILED: "given up", Outcome.RETRY: "tried again"}.get(failure["outcome"], "another copy of it ran")
    kind = str(failure.get("kind", "")).replace("_", " ")
    heading = f"try {failure['attempt']}" if len(equal) == 1 else f"{len(equal):,} tries, the same error"
    line(console, Text.assemble((heading, "bold"), f": {kind}, {means}"))
    _fact(console, "run", f"{failure['run_id']}, task {failure['task']}, {moment(failure['time'])} UTC")
    if where := _where(failure):
        _fact(console, "where", where)
    _wrapped(console, ellipsize(failure.get("error", "")), "red")
    _own_line(console, failure)
    if traceback := failure.get("traceback", ""):
        if "as" in failure:
            line(console, Text(f"{INDENT}(the traceback of {plain_line(failure['as'])}, which failed alike)", "dim"))
        for one in traceback.rstrip().splitlines():
            line(console, Text(f"{INDENT}{visible(one)}"))


def _own_line(console: Console, failure: Mapping[str, Any]) -> None:
    """Prints the innermost line of the job's own code, if any: not curate's, Ray's or a library's."""
    frame = str(failure.get("frame", ""))
    if not frame:
        return
    _wrapped(console, f"at {plain_line(frame)}", "bold")
    if code := own_code(frame, str(failure.get("traceback", ""))):
        line(console, Text(f"{INDENT}{INDENT}{plain_line(code)}"))


def own_code(frame: str, traceback: str) -> str:
    """Returns the line of code of a frame, as a traceback shows it; empty if it does not.

    >>> shown = 'Traceback:\\n  File "/home/a/jobs/x.py", line 3, in f\\n    raise ValueError(a)\\nValueError: 1'
    >>> own_code("jobs/x.py:3 in f", shown)
    'raise ValueError(a)'
    """
    place, _, function = frame.rpartition(" in ")
    path, _, number = place.rpartition(":")
    lines = traceback.splitlines()
    for at, one in reversed(list(enumerate(lines[:-1]))):
        if one.endswith(f'{path}", line {number}, in {function}') and lines[at + 1].startswith("    "):
            return lines[at + 1].strip()
    return ""


def _where(failure: Mapping[str, Any]) -> str:
    parts = [f"{format_duration(failure['seconds'])} in" if failure.get("seconds") else ""]
    parts += [f"process {failure['pid']}" if failure.get("pid") else ""]
    parts += [f"on {plain_line(failure['node'])}" if failure.get("node") else ""]
    parts += [f"with {format_bytes(failure['peak_bytes'])} of memory at most" if failure.get("peak_bytes") else ""]
    return " ".join(part for part in parts if part)


def _slice_text(shard: Shard) -> str:
    if shard.kind is SliceKind.WHOLE:
        return f"all of it, {format_bytes(shard.object_bytes)}"
    unit = "bytes" if shard.kind is SliceKind.BYTES else "row groups"
    return f"{unit} {shard.start:,} to {shard.stop:,}, {format_bytes(shard.size_bytes)}"


# Lines


def visible(text: str) -> str:
    """Returns a line as it is, indented and all, but for what would act on a terminal.

    >>> visible("    raise \\x1b[31mError\\x1b[0m\\x07")
    '    raise Error\\\\x07'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in click.unstyle(text))


def _fact(console: Console, label: str, value: str) -> None:
    line(console, Text.assemble(f"{INDENT}{label:<8}", value))


def _wrapped(console: Console, text: str, style: str = "") -> None:
    """Prints prose: wrapped and indented on a terminal, one line elsewhere."""
    whole = Text(text, style)
    lines = whole.wrap(console, max(20, console.width - len(INDENT))) if console.is_terminal else [whole]
    for one in lines:
        one.rstrip()
        line(console, Text.assemble(INDENT, one))
