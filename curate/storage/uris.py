"""URIs as curate writes them: `/absolute/path`, `gs://bucket/key`, `s3://bucket/key`. Pure; touches no storage.

One object has one spelling, because names are compared, sorted and hashed as strings: `file://`, `local://`, `gcs://`
and `s3a://` are rewritten, local paths made absolute, and what could mean two things is refused.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from curate.errors import ConfigError, did_you_mean
from curate.log import HIDDEN, redacted

_SPELLED = {"gs": "gs", "gcs": "gs", "s3": "s3", "s3a": "s3", "memory": "memory"}
"""Schemes of stores, and how each is written."""
MEMORY = "memory://"
"""How a URI begins of what is in the memory of one process, and which no other process sees."""
_FILES = ("file", "local")
"""Schemes of files of this machine; that of ray.data says so, too."""
SCHEMES = (*_SPELLED, *_FILES)
KEY_BYTES = 1024
"""The most that GCS and S3 take as the name of an object in its bucket."""
_EXPECTED = "gs://bucket/key, s3://bucket/key, memory://bucket/key or a local path"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_BEGINS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?!//)(.*)", re.DOTALL)
"""How a slip in a URI begins, and a path whose first part has a colon."""
_BRACKETED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/]*@)?\[[0-9A-Fa-f:.%]*:[0-9A-Fa-f:.%]*\](:|/|$)")
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_NOT_FILES = (
    "blockcache",
    "cached",
    "dask",
    "data",
    "dir",
    "filecache",
    "generic",
    "reference",
    "simplecache",
)
"""What fsspec knows beside places where files are."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*")
_VARIABLE = re.compile(r"(?:^|(?<=/))\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\}")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def normalise_input(uri: str) -> str:
    """Returns the one spelling of a URI that is only read: as `normalise`, or of any file system that fsspec knows.

    >>> normalise_input("hf://datasets/org/name/"), normalise_input("gcs://bucket/reddit/")
    ('hf://datasets/org/name', 'gs://bucket/reddit')
    """
    if not is_foreign(uri):
        return normalise(uri)
    _refuse_unprintable(uri)
    if _BRACKETED.match(uri):
        raise ConfigError(
            f"{uri!r} has an IPv6 address for its host, in brackets, which are those of a glob here; write a host name"
        )
    if "::" in uri:
        raise ConfigError(_chained(uri))
    if not uri.partition("://")[2].strip("/"):
        raise ConfigError(f"{uri!r} names no file and no folder")
    if (shown := redacted(_PASSWORD.sub(f"://{HIDDEN}@", uri))) != uri:
        raise ConfigError(
            f"the URI of the input {shown!r} contains a secret, which would be written to the ledger; use keys, or the "
            "configuration of fsspec (~/.config/fsspec)"
        )
    return uri.rstrip("/")


def is_foreign(uri: str) -> bool:
    """Returns whether `uri` is of no store of curate's, but of a file system that fsspec knows: it can be read.

    >>> is_foreign("hf://datasets/org/name"), is_foreign("s3://bucket/x"), is_foreign("/data"), is_foreign("nothing://x")
    (True, False, False, False)
    """
    scheme, slashes, _ = uri.partition("://")
    return bool(slashes) and scheme not in SCHEMES and scheme not in _NOT_FILES and _is_of_fsspec(scheme)


def _is_of_fsspec(scheme: str) -> bool:
    # Not before it is needed: most runs have no such input.
    from fsspec import available_protocols
    from fsspec.registry import registry

    return scheme in available_protocols() or scheme in registry


def not_an_output(uri: str) -> str:
    """Returns why nothing can be written where a foreign URI is."""
    return (
        f"{uri!r} can be read as an input, but it cannot be an output: {uri.partition(':')[0]}:// is not known to "
        f"create a file only if its name is free; expected {_EXPECTED}"
    )


def normalise(uri: str) -> str:
    """Returns the one spelling of `uri`: absolute, without `file://` or `local://`, without a `/` at the end.

    A local path is resolved against the working directory, `..` included, and `~` is the home, which a shell leaves
    alone within quotes; nothing is percent-decoded, links stay.
    Raises ConfigError for an unknown scheme, a missing bucket, a `.` or `..` in a key, or a control character.

    >>> normalise("gcs://bucket/reddit/")
    'gs://bucket/reddit'
    >>> normalise("file:///data/x/../y/")
    '/data/y'
    """
    if not uri:
        raise ConfigError(f"the URI is empty; expected {_EXPECTED}")
    _refuse_unprintable(uri)
    if wrong := _slip(uri):
        raise ConfigError(wrong)
    match = _SCHEME.match(uri)
    scheme = match.group(1) if match else ""
    if scheme in ("", *_FILES):
        path = uri
        if scheme:
            path = uri.partition("://")[2]
            if not path.startswith("/"):
                host, _, rest = path.partition("/")
                if host != "localhost":
                    raise ConfigError(f"{uri!r} names the host {host!r}; a local path is {scheme}:///absolute/path")
                path = "/" + rest
        # abspath keeps two leading slashes, as POSIX allows it to.
        return "/" + os.path.abspath(os.path.expanduser(path)).lstrip("/")  # noqa: PTH100, PTH111
    if is_foreign(uri):
        raise ConfigError(not_an_output(uri))
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{uri!r} has the scheme {scheme!r}, which curate cannot store to{did_you_mean(scheme, SCHEMES)}; "
            f"expected {_EXPECTED}"
        )
    bucket, slash, key = uri.partition("://")[2].partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            f"{uri!r} names the bucket {bucket!r}; expected {scheme}://bucket/key with a lower-case bucket"
        )
    if _SPELLED[scheme] == "s3" and bucket.endswith("--x-s3"):
        raise ConfigError(f"{uri!r} is a directory bucket, which does not list in order; choose another bucket")
    if any(part in (".", "..") for part in key.split("/")):
        raise ConfigError(
            f"{uri!r} has a '.' or '..' in its key; an object store does not resolve these; write the full key"
        )
    return f"{_SPELLED[scheme]}://{bucket}{slash}{key}".rstrip("/")


def _refuse_unprintable(uri: str) -> None:
    if found := _UNPRINTABLE.search(uri):
        raise ConfigError(
            f"{uri!r} contains {found.group()!r} at position {found.start()}; "
            "control characters and broken Unicode cannot be part of an object's name; rename it"
        )


def join(root: str, *parts: str) -> str:
    """Returns `root/part/part`, with one slash at each seam.

    >>> join("gs://bucket/out/", "part-00000.parquet")
    'gs://bucket/out/part-00000.parquet'
    """
    joined = "/".join(part.strip("/") for part in parts if part.strip("/"))
    return f"{root.rstrip('/')}/{joined}" if joined else root


def room_for_name(root: str) -> int | None:
    """Returns how many UTF-8 bytes names of objects below `root` may have; None if unknown before one is written.

    >>> room_for_name("s3://bucket/out"), room_for_name("gs://bucket"), room_for_name("/out")
    (1020, 1024, None)
    """
    scheme, _, path = root.partition("://")
    above = path.partition("/")[2].rstrip("/")
    return KEY_BYTES - len(f"{above}/".lstrip("/").encode()) if scheme in ("gs", "s3") else None


def is_local(uri: str) -> bool:
    """Returns whether `uri` names a file of this machine.

    >>> is_local("/data/x"), is_local("gs://bucket/x")
    (True, False)
    """
    match = _SCHEME.match(uri)
    return match is None or match.group(1) in _FILES


def bucket_and_key(uri: str, scheme: str) -> tuple[str, str]:
    """Splits `scheme://bucket/key`; the key may be empty. Raises ConfigError if the URI is of another scheme.

    >>> bucket_and_key("gs://bucket/a/b", "gs")
    ('bucket', 'a/b')
    """
    start = f"{scheme}://"
    bucket, _, key = uri[len(start) :].partition("/")
    if not uri.startswith(start) or not bucket:
        raise ConfigError(f"{uri!r} was given to a store of {start}bucket/key; open one for it with open_store(uri)")
    return bucket, key


def _slip(uri: str) -> str:
    """Returns what is wrong with a URI that lacks slashes behind its scheme, or is a chain of several: it would be a
    relative path. Empty for any other text."""
    match = _BEGINS.match(uri)
    if match is None:
        return ""
    given, rest = match.groups()
    scheme = given.lower()
    chained = rest.startswith(":")
    if scheme not in SCHEMES and not ((chained or scheme not in _NOT_FILES) and _is_of_fsspec(scheme)):
        return ""
    if chained:
        return _chained(uri)
    meant = rest if scheme in _FILES else f"{scheme}://{rest.lstrip('/')}"
    return f"{uri!r} lacks '//' behind {given + ':'!r}; did you mean {meant}? A path of that name is ./{uri}"


def _chained(uri: str) -> str:
    return (
        f"{uri!r} has '::', by which fsspec chains file systems, and curate reads no chains; name the file itself, "
        "without a cache around it, or unpack the archive first and read the copy"
    )


def unreplaced(text: str) -> str:
    """Returns why a path is not what was meant if an environment variable is in it that no shell has replaced, as in
    single quotes, in a file, or in Python. Empty where there is none, or where a folder of this machine has that name.

    >>> unreplaced("gs://bucket/$DAY/out")
    'nobody has replaced the variable $DAY: write its value out, or let a shell do it'
    >>> unreplaced("gs://bucket/a$b"), unreplaced("/data/usd-5$")
    ('', '')
    """
    if (found := _VARIABLE.search(text)) is None:
        return ""
    if "://" not in text and os.path.exists(text[: f"{text}/".index("/", found.end())]):  # noqa: PTH110 - a text
        return ""
    return f"nobody has replaced the variable {found.group()}: write its value out, or let a shell do it"


def at_home(text: str) -> str:
    """Returns a path, its `~` replaced: a shell leaves that alone within quotes and behind `=`. Raises ConfigError for
    a user that does not exist."""
    if not text.startswith("~"):
        return text
    try:
        return f"{Path(text).expanduser()}{'/' * text.endswith('/')}"
    except RuntimeError as error:
        raise ConfigError(f"{text!r} names the home of a user that does not exist ({error})") from error


def absolute(given: str, folder: str) -> str:
    """Returns a path or a glob as it was meant in a folder, a slash at its end included; a URI as it is.

    What lacks slashes to be a URI stays as it is, to be refused.

    >>> absolute("in/*.jsonl", "/home"), absolute("../in/", "/home/x"), absolute("gs://bucket/in", "/home")
    ('/home/in/*.jsonl', '/home/in/', 'gs://bucket/in')
    """
    slash = "/" if given.endswith("/") else ""
    return given if "://" in given or _slip(given) else os.path.normpath(os.path.join(folder, given)) + slash  # noqa: PTH118
