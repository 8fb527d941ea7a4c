# Sourced by the other scripts. Sets `root`, and makes `$root/.venv` hold what requirements.lock names and curate itself
# (editable), unless it already does. Quick when there is nothing to do. `ensure_venv .venv-extras` does the same for the
# environment of the tests that need the extra `embed`: what scripts/requirements-extras.lock names, and torch.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Apart from the lock, and without hashes: builds for one machine or another are different files of one version, and a
# machine may have its own. The CPU build is enough.
torch=torch==2.13.0

# What the environment must have been made from. The path belongs to it, since a virtual environment cannot be moved.
_venv_identity() {
    local lock=requirements.lock
    if [ "$1" = .venv-extras ]; then
        lock=scripts/requirements-extras.lock
        echo "$torch"
    fi
    { sha256sum "$root/$lock" 2>/dev/null || shasum -a 256 "$root/$lock"; } | cut -d' ' -f1
    echo "$root"
}

_venv_ready() {
    [ -x "$root/$1/bin/python" ] && [ "$(cat "$root/$1/.made-from" 2>/dev/null)" = "$(_venv_identity "$1")" ]
}

_find_python() {
    # An environment that is activated may be the one that is made anew.
    local name PATH=:$PATH:
    PATH=${PATH//:$root\/.venv\/bin:/:}
    PATH=${PATH//:$root\/.venv-extras\/bin:/:}
    # An empty name in it would be the folder that one is in.
    PATH=${PATH#:} PATH=${PATH%:}
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

_pip_install() {
    local venv=$1
    shift
    "$root/$venv/bin/python" -m pip install --disable-pip-version-check "$@"
}

_fill_venv() {
    if [ "$1" = .venv-extras ]; then
        # The lock names all that there is beside torch, so that nothing brings another torch.
        _pip_install "$1" --no-deps "$torch" &&
            _pip_install "$1" --no-deps --require-hashes -r "$root/scripts/requirements-extras.lock"
    else
        _pip_install "$1" --require-hashes -r "$root/requirements.lock"
    fi &&
        _pip_install "$1" --no-deps --no-build-isolation -e "$root" &&
        "$root/$1/bin/python" -m pip --disable-pip-version-check check
}

_make_venv() {
    local venv=$1 python=$2 log started=$SECONDS
    echo "Making $venv with $("$python" --version); about a minute ..." >&2
    rm -rf "${root:?}/$venv"
    mkdir "$root/$venv"
    log=$root/$venv/install.log
    if ! { "$python" -m venv "$root/$venv" && _fill_venv "$venv"; } >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        echo "Making $venv failed after $((SECONDS - started)) s; what pip said is above." >&2
        return 1
    fi
    # Last, so that an installation that was cut short is not taken for a finished one.
    _venv_identity "$venv" >"$root/$venv/.made-from"
    echo "Made $venv in $((SECONDS - started)) s." >&2
}

# ensure_venv [.venv | .venv-extras]
ensure_venv() {
    local venv=${1-.venv} python
    _venv_ready "$venv" && return
    python=$(_find_python) || return
    (
        # The lock lives as long as the descriptor, which pip inherits: a caller that is killed keeps others out until
        # its pip has gone too. Python takes it because macOS has no flock command.
        "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || exit
        _venv_ready "$venv" || _make_venv "$venv" "$python"
    ) 9<"$root/scripts/venv.sh"
}

ensure_venv || exit
