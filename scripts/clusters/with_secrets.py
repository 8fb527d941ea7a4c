"""Runs a command with secrets in its environment, each fetched where the command runs. Needs nothing of curate.

    python scripts/clusters/with_secrets.py API_KEY=projects/p/secrets/api-key/versions/3 -- python jobs/x.py …

A reference is a version of a secret in Google's Secret Manager, read with the machine's service account, or the
absolute path of a file there. Only references stand in command lines, and so in Ray's records of the job.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from pathlib import Path

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MANAGED = re.compile(r"projects/[-a-z0-9:.]+/secrets/[-_A-Za-z0-9]+/versions/([0-9]+|latest)")
TIMEOUT_S = 30


def reference(word: str) -> tuple[str, str]:
    """Returns name and reference of `NAME=REFERENCE`. Raises ValueError, which does not repeat what may be the secret.

    >>> reference("KEY=projects/p/secrets/key/versions/3")
    ('KEY', 'projects/p/secrets/key/versions/3')
    >>> reference("KEY=hunter2")
    Traceback (most recent call last):
    ValueError: KEY is no reference (the value is not shown, as it may be the secret): expected \
projects/PROJECT/secrets/SECRET/versions/VERSION, or the absolute path of a file on the head
    """
    name, _, where = word.partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError("a secret is given as NAME=REFERENCE, with the name of an environment variable")
    if not (_MANAGED.fullmatch(where) or where.startswith("/")):
        raise ValueError(
            f"{name} is no reference (the value is not shown, as it may be the secret): expected "
            "projects/PROJECT/secrets/SECRET/versions/VERSION, or the absolute path of a file on the head"
        )
    return name, where


def fetch(where: str) -> str:
    """Returns the secret that a reference names, without a line end."""
    if where.startswith("/"):
        return Path(where).read_text().rstrip("\n")
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        answer = session.get(f"https://secretmanager.googleapis.com/v1/{where}:access", timeout=TIMEOUT_S)
    except GoogleAuthError as error:
        raise OSError(f"no access to Secret Manager: {error}") from error
    if answer.status_code != 200:
        raise OSError(f"Secret Manager answered {answer.status_code}; roles/secretmanager.secretAccessor is needed")
    return base64.b64decode(answer.json().get("payload", {}).get("data", "")).decode().rstrip("\n")


def _usable(value: str) -> str:
    """Returns a secret that a variable may have. Raises ValueError, which does not repeat it."""
    if not value:
        raise ValueError("it is empty")
    if "\0" in value:
        raise ValueError("it has a NUL character, which no environment variable can have")
    return value


def main(words: list[str]) -> None:
    """Replaces this process by the command."""
    cut = words.index("--")
    env = dict(os.environ)
    for word in words[:cut]:
        name, where = reference(word)
        try:
            env[name] = _usable(fetch(where))
        except (OSError, ValueError) as error:
            sys.exit(f"error: the secret {name} cannot be read from {where}: {error}")
    command = words[cut + 1 :]
    os.execvpe(command[0], command, env)


if __name__ == "__main__":
    main(sys.argv[1:])
