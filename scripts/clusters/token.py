"""The token of a cluster: made once, kept in a file of its own, never printed."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .problems import Refused


def token_file(cluster: str) -> Path:
    """Returns where the token of a cluster lies on this machine; `ray up` brings it to the nodes from there."""
    return Path.home() / ".ray/clusters" / cluster / "auth_token"


def make_token(path: Path) -> bool:
    """Makes a token of 256 random bits that only this user may read; returns False where there is one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(file, "w") as out:
            out.write(secrets.token_hex(32))
        # Whole or not at all: who is killed leaves no half token. A link that somebody else laid there is not followed.
        os.link(name, path)
    except FileExistsError:
        _read(path)
        return False
    finally:
        Path(name).unlink()
    return True


def _read(path: Path) -> str | None:
    """Returns the token in a file; None where there is no file. Raises Refused for an empty one."""
    if not path.is_file():
        return None
    if not (found := path.read_text().strip()):
        raise Refused(
            f"the token in {path} is empty; remove the file: `scripts/cluster up` makes a token for a new cluster, and "
            "the administrator of a running one has its token"
        )
    return found


def with_token(env: Mapping[str, str], path: Path) -> dict[str, str]:
    """Returns the environment of Ray's commands: with the cluster's token, unless the user's names another or none."""
    found = {"RAY_AUTH_MODE": "token", **env}
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & env.keys() and path.exists():
        found["RAY_AUTH_TOKEN_PATH"] = str(path)
    return found


def token_of(env: Mapping[str, str]) -> str | None:
    """Returns the token that Ray's commands would send in an environment, as they look for it."""
    if env.get("RAY_AUTH_MODE") != "token":
        return None
    if given := env.get("RAY_AUTH_TOKEN"):
        return given.strip()
    path = Path(env.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray/auth_token")
    return _read(path)
