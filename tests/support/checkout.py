"""A checkout with the real scripts and a stand-in for Python, so that tests of scripts install and run nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.fakes import NEVER_S

SCRIPTS = Path(__file__).parents[2] / "scripts"

# `-c` is answered by a real Python, `-m venv` makes a folder with this stand-in in it; all else is noted in `calls`.
# A file `fail-<word>` makes the calls fail that have the word in them, with the number in the file; what is in a file
# `says-<word>` they print.
STAND_IN = """#!/bin/bash
case "$1 $2" in
    "-c import sys, venv"*) [ ! -e ROOT/too-old ]; exit ;;
    "-c "*) exec PYTHON "$@" ;;
    "--version "*) echo Python 3.11.0; exit ;;
    "-m venv")
        mkdir -p "$3/bin"
        for name in python curate ruff mypy lint-imports; do cp "$0" "$3/bin/$name"; done
        exit ;;
    "-m pip") sleep 0.1 ;;
esac
call="$(basename "$0") $*"
echo "$call" >>ROOT/calls
echo "output of $call"
# No program makes the file: a shell that waits for one which ends by itself goes on as if nobody had interrupted it.
if [ "$2" = pytest ] && [ -e ROOT/hold ]; then
    read -r held <ROOT/hold
    for word in "$@"; do
        if [ "${held:-$word}" = "$word" ]; then : >ROOT/hold.$$; exec sleep 1000; fi
    done
fi
for word in "$@"; do
    if [ -e "ROOT/says-$(basename -- "$word")" ]; then cat "ROOT/says-$(basename -- "$word")"; fi
done
for word in "$(basename "$0")" "$@"; do
    if [ -e "ROOT/fail-$(basename -- "$word")" ]; then exit "$(cat "ROOT/fail-$(basename -- "$word")")"; fi
done
"""


class Checkout:
    """A folder with the scripts, a lock file, and a Python in front of all others on PATH."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir(parents=True)
        (root / "scripts").mkdir()
        for name in ("venv.sh", "in_venv.py", "browser.sh", "test", "demo"):
            shutil.copy(SCRIPTS / name, root / "scripts")
        shutil.copytree(SCRIPTS / "browser", root / "scripts" / "browser")
        for name in ("chromium", "apt-get", "npm"):
            self.stand_in(name)
        compiled = root / "tests" / "__pycache__"
        compiled.mkdir(parents=True)
        self.compiled = compiled / "test_one.cpython-311-pytest-9.0.0.pyc"
        """As if tests had run here before."""
        self.compiled.touch()
        (root / "requirements.lock").write_text("one==1\n")
        (root / "scripts" / "requirements-extras.lock").write_text("one==1\n")
        for name in ("python3.11", "python3.12", "python3.13", "python3"):
            (root / "bin" / name).write_text(STAND_IN.replace("ROOT", str(root)).replace("PYTHON", sys.executable))
            (root / "bin" / name).chmod(0o755)

    def stand_in(self, name: str, text: str = "") -> None:
        """Puts a program on PATH that notes its calls in `installs`, and does what the text of a script says."""
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>{self.root}/installs\n{text}\n')
        path.chmod(0o755)

    def installs(self) -> list[str]:
        """Returns what the stand-ins of programs that install were called with, since they were last asked."""
        path = self.root / "installs"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def hold(self, word: str = "") -> None:
        """Has pytest go on until it is interrupted; each says that it has begun in a file `hold.<process>`.

        `word`: only those calls that have it in them.
        """
        (self.root / "hold").write_text(word)

    def start(self, command: str) -> subprocess.Popen[str]:
        """Starts a bash command from a folder that is not the checkout."""
        return subprocess.Popen(
            ["bash", "-c", f"cd / && {command}"],
            env={"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str, str]:
        """Returns exit code, standard output and standard error."""
        process = self.start(command)
        out, err = process.communicate(timeout=NEVER_S)
        return process.returncode, out, err

    def calls(self) -> list[str]:
        """Returns what the stand-ins were called with, in order, without the making of the .venv."""
        return [call for call in self._all_calls() if " -m pip " not in call]

    def installed(self) -> list[str]:
        """Returns what was installed, as pip was told, call by call."""
        calls = (call.partition(" -m pip install ")[2] for call in self._all_calls())
        return [call.removeprefix("--disable-pip-version-check ") for call in calls if call]

    def venvs_made(self) -> int:
        """Returns how often a .venv was made: the lock file is installed once for each."""
        return sum(call.endswith("requirements.lock") for call in self._all_calls())

    def fail(self, word: str, code: int = 1) -> None:
        """Makes the calls fail that have `word` in them."""
        (self.root / f"fail-{word}").write_text(str(code))

    def says(self, word: str, text: str) -> None:
        """Makes the calls print a text that have `word` in them."""
        (self.root / f"says-{word}").write_text(text)

    def _all_calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []
