#!/usr/bin/env bash
# Installs what the tests of pages in a browser need, where it is missing: Chromium, by apt-get, as root alone; and axe-core,
# which finds what keeps people from reading a page, by npm, to .browser: the version in scripts/browser/package-lock.json,
# whose checksum npm compares. Says what it cannot install, with exit code 1: the tests that need it are skipped then.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
lock=$root/scripts/browser/package-lock.json
axe=$root/.browser
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# install WHAT COMMAND...: what it printed is shown if it fails.
install() {
    local what=$1
    shift
    echo "Installing $what ..." >&2
    "$@" >"$log" 2>&1 </dev/null && return
    tail -20 "$log" >&2
    echo "Installing $what failed, with the words above; the tests that need it are skipped." >&2
    return 1
}

ensure_chromium() {
    local name
    for name in chromium chromium-browser google-chrome; do
        ! command -v $name >/dev/null || return 0
    done
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "There is no Chromium, and it is installed only by root, with apt-get; tests in a browser are skipped." >&2
        return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # The lists of a fresh container are empty, or older than what is there to be had.
    install "the lists of packages" apt-get update && install Chromium apt-get install -y --no-install-recommends chromium
}

ensure_axe() {
    ! cmp -s "$lock" "$axe/.made-from" || return 0
    if ! command -v npm >/dev/null; then
        echo "There is no npm, which installs axe-core; the tests that need it are skipped." >&2
        return 1
    fi
    rm -rf "$axe"
    mkdir "$axe"
    cp "$root/scripts/browser/package.json" "$lock" "$axe/"
    # The lock names no place, so that npm's own configuration does.
    install axe-core npm ci --prefix "$axe" --ignore-scripts --no-audit --no-fund || return
    # Last, so that an installation that was cut short is not taken for a finished one.
    cp "$lock" "$axe/.made-from"
}

code=0
ensure_chromium || code=1
ensure_axe || code=1
exit $code
