# ruff: noqa: PTH109
"""One object, one spelling."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from curate.cli.retry import given_script
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.requests import ranges
from curate.storage import uris
from curate.storage.uris import absolute, at_home, is_local, join, normalise, normalise_input
from curate.stores.open import open_store


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b"),
        ("/a//b/./c/../d", "/a/b/d"),
        ("//a", "/a"),
        ("/", "/"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("/a%20b c", "/a%20b c"),
        ("gs://bucket", "gs://bucket"),
        ("gs://bucket/", "gs://bucket"),
        ("gs://bucket/a/b/", "gs://bucket/a/b"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("gs://bucket/a//b..c/...", "gs://bucket/a//b..c/..."),
        ("gs://bucket/a b#?%25*.gz", "gs://bucket/a b#?%25*.gz"),
        ("memory://bucket/a", "memory://bucket/a"),
    ],
)
def test_a_uri_is_rewritten_to_its_one_spelling(given: str, expected: str) -> None:
    """Schemes, slashes and dots; and what is normal stays."""
    assert normalise(given) == normalise(expected) == expected


def test_a_relative_path_is_of_the_working_directory() -> None:
    """And so is what merely looks like a host."""
    assert normalise("x/../y") == f"{os.getcwd()}/y"
    assert normalise("a:b") == f"{os.getcwd()}/a:b"


def test_a_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a path and of a glob; that of nobody, and one within a path, stand for themselves."""
    monkeypatch.setenv("HOME", "/home/ann")
    assert [normalise(text) for text in ("~", "~/x/", "./~/x", "/a/~/x", "~nobody-of-that-name/x")] == [
        *("/home/ann", "/home/ann/x", f"{os.getcwd()}/~/x", "/a/~/x", f"{os.getcwd()}/~nobody-of-that-name/x")
    ]
    assert normalise_input("~/*.jsonl") == "/home/ann/*.jsonl"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "URI is empty"),
        (
            "swift://bucket/x",
            "the scheme 'swift', which curate cannot store to; expected gs://bucket/key, s3://bucket/key",
        ),
        ("sftp://host/x", "can be read as an input, but it cannot be an output: sftp:// is not known to create"),
        ("memry://bucket/x", "did you mean 'memory'"),
        ("GS://bucket/x", "the scheme 'GS'"),
        ("gs:/bucket/x", "lacks '//' behind 'gs:'; did you mean gs://bucket/x"),
        ("nowhere:/x", "the scheme 'nowhere'"),
        ("gs://", "names the bucket ''"),
        ("gs:///x", "names the bucket ''"),
        ("gs://Bucket/x", "names the bucket 'Bucket'"),
        ("gs://bucket/a/../b", "has a '.' or '..' in its key"),
        ("gs://bucket/..", "has a '.' or '..' in its key"),
        (
            "s3://b--use1-az4--x-s3/a",
            "a directory bucket, which does not list in order; choose another bucket",
        ),
        ("memory://bucket/./a", "has a '.' or '..' in its key"),
        ("gs://bucket/a\nb", r"contains '\\n' at position 13; .*rename it"),
        ("/a\x00b", r"contains '\\x00' at position 2"),
        ("/a\udcffb", "broken Unicode"),
        ("file://host/a", "names the host 'host'; a local path is file:///absolute/path"),
    ],
)
def test_what_cannot_be_an_object_is_refused(uri: str, message: str) -> None:
    """With what was found and what was expected."""
    with pytest.raises(ConfigError, match=message):
        normalise(uri)


@pytest.mark.parametrize("slashes", ["", "/"])
@pytest.mark.parametrize(
    ("scheme", "meant"),
    [
        *((one, f"{one}://bucket/x") for one in ("s3", "gs", "gcs", "s3a", "memory", "az", "hf", "https", "sftp")),
        *((one, f"{one.lower()}://bucket/x") for one in ("S3", "GS")),
        *((one, "{slashes}bucket/x") for one in ("file", "local")),
    ],
)
def test_a_uri_without_its_slashes_is_no_folder_of_this_machine(scheme: str, meant: str, slashes: str) -> None:
    """It is refused with what was likely meant, as an input, as an output, and in a recipe of a folder."""
    uri = f"{scheme}:{slashes}bucket/x"
    message = rf"^'{uri}' lacks '//' behind '{scheme}:'; did you mean {meant.format(slashes=slashes)}\?"
    for given in (uri, absolute(uri, "/home")):
        for read in (normalise, normalise_input):
            with pytest.raises(ConfigError, match=message):
                read(given)
    for path in (f"./{uri}", f"/a/{uri}"):
        assert normalise(path) == normalise_input(path) == os.path.abspath(path)  # noqa: PTH100


@pytest.mark.parametrize(
    "uri", ["http://[::1]:8000/a", "https://[2001:db8:0:0:0:0:0:1]/a/*.jsonl", "http://u@[fe80::1%1]"]
)
def test_a_host_in_brackets_is_refused(uri: str) -> None:
    """It was taken for a chain of file systems, or for a glob. What comes behind the host may be one."""
    with pytest.raises(ConfigError, match="IPv6 address"):
        normalise_input(uri)
    assert normalise_input("https://host/[ab].jsonl") == "https://host/[ab].jsonl"


@pytest.mark.parametrize(
    "uri",
    [
        *("simplecache::s3://bucket/x", "filecache::https://h/x", "blockcache::/data/x", "s3::zip://x", "dir::gs://b"),
        *("zip://a.jsonl::file:///x.zip", "zip://a.jsonl::x.zip", "tar://a::s3://b/x.tar", "https://h/a::https://b"),
    ],
)
def test_a_chain_of_file_systems_is_refused(uri: str) -> None:
    """It was a folder of this machine, or a file that does not exist, and two archives were one file system."""
    with pytest.raises(ConfigError, match=r"has '::', by which fsspec chains file systems,.* unpack the archive first"):
        normalise_input(uri)
    with pytest.raises(ConfigError, match=r"has '::', by which|cannot be an output"):
        normalise(uri)


@pytest.mark.parametrize(
    "name", ["a:b", "12:30/x", "data:x", "dir:/x:y", "x::y", "s3", "s3 :x", "C:x", "a/s3:b", "::s3"]
)
def test_a_colon_alone_makes_no_uri(name: str) -> None:
    """What begins with no scheme that anybody knows is a path; and a key may have any."""
    assert normalise_input(f"./{name}") == os.path.abspath(name)  # noqa: PTH100
    if ":/" not in name:
        assert normalise(name) == normalise_input(name) == os.path.abspath(name)  # noqa: PTH100
    assert normalise(f"s3://bucket/{name}") == f"s3://bucket/{name}"


def test_join_has_one_slash_at_each_seam() -> None:
    """Whatever slashes are around it."""
    for root, expected in (("gs://bucket/out", "gs://bucket/out/a/b"), ("/out/", "/out/a/b"), ("/", "/a/b")):
        assert join(root, "a", "/b/") == expected
    assert join("/out") == "/out"


def test_local_is_what_is_a_file() -> None:
    """A path with or without its scheme."""
    assert [is_local(uri) for uri in ("/a", "a", "file:///a", "gs://b/a", "memory://b/a")] == [True] * 3 + [False] * 2


def test_the_scheme_chooses_the_store() -> None:
    """By class; nothing is connected to."""
    uris = ("/a", "file:///a", "memory://b", "gs://b", "gcs://b/x", "s3://b/x", "s3a://b/x")
    found = [type(open_store(uri)).__name__ for uri in uris]
    assert found == ["LocalStore", "LocalStore", "MemoryStore", "GCSStore", "GCSStore", "S3Store", "S3Store"]
    with pytest.raises(ConfigError, match="swift"):
        open_store("swift://bucket/x")


def test_a_store_whose_package_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 is an extra: the message says what to install."""
    for name in [name for name in sys.modules if name.startswith("curate.stores.s3.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore.auth", None)
    with pytest.raises(ConfigError, match=r"s3:// needs the package botocore: pip install 'curate\[s3\]'"):
        open_store("s3://bucket/x")


def test_importing_storage_is_cheap() -> None:
    """Neither gcsfs nor ray nor anything heavy comes with the package, or with a local store."""
    script = (
        "import sys, curate.stores.open as s; s.open_store('/x'); s.open_store('memory://b');"
        "print(sorted({'botocore', 'urllib3', 'gcsfs', 'ray', "
        "'fsspec', 'aiohttp', 'pyarrow', 'tenacity', 'google'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("take", [at_home, Asset, given_script])
def test_nobodys_home_is_refused_by_its_name(take: Callable[[str], object]) -> None:
    """Wherever a path is given: Python raises a RuntimeError, which says neither which path nor whose home."""
    with pytest.raises(ConfigError, match=r"'~nobody here/x\.py' names the home of a user that does not exist"):
        take("~nobody here/x.py")


@pytest.mark.parametrize("module", [uris, ranges])
def test_examples_hold(module: object) -> None:
    """The docstrings' examples run."""
    failed, ran = doctest.testmod(module)  # type: ignore[arg-type]
    assert (failed, ran > 0) == (0, True)
