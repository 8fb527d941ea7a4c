# Sourced by the other scripts. Sets `root`, and makes `$root/.venv` hold what requirements.lock names and curate itself
# (editable), unless it already does. Quick when there is nothing to do.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# What .venv must have been made from. The path belongs to it, since a virtual environment cannot be moved.
_venv_identity() {
    { sha256sum "$root/requirements.lock" 2>/dev/null || shasum -a 256 "$root/requirements.lock"; } | cut -d' ' -f1
    echo "$root"
}

_venv_ready() {
    [ -x "$root/.venv/bin/python" ] && [ "$(cat "$root/.venv/.made-from" 2>/dev/null)" = "$(_venv_identity)" ]
}

_find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        # A name on PATH proves little: it may be a version manager's placeholder, or lack the parts that make a venv.
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    echo "curate needs Python 3.11 or newer, with venv and pip; none of python3.11, python3.12, python3.13 and python3" \
        "on PATH is that. Install one (Debian, Ubuntu: apt install python3.11-venv) and run this again." >&2
    return 1
}

_make_venv() {
    local python=$1 log started=$SECONDS
    echo "Making .venv with $("$python" --version) from requirements.lock; about a minute ..." >&2
    rm -rf "$root/.venv"
    mkdir "$root/.venv"
    log=$root/.venv/install.log
    if ! {
        "$python" -m venv "$root/.venv" &&
            "$root/.venv/bin/python" -m pip install --disable-pip-version-check \
                --require-hashes -r "$root/requirements.lock" &&
            "$root/.venv/bin/python" -m pip install --disable-pip-version-check \
                --no-deps --no-build-isolation -e "$root"
    } >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        echo "Making .venv failed after $((SECONDS - started)) s; what pip said is above." >&2
        return 1
    fi
    # Last, so that an installation that was cut short is not taken for a finished one.
    _venv_identity >"$root/.venv/.made-from"
    echo "Made .venv in $((SECONDS - started)) s." >&2
}

ensure_venv() {
    _venv_ready && return
    local python
    python=$(_find_python) || return
    (
        # The lock lives as long as the descriptor, which pip inherits: a caller that is killed keeps others out until
        # its pip has gone too. Python takes it because macOS has no flock command.
        "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || exit
        _venv_ready || _make_venv "$python"
    ) 9<"$root/scripts/venv.sh"
}

ensure_venv || exit
