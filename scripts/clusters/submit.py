"""Submits a job, follows it, and submits it again if its driver died: finished shards are not done again."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import click

from curate.errors import CurateError

from .commands import Shell
from .follow import Source, follow
from .problems import Refused
from .with_secrets import reference

WRAPPER = "scripts/clusters/with_secrets.py"
LOOK_S = 10.0
INTERRUPTED = 130
NO_AGENT, TAKEN = "No available agent to submit job", "already exists"
"""What Ray answers while the head has no agent yet that starts jobs, after looking for one for 10 s; and for a name
that it has already begun."""
ATTEMPTS = 12
"""Of submitting to a head without an agent: two minutes."""
_LOST = frozenset({"JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"})
"""How Ray's job server names a driver that went with its process, and not by its own exit."""


@dataclass(frozen=True)
class Submission:
    """What is submitted."""

    script: str
    """Path of the job's file, from the working directory."""
    arguments: tuple[str, ...]
    secrets: tuple[str, ...] = ()
    """`NAME=REFERENCE`, each."""
    excludes: tuple[str, ...] = ()
    working_dir: str = "."

    @property
    def entrypoint(self) -> tuple[str, ...]:
        """The command that runs on the head."""
        job = ("python", self.script, *self.arguments)
        return ("python", WRAPPER, *self.secrets, "--", *job) if self.secrets else job

    def command(self, address: str, name: str) -> tuple[str, ...]:
        """Returns Ray's command that submits it."""
        env = json.dumps({"excludes": list(self.excludes)})
        given = ("--address", address, "--submission-id", name, "--no-wait", "--working-dir", self.working_dir)
        return ("ray", "job", "submit", *given, "--runtime-env-json", env, "--", *self.entrypoint)


def output_of(arguments: Sequence[str]) -> str | None:
    """Returns what `--output` is given, as the job's own command line reads it.

    >>> output_of(["--input", "x", "--output=gs://b/out"]), output_of(["-o", "out"]), output_of(["--input", "x"])
    ('gs://b/out', 'out', None)
    """
    found = None
    for number, word in enumerate(arguments):
        if word in ("--output", "-o"):
            found = arguments[number + 1] if number + 1 < len(arguments) else None
        elif word.startswith("--output="):
            found = word.removeprefix("--output=")
        elif word.startswith("-o") and len(word) > 2:
            found = word[2:]
    return found


def checked(found: Submission) -> None:
    """Raises Refused for what would fail on the cluster: a relative output, a secret that is none by reference."""
    output = output_of(found.arguments)
    if output is not None and "://" not in output and not PurePosixPath(output).is_absolute():
        raise Refused(
            f"the output {output!r} is relative: on the cluster it would be written to an unpacked copy of the working "
            "directory and be lost; pass gs://BUCKET/PREFIX"
        )
    for word in found.secrets:
        try:
            reference(word)
        except ValueError as error:
            raise Refused(str(error)) from error
    if found.secrets and not (Path(found.working_dir) / WRAPPER).is_file():
        raise Refused(f"--secret needs {WRAPPER} in the working directory: submit from the repository's root")


def submission_name(script: str) -> str:
    """Returns a new name for a submission."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{Path(script).stem}-{now}-{secrets.token_hex(3)}"


def died(state: Mapping[str, Any] | None) -> bool:
    """Returns whether a driver was ended from outside: killed, or gone with the head.

    A driver that exits by itself said why, and would say it again.

    >>> died({"status": "FAILED", "driver_exit_code": 137}), died({"status": "FAILED", "driver_exit_code": 2})
    (True, False)
    """
    if state is None:
        return True
    if state["status"] != "FAILED":
        return False
    code = state.get("driver_exit_code")
    if code is None:
        return state.get("error_type") in _LOST
    return bool(code < 0 or (code > 128 and code != INTERRUPTED))


def exit_code(state: Mapping[str, Any] | None) -> int:
    """Returns the driver's own exit code where it has one; 1 for one that died or was stopped."""
    if state is not None and state["status"] == "SUCCEEDED":
        return 0
    code = None if state is None else state.get("driver_exit_code")
    return code if isinstance(code, int) and (0 < code < 128 or code == INTERRUPTED) else 1


def left(output: str) -> str:
    """Returns a line that says how far the job at an output is."""
    from curate.clock import SystemClock
    from curate.observe.job import read_status

    pool = ThreadPoolExecutor(max_workers=1)
    try:
        status = pool.submit(read_status, output, SystemClock().now()).result(LOOK_S)
    except CurateError as error:
        return f"nothing to resume at {output} ({str(error).splitlines()[0]})"
    except Late:
        return f"could not look at {output} within {LOOK_S:.0f} s"
    finally:
        pool.shutdown(wait=False)
    rest = status.total - status.done
    text = f"{status.job} at {status.output}: {status.done:,} of {status.total:,} shards done, {rest:,} left"
    if status.failed:
        text += f", of which {status.failed:,} failed"
    return text


def submit_and_follow(
    found: Submission,
    shell: Shell,
    address: str,
    source: Callable[[str], Source],
    *,
    resubmit: int = 0,
    wait: bool = True,
    left: Callable[[str], str] = left,
) -> int:
    """Submits, shows the log to the end, and says what is left; again up to `resubmit` times where the driver died.

    Returns the driver's exit code.
    """
    output = output_of(found.arguments)
    for again in range(resubmit + 1):
        if output is not None and not shell.dry:
            _say(left(output))
        name = submission_name(found.script)
        if (code := _submit(found.command(address, name), shell)) or shell.dry:
            return code
        _say(f"submitted as {name}")
        if not wait:
            _say(f"scripts/cluster logs --follow {name} shows its log")
            return 0
        try:
            state = asyncio.run(follow(source(name), _show, _say))
        except KeyboardInterrupt:
            _say(
                f"left; the job runs on: scripts/cluster logs --follow {name} shows its log, scripts/cluster stop "
                f"{name} ends it"
            )
            return INTERRUPTED
        if not died(state):
            break
        how = "the cluster no longer knows the job" if state is None else _how(state)
        if again < resubmit:
            _say(f"the driver died ({how}); submitting it again ({again + 1} of {resubmit})")
        else:
            _say(f"the driver died ({how}); the same command resumes; --resubmit N does so automatically")
    if output is not None and exit_code(state):
        _say(left(output))
    return exit_code(state)


def _submit(command: Sequence[str], shell: Shell) -> int:
    """Submits, again while the head that just started has no agent that starts jobs. Returns Ray's exit code.

    All attempts have one name, of which Ray begins one job: an answer that came too late is no second job.
    """
    for attempt in range(ATTEMPTS):
        code, printed = shell.ask(*command)
        if not code or (attempt and TAKEN in printed):
            return 0
        if NO_AGENT not in printed:
            break
        if not attempt:
            _say("the head is up, but does not start jobs yet; trying again, for two minutes")
    else:
        printed += "\nthe head starts no jobs; its log dashboard_agent.log says why (`scripts/cluster status` shows it)"
    _say(printed)
    return code


def _how(state: Mapping[str, Any]) -> str:
    code = state.get("driver_exit_code")
    return f"exit code {code}" if code is not None else str(state.get("error_type"))


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _say(text: str) -> None:
    click.echo(text, err=True)
