"""Helpers of all measurements: alternating rounds, targets, cached inputs, waiting for the disk to settle."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import orjson

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"

SCRIPT = Path(__file__).parents[1] / "bench"
ROWS = 20
"""Rows of a small file."""
PER_FOLDER = 1000
SETTLE_S = 330.0
"""ext4 looks at every inode that was freed in the last five minutes before it takes one, so that what a run removed
slows down the next one: writers of small files to half, the faster the writer the more."""
REMOVED = "removed"
MARK = ".curate-scratch"
"""In each scratch folder: all that is below it is ours, to be run, written over and removed."""
BACKEND = "CURATE_BACKEND"
ON_RAY, ON_LOCAL = "curate on Ray", "curate, worker processes"
WORDS = str.split(
    "the recipe and this book were better than I expected but the update is overpriced so ask in the weekly thread "
    "check the sidebar first then take the early train if you can and save a little every month it adds up honestly"
)

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37

Run = Callable[[Path], Any]
"""Does the work once and writes below a folder, if it writes; returns what `Check` is given."""
Check = Callable[[Path, Any], None]
"""Raises ClickException if a run, given its folder and what it returned, did not do the work."""


@dataclass
class Runs:
    """The measurements of one contender, one a round."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Seconds of CPU that this process, all of its threads, spent."""
    user_s: list[float] = field(default_factory=list)
    """Those of this process and all that it has started, beside the kernel's. On a machine that others use too, they
    say more than the time does."""
    system_s: list[float] = field(default_factory=list)
    """Those of the kernel for them."""

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def median_user_s(self) -> float:
        return statistics.median(self.user_s)

    @property
    def median_system_s(self) -> float:
        return statistics.median(self.system_s)

    @property
    def median_cpu_s(self) -> float:
        """Of all processes, in user mode and in the kernel."""
        return statistics.median(map(sum, zip(self.user_s, self.system_s, strict=True)))

    @property
    def system_share(self) -> float:
        """The kernel's part of that, of all rounds."""
        return sum(self.system_s) / max(1e-9, sum(self.user_s) + sum(self.system_s))


@dataclass
class Report:
    """Prints figures as they come and remembers whether a target was missed."""

    missed: int = 0

    def target(self, what: str, value: str, wanted: str, holds: bool) -> None:
        """Prints one figure beside its target."""
        self.missed += not holds
        click.echo(f"  {'ok    ' if holds else 'MISSED'}  {what}: {value} (target {wanted})")


def alternate(
    contenders: Mapping[str, Run],
    folder: Path,
    rounds: int,
    check: Check,
    apart: Callable[[str], frozenset[int]] = lambda _: frozenset(),
) -> list[Runs]:
    """Runs all contenders, one after the other, `rounds` times over; each run has a folder of its own in `folder`.

    `apart` returns the children of this process whose CPU is not a contender's.
    """
    results = [Runs(name) for name in contenders]
    for number in range(rounds):
        for place, (result, run) in enumerate(zip(results, contenders.values(), strict=True)):
            output = folder / f"{number}-{place}"
            os.sync()  # nobody waits for what another one wrote
            (user_s, system_s), started, cpu = tree_cpu_s(apart(result.name)), time.perf_counter(), time.process_time()
            found = run(output)
            result.seconds.append(time.perf_counter() - started)
            result.cpu_s.append(time.process_time() - cpu)
            after = tree_cpu_s(apart(result.name))
            result.user_s.append(after[0] - user_s)
            result.system_s.append(after[1] - system_s)
            try:
                check(output, found)
            except click.ClickException as wrong:
                raise click.ClickException(f"{result.name}: {wrong.message}") from wrong
    return results


def tree_cpu_s(apart: frozenset[int] = frozenset()) -> tuple[float, float]:
    """Returns the seconds of CPU, in user mode and in the kernel, of this process and of all that it has started: what
    has ended counts at who has waited for it. Not of processes `apart`, nor of what these have started."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            user, system, waited_user, waited_system = map(int, fields[11:15])
            ticks[pid] = user + waited_user, system + waited_system
    found, pending = [0, 0], [os.getpid()]
    while pending:
        pid = pending.pop()
        pending += [child for child in children.get(pid, []) if child not in apart]
        found = [a + b for a, b in zip(found, ticks.get(pid, (0, 0)), strict=True)]
    per_s = os.sysconf("SC_CLK_TCK")
    return found[0] / per_s, found[1] / per_s


@dataclass(frozen=True)
class Ended:
    """What a program printed, and the seconds of CPU that it and all that it has started took once it was ready."""

    found: Any
    user_s: float
    system_s: float


def go(command: Sequence[object], said: Path, env: Mapping[str, str] | None = None) -> Ended:
    """Starts a program, has it go once it prints "ready", and returns the JSON in the last line that it prints. What it
    says beside that is in the file `said`. Raises ClickException if it fails."""
    said.parent.mkdir(parents=True, exist_ok=True)
    argv = [str(one) for one in command]
    with (
        said.open("w") as errors,
        adopting(),
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(env or {})},
        ) as child,
    ):
        assert child.stdout is not None
        ready = child.stdout.readline().strip() == "ready"
        os.sync()  # nobody waits for what another one wrote
        before = tree_cpu_s()
        found, _ = child.communicate("go\n" if ready else None)
    if child.returncode:
        raise click.ClickException(f"{' '.join(argv)} ended with {child.returncode}:\n{said.read_text()[-4000:]}")
    after = tree_cpu_s()
    return Ended(orjson.loads(found.splitlines()[-1]), after[0] - before[0], after[1] - before[1])


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Makes what programs leave behind, that are started meanwhile, our children, whose CPU counts; waits for their
    end."""
    others = own_children()
    prctl = ctypes.CDLL(None).prctl
    was = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
        while left := own_children() - others:
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
    finally:
        # Nobody would wait for those of others, which would stay as they ended.
        prctl(_PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


def own_children() -> set[int]:
    """Returns the processes that this one has started and that have not been waited for."""
    threads = Path("/proc/self/task").glob("*/children")
    return {int(pid) for one in threads for pid in one.read_text().split()}


def written_on(backend: str, run: Run) -> Run:
    """Returns a run whose writes are made on that backend."""

    def there(output: Path) -> Any:
        os.environ[BACKEND] = backend
        try:
            return run(output)
        finally:
            del os.environ[BACKEND]

    return there


def expect(what: str, found: Any, wanted: Any) -> None:
    """Raises ClickException unless both are the same."""
    if found != wanted:
        raise click.ClickException(f"{what} is {found!r}, expected {wanted!r}")


def wait_until_ready(child: subprocess.Popen[str]) -> None:
    """Reads what a process says up to a line `ready`: Ray says things on standard output, too."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == "ready":
            return
    raise click.ClickException(f"a process ended with {child.wait()} before it was ready")


def own_folder(folder: Path) -> Path:
    """Returns a scratch folder, made and marked as such, as an absolute path. Raises ClickException for one of others.

    The folder in /tmp has a name that anybody can make there first, and the programs in it are run; and what has the
    name of ours in a folder of the user's would be removed.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - a link is seen as one
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise _not_ours(folder, f"is a link to {folder.readlink()}" if folder.is_symlink() else "is not a folder")
    if found.st_uid != os.geteuid():
        raise _not_ours(folder, f"belongs to user id {found.st_uid}, and this is {os.geteuid()}")
    if found.st_mode & 0o022:
        raise _not_ours(folder, f"can be written to by others (mode {stat.S_IMODE(found.st_mode):o})")
    mark = folder / MARK
    if not mark.exists():
        if names := sorted(one.name for one in folder.iterdir()):
            raise _not_ours(folder, f"has files and no {MARK}: they may be yours (such as {names[0]})")
        mark.touch()
    return folder.resolve()


def _not_ours(folder: Path, problem: str) -> click.ClickException:
    return click.ClickException(
        f"{folder} {problem}; programs in a scratch folder are run, and files in it are removed. Give --scratch a "
        "folder that does not exist yet, or an empty one of your own"
    )


def once(folder: Path, make: Callable[[], None], of: str = "") -> Path:
    """Makes a folder by `make`, unless that was done before, and `of` the same; one that was left half made is made
    anew."""
    made = folder.parent / f"{folder.name}.made"
    if not made.exists() or made.read_text() != of:
        made.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make()
        made.write_text(of)
    return folder


def ran(*words: object) -> subprocess.CompletedProcess[str]:
    """Runs a command that must end well; returns what it prints."""
    command = [*map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done


def environment(folder: Path, name: str, requirements: Sequence[str]) -> Path:
    """Makes a virtual environment for a rival, unless there is one of the same requirements; returns its Python."""
    python = folder / "bin" / "python"

    def make() -> None:
        click.echo(f"making a virtual environment for {name} in {folder}")
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
        ):
            ran(*command)

    # Of curate itself, what it asked for then may not be what it asks for now.
    of = [
        *requirements,
        *([PYPROJECT.read_text()] if any(str(PYPROJECT.parent) in one for one in requirements) else []),
    ]
    once(folder, make, hashlib.sha256("\n".join(of).encode()).hexdigest())
    return python


def small_files(folder: Path, count: int) -> Path:
    """Writes `count` files of twenty rows of JSON, unless they are there."""

    def make() -> None:
        for number in range(count):
            if number % PER_FOLDER == 0:
                (folder / f"{number // PER_FOLDER:04d}").mkdir()
            lines = (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in comments(number))
            (folder / f"{number // PER_FOLDER:04d}/RC_{number:06d}.jsonl").write_bytes(b"".join(lines))

    return once(folder, make)


def comments(number: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of file `number`: comments in the shape of Pushshift's."""
    for row in range(ROWS):
        seed = number * 7919 + row * 104729
        body = " ".join(WORDS[(seed * (k + 3) + k * k) % len(WORDS)] for k in range(8 + seed % 40))
        yield {
            "id": f"c{number:06x}{row:02x}",
            "author": f"author_{seed % 997}",
            "subreddit": "AskReddit",
            "body": body,
            "link_id": f"t3_{number:x}",
            "parent_id": f"t1_{seed % 99991:x}",
            "created_utc": 1_640_995_200 + seed % 31_536_000,
            "score": 1 + seed % 100,
            "edited": False,
        }


def settle(scratch: Path) -> None:
    """Waits until the disk has forgotten what an earlier measurement removed."""
    removed = scratch / REMOVED
    left_s = SETTLE_S - (time.time() - removed.stat().st_mtime) if removed.exists() else 0.0
    if left_s > 0:
        click.echo(
            f"waiting {left_s:.0f} s: the disk is slower for a while after the last measurement's files were removed"
        )
        time.sleep(left_s)


def warm_ray() -> None:
    """Starts Ray in this process, without dashboard, and without what its workers print."""
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")


def forget(scratch: Path, folder: Path) -> None:
    """Removes a folder of small files, and notes when."""
    shutil.rmtree(folder)
    (scratch / REMOVED).touch()


def show(runs: Runs) -> str:
    """Returns a contender's line."""
    single = "  ".join(f"{seconds:.2f}" for seconds in runs.seconds)
    cpu = f"driver CPU {statistics.median(runs.cpu_s):5.2f} s" if runs.cpu_s else " " * 18
    if runs.user_s:
        cpu += f", all processes {statistics.median(runs.user_s):5.2f} + {statistics.median(runs.system_s):.2f} s"
    return f"  {runs.name:<24}{runs.median_s:>7.2f} s   {cpu}   [{single}]"


def judge(report: Report, what: str, ours: Runs, rival: Runs, target: float) -> None:
    ratio = ours.median_s / rival.median_s
    report.target(what, f"{ratio:.3f} x", f"<= {target:.3f} x", ratio <= target)


@contextlib.contextmanager
def runs_folder(scratch: Path) -> Iterator[Path]:
    """Yields a folder for outputs. It goes at the end, so that no run pays for what the one before it left."""
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="runs-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
