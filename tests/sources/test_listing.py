"""Inputs: what files, directories and globs match, what the objects are called, and what is said if there are none."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.errors import ConfigError
from curate.sources import listing
from curate.sources.listing import Inputs, Search, enclosing_ledgers, list_inputs
from curate.sources.patterns import parse_input, refuse_overlap
from curate.stores.memory import MemoryStore, clear
from curate.stores.open import open_store
from tests.job.inline import refusing
from tests.support.gcs_emulator import GcsEmulator


def find(*texts: str) -> Inputs:
    return list_inputs([parse_input(text) for text in texts], open_store)


def names(*texts: str) -> list[str]:
    found: list[str] = find(*texts).table["name"].to_pylist()
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files with all kinds of names."""
    for name in (
        "a.jsonl",
        "b.jsonl.gz",
        "c.parquet",
        "plain",
        "2022/a.jsonl",
        "2022/q1/a.jsonl",
        "2023/a.jsonl",
        "v1.0/d.jsonl",
        "spark.parquet/part-0.parquet",
        "_hidden.jsonl",
        ".hidden.jsonl",
        "_temporary/x.jsonl",
        "2022/.cache/x.jsonl",
        "2022/_SUCCESS",
        "a b/ü %20 {x}.jsonl",
        "[1]/*.jsonl",
    ):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "data"


ALL = [
    "2022/a.jsonl",
    "2022/q1/a.jsonl",
    "2023/a.jsonl",
    "[1]/*.jsonl",
    "a b/ü %20 {x}.jsonl",
    "a.jsonl",
    "b.jsonl.gz",
    "c.parquet",
    "plain",
    "spark.parquet/part-0.parquet",
    "v1.0/d.jsonl",
]


class TestWhatMatches:
    @pytest.mark.parametrize("text", ["{}", "{}/", "{}/.", "{}/x/..", "file://{}", "{}/**"])
    def test_a_directory_is_everything_below_it_but_hidden_names(self, tree: Path, text: str) -> None:
        assert names(text.format(tree)) == ALL

    @pytest.mark.parametrize(
        ("glob", "found"),
        [
            ("*.jsonl", ["a.jsonl"]),
            ("*.jsonl*", ["a.jsonl", "b.jsonl.gz"]),
            ("?.jsonl", ["a.jsonl"]),
            ("[ab].*", ["a.jsonl", "b.jsonl.gz"]),
            ("[!a].*", ["b.jsonl.gz", "c.parquet"]),
            ("[^a].*", ["b.jsonl.gz", "c.parquet"]),
            ("202[^2]/*[^0-9].jsonl", ["2023/a.jsonl"]),
            ("[a-c].parquet", ["c.parquet"]),
            ("*", ["a.jsonl", "b.jsonl.gz", "c.parquet", "plain"]),
            ("*/*.jsonl", [n for n in ALL if n.count("/") == 1 and n.endswith(".jsonl")]),
            ("202?/*.jsonl", ["2022/a.jsonl", "2023/a.jsonl"]),
            ("**/*.jsonl", [n for n in ALL if n.endswith(".jsonl")]),
            ("**/a.jsonl", ["2022/a.jsonl", "2022/q1/a.jsonl", "2023/a.jsonl", "a.jsonl"]),
            ("2022/**", ["a.jsonl", "q1/a.jsonl"]),
            ("202*/**", ["2022/a.jsonl", "2022/q1/a.jsonl", "2023/a.jsonl"]),
            ("202*/", ["2022/a.jsonl", "2022/q1/a.jsonl", "2023/a.jsonl"]),
            ("**/q1/*", ["2022/q1/a.jsonl"]),
            ("{a,c}.*", ["a.jsonl", "c.parquet"]),
            ("{2022,2023}/*.jsonl", ["2022/a.jsonl", "2023/a.jsonl"]),
            ("{2022/q1,2023}/a.jsonl", ["2022/q1/a.jsonl", "2023/a.jsonl"]),
            ("202{2,3}/{a,b*}.jsonl", ["2022/a.jsonl", "2023/a.jsonl"]),
            ("a b/*", ["ü %20 {x}.jsonl"]),
            ("a?b/*", ["a b/ü %20 {x}.jsonl"]),
        ],
    )
    def test_globs(self, tree: Path, glob: str, found: list[str]) -> None:
        """`*`, `?` and `[..]` stay within one part of a path; names are relative to what has no glob in it."""
        assert names(f"{tree}/{glob}") == found

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("a.jsonl", "a.jsonl"),
            ("plain", "plain"),
            ("2022/q1/a.jsonl", "a.jsonl"),
            ("_hidden.jsonl", "_hidden.jsonl"),
            ("2022/.cache/x.jsonl", "x.jsonl"),
            ("a b/ü %20 {x}.jsonl", "ü %20 {x}.jsonl"),
            ("[1]/*.jsonl", "*.jsonl"),
        ],
    )
    def test_a_file_is_itself_whatever_it_is_called(self, tree: Path, text: str, name: str) -> None:
        """Without a suffix, hidden, or with the characters of a glob in its name, if no other file matches that."""
        assert names(f"{tree}/{text}") == [name]

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("v1.0", ["d.jsonl"]),
            ("spark.parquet", ["part-0.parquet"]),
            ("[1]", ["*.jsonl"]),
            ("_temporary", ["x.jsonl"]),
        ],
    )
    def test_a_directory_may_be_called_like_a_file_a_glob_or_hidden(
        self, tree: Path, text: str, found: list[str]
    ) -> None:
        assert names(f"{tree}/{text}") == found

    def test_relative_paths(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tree / "2022")
        assert names("a.jsonl") == names("./a.jsonl") == names("../2022/./a.jsonl") == ["a.jsonl"]
        assert names(".") == names("./") == ["a.jsonl", "q1/a.jsonl"]
        assert names("../*.parquet") == ["c.parquet"]

    def test_links_are_followed(self, tree: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tree / "2022")
        (tree / "2023" / "more").symlink_to(tree / "2022" / "q1")
        (tree / "2023" / "b.jsonl").symlink_to(tree / "a.jsonl")
        assert names(f"{tmp_path}/link") == ["a.jsonl", "q1/a.jsonl"]
        assert names(f"{tree}/2023") == ["a.jsonl", "b.jsonl", "more/a.jsonl"]

    def test_an_object_that_two_patterns_match_counts_once_with_its_first_name(self, tree: Path) -> None:
        assert names(f"{tree}/2022", f"{tree}/**/a.jsonl") == ["a.jsonl", "q1/a.jsonl", "2023/a.jsonl", "a.jsonl"]
        uris = find(f"{tree}/2022", f"{tree}/**/a.jsonl", f"{tree}/2022/").table["uri"].to_pylist()
        assert len(set(uris)) == len(uris) == 4

    def test_sizes_and_generations_are_those_of_the_objects(self, tree: Path) -> None:
        table = find(f"{tree}/a.jsonl").table
        store = open_store(str(tree))
        seen = store.stat(f"{tree}/a.jsonl")
        assert table.table().to_pylist() == [
            {"uri": f"{tree}/a.jsonl", "name": "a.jsonl", "size": 1, "generation": seen.generation}
        ]


PARTS = ["a", "b.c", "ab", "[x]", "*", "?", "[ab]*", "**", "a*", "{a,b*}"]


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3))
def test_globs_agree_with_a_plain_walk(parts: list[str]) -> None:
    """Against the definition, on every path of up to three parts over a few names."""
    known = ["a", "b.c", "ab", "x"]
    paths = ["/".join(path) for length in (1, 2, 3) for path in product(known, repeat=length)]
    bucket = "memory://globs"
    store = open_store(bucket)
    if next(iter(store.list(f"{bucket}/")), None) is None:
        for path in paths:
            store.publish(f"{bucket}/in/{path}", b"")
    glob = "/".join(parts)
    if not re.search(r"[*?\[{]", glob):
        return
    wanted = [path for path in sorted(paths) if _matches(path.split("/"), parts)]
    try:
        table = find(f"{bucket}/in/{glob}").table
    except ConfigError:
        assert wanted == []
    else:
        assert [uri.removeprefix(f"{bucket}/in/") for uri in table["uri"].to_pylist()] == wanted


def _matches(path: list[str], parts: list[str]) -> bool:
    if not parts:
        return not path
    if parts[0] == "**":
        if len(parts) == 1:
            return bool(path)
        return any(_matches(path[k:], parts[1:]) for k in range(len(path) + 1))
    alternatives = ["a", "b*"] if parts[0] == "{a,b*}" else [parts[0]]
    return (
        bool(path) and any(fnmatch.fnmatchcase(path[0], one) for one in alternatives) and _matches(path[1:], parts[1:])
    )


class TestBuckets:
    @pytest.fixture
    def bucket(self) -> Iterator[str]:
        bucket = "memory://inputs"
        store = open_store(bucket)
        for name in (
            "d/a.jsonl",
            "d/2/b.jsonl",
            "d2/c.jsonl",
            "d/",
            "d/2/",
            "e.jsonl",
            "e.jsonl.bak",
            "d/x/_curate/job.json",
        ):
            store.publish(f"{bucket}/{name}", b"1")
        yield bucket
        clear("inputs")

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("d", ["2/b.jsonl", "a.jsonl"]),
            ("d/", ["2/b.jsonl", "a.jsonl"]),
            ("d*/*.jsonl", ["d/a.jsonl", "d2/c.jsonl"]),
            ("e.jsonl", ["e.jsonl"]),
            ("", ["d/2/b.jsonl", "d/a.jsonl", "d2/c.jsonl", "e.jsonl", "e.jsonl.bak"]),
        ],
    )
    def test_names_that_only_begin_alike_are_others_and_folder_marks_are_none(
        self, bucket: str, text: str, found: list[str]
    ) -> None:
        assert names(f"{bucket}/{text}") == found

    def test_gs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One paged listing a pattern, of as little as the glob allows."""
        with GcsEmulator().here(monkeypatch) as emulator:
            store = open_store("gs://bucket")
            for name in ("in/2022/a.jsonl", "in/2022/q1/a.jsonl", "in/2023/a b%20ü.jsonl", "in/_x/a.jsonl"):
                store.publish(f"gs://bucket/{name}", b"x")
            before = emulator.counts()
            assert names("gs://bucket/in/202?/*.jsonl") == ["2022/a.jsonl", "2023/a b%20ü.jsonl"]
            assert names("gs://bucket/in/**") == ["2022/a.jsonl", "2022/q1/a.jsonl", "2023/a b%20ü.jsonl"]
            assert names("gcs://bucket/in/2023/") == ["a b%20ü.jsonl"]
            assert names("gs://bucket/in/2022/a.jsonl") == ["a.jsonl"]
            after = emulator.counts()
            assert {kind: after[kind] - before[kind] for kind in after} == {"list": 4, "get": 0, "put": 0, "delete": 0}

    @pytest.mark.parametrize("place", ["local", "memory"])
    def test_a_name_that_is_a_glob_of_others_is_refused(self, place: str, tmp_path: Path) -> None:
        """Whichever was meant, the other would be missing; escaped, it is the object. Where the glob matches no other
        object, it is that as well."""
        root = str(tmp_path) if place == "local" else f"memory://bucket/{tmp_path.name}"
        store = open_store(root, scratch=f"{root}/_curate/tmp/x")
        for name in ("x[1].jsonl", "x1.jsonl", "y[1].jsonl", "y2.jsonl"):
            store.publish(f"{root}/{name}", b"x")
        with refusing("is the name of an object, and a glob that matches others, such as 'x1.jsonl'"):
            find(f"{root}/x[1].jsonl")
        assert names(f"{root}/x[[]1].jsonl") == ["x[1].jsonl"]
        assert names(f"{root}/y[1].jsonl") == ["y[1].jsonl"]
        assert names(f"{root}/x[12].jsonl") == ["x1.jsonl"]


class TestNothing:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("nowhere", "/data/nowhere' does not exist, as a file or a directory; check the path"),
            ("a.json", "/data/a.json' does not exist, as a file or a directory; did you mean 'a.jsonl'?"),
            ("2O22", "did you mean '2022'?"),
            ("nowhere/", "/data/nowhere/' does not exist"),
            ("*.csv", "/data/*.csv' matches no object (listed '"),
            ("*.csv", "check the path, and quote globs, so that the shell does not expand them"),
            ("202*", "matches no object (listed '"),
            ("202*", "but a directory, '2022'; end it with /** to read the files in it"),
            ("_h*", "matches only names that begin with '_' or '.', such as '_hidden.jsonl', which are skipped"),
            ("_temporary*/*", "matches only names that begin with '_' or '.', such as '_temporary/x.jsonl'"),
            ("$DATA/*.jsonl", "nobody has replaced the variable $DATA: write its value out, or let a shell do it"),
            ("${DATA}/a.jsonl", "nobody has replaced the variable ${DATA}: write its value out"),
        ],
    )
    def test_a_pattern_that_matches_nothing_is_named_with_a_way_on(self, tree: Path, text: str, message: str) -> None:
        with refusing(message):
            find(f"{tree}/a.jsonl", f"{tree}/{text}")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a**b/x", "`**` must be a whole path component, as in data/**/*.jsonl"),
            ("{1,2,3,4,5,6,7,8,9,10,11}" * 3, "expands to more than 1000 globs"),
        ],
    )
    def test_what_is_no_glob_is_refused(self, text: str, message: str) -> None:
        with refusing(message):
            parse_input(f"/data/{text}")


class TestLedgers:
    """The output of a job is a valid input. Its `_curate/` never matches; and it has to be complete."""

    def _job(self, root: Path, *, complete: bool) -> Path:
        (root / "_curate" / "quarantine").mkdir(parents=True)
        (root / "2023").mkdir()
        for name in ("a.parquet", "2023/b.parquet", "_curate/job.json", "_curate/plan.parquet"):
            (root / name).write_bytes(b"x")
        if complete:
            (root / "_curate" / "summary.json").write_bytes(b"x")
        return root

    @pytest.mark.parametrize("text", ["{}", "{}/", "{}/**", "{}/**/*.parquet", "{}/*/*.parquet", "{}/../*/**"])
    def test_a_ledger_never_matches(self, tmp_path: Path, text: str) -> None:
        root = self._job(tmp_path / "out", complete=True)
        found = find(text.format(root))
        assert all("_curate" not in uri for uri in found.table["uri"].to_pylist())
        assert False not in found.upstreams.values()

    @pytest.mark.parametrize("text", ["{}", "{}/**", "{}/../*/*.parquet", "{}/.."])
    def test_an_incomplete_one_is_noted(self, tmp_path: Path, text: str) -> None:
        root = self._job(tmp_path / "out", complete=False)
        assert find(text.format(root)).upstreams == {str(root): False}

    @pytest.mark.parametrize("text", ["{}/2023", "{}/2023/*.parquet", "{}/a.parquet", "{}/2023/b.parquet", "{}/20*/*"])
    @pytest.mark.parametrize("complete", [True, False])
    def test_one_that_encloses_an_input_is_found(self, tmp_path: Path, text: str, complete: bool) -> None:
        root = self._job(tmp_path / "out", complete=complete)
        found = list(enclosing_ledgers([parse_input(text.format(root))], open_store))
        assert found == [(str(root), complete)]

    def test_each_directory_is_asked_about_once(self) -> None:
        """Two small reads at most for each level, however many inputs lie there."""
        store = MemoryStore()
        store.publish("memory://levels/a/b/x1.jsonl", b"")
        texts = [f"memory://levels/a/b/x{k}.jsonl" for k in range(20)]
        assert list(enclosing_ledgers([parse_input(text) for text in texts], lambda _: store)) == []
        assert store.calls.get <= 20 + 3
        clear("levels")


class TestOverlap:
    @pytest.mark.parametrize(
        ("text", "output"),
        [
            ("/data", "/data/out"),
            ("/data/", "/data/deep/out"),
            ("/data/**", "/data/out"),
            ("/data/**/*.jsonl", "/data/out"),
            ("/data/*/*.parquet", "/data/out"),
            ("/data/{a,out}/*.parquet", "/data/out"),
            ("/data/v1.0", "/data/v1.0/out"),
            ("gs://b/data", "gs://b/data/out"),
            ("/", "/out"),
        ],
    )
    def test_an_output_inside_an_input_is_refused(self, text: str, output: str) -> None:
        with refusing(f"output {output!r} lies inside input {text!r}: a rerun would read its own results"):
            refuse_overlap([parse_input(text)], output)

    @pytest.mark.parametrize(
        ("text", "output"),
        [
            ("/out/a.parquet", "/out"),
            ("/out/2023", "/out"),
            ("/out/*.parquet", "/out"),
            ("gs://b/out/x/**", "gs://b/out"),
        ],
    )
    def test_an_input_inside_the_output_is_refused(self, text: str, output: str) -> None:
        with pytest.raises(ConfigError, match=r"lies inside|is the directory of input"):
            refuse_overlap([parse_input(text)], output)

    def test_input_and_output_being_the_same_is_refused(self) -> None:
        with refusing("output '/data' is input '/data'"):
            refuse_overlap([parse_input("/data")], "/data")

    @pytest.mark.parametrize(
        ("text", "output"),
        [
            ("/data", "/data2"),
            ("/data/in", "/data/out"),
            ("/data/*.jsonl", "/data/out"),
            ("/data/*", "/data/out"),
            ("/data/in*/*.jsonl", "/data/out"),
            ("/data/{a,b}/*.jsonl", "/data/out"),
            ("gs://b/data", "/data/out"),
            ("gs://b/d", "gs://b/data"),
        ],
    )
    def test_beside_each_other_they_are_fine(self, text: str, output: str) -> None:
        refuse_overlap([parse_input(text)], output)

    def test_links_do_not_hide_it(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "data")
        with refusing("lies inside input"):
            refuse_overlap([parse_input(f"{tmp_path}/data")], f"{tmp_path}/link/out")
        with refusing("lies inside input"):
            refuse_overlap([parse_input(f"{tmp_path}/link/**")], f"{tmp_path}/data/out")


@pytest.mark.parametrize("leads", ["there", "there/out", "there/out/sub"])
@pytest.mark.parametrize("kind", ["rows", "exchange"])
def test_no_link_leads_from_the_inputs_into_the_output(tmp_path: Path, leads: str, kind: str) -> None:
    """A rerun, and one that overwrites, is refused: it would read its own results, and more of them each time."""
    inputs, output = tmp_path / "in", tmp_path / "there" / "out"
    for folder in (inputs / "sub", output / "sub"):
        folder.mkdir(parents=True)
    pq.write_table(pa.table({"n": [1]}), inputs / "sub" / "a.parquet")
    (inputs / "link").symlink_to(tmp_path / leads)

    def run(overwrite: bool) -> None:
        rows = curate.read_parquet(str(inputs), allow_incomplete_input=True)
        if kind == "exchange":
            rows = rows.sort("n")
        rows.write_parquet(str(output), backend="inline", overwrite=overwrite, yes=True)

    run(overwrite=False)
    pq.write_table(pa.table({"n": [2]}), output / "sub" / "b.parquet")
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    for overwrite in (False, True):
        with refusing("inside the output"):
            run(overwrite)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_directory_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    from curate.errors import PermissionDenied

    (tmp_path / "data").mkdir(mode=0)
    with pytest.raises(PermissionDenied, match=f"{tmp_path}/data"):
        find(f"{tmp_path}/data")


def test_a_link_to_nothing_is_refused(tree: Path) -> None:
    """Its file is on a disk that is not mounted, or was not fetched: it was left out without a word. One that a glob
    does not match, or that is hidden, as editors leave some, is nobody's matter."""
    (tree / "2023" / "gone.jsonl").symlink_to("/nowhere/gone.jsonl")
    (tree / "2022" / ".#lock.jsonl").symlink_to("user@host.17")
    with refusing(
        f"input '{tree}/2023/gone.jsonl' is a link to nothing, expected a file ('{tree}' matches it); see that"
    ):
        find(str(tree))
    assert names(f"{tree}/2023/a*") == ["a.jsonl"]
    assert "2022/a.jsonl" in names(f"{tree}/202[0-2]/*")


ODD = st.sampled_from(["a", "b.jsonl", "_c", ".d", "_curate/job.json", "é", "e/_f/g", "h/i.jsonl", "j\nk", "l/m"])


@given(
    found=st.lists(ODD, max_size=12, unique=True), rows=st.integers(1, 5), glob=st.sampled_from(["", "*", "**/*.jsonl"])
)
def test_in_blocks_as_one_by_one(found: list[str], rows: int, glob: str) -> None:
    """However many objects are looked at together, and whatever else there is among them: the same are found."""
    clear()
    store = open_store("memory://blocks")
    for name in found:
        store.publish(f"memory://blocks/_in/{name}", name.encode())
    told = f"memory://blocks/_in/{glob}"

    def outcome(rows: int) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listing, "BLOCK_ROWS", rows)
            try:
                inputs = list_inputs([parse_input(told)], open_store)
            except ConfigError as error:
                return str(error)
            return inputs.table.table().to_pylist(), inputs.upstreams

    assert outcome(rows) == outcome(1)
    if isinstance(one := outcome(1), tuple):
        search = Search(parse_input(told), store, {})
        assert [(item.uri, name) for item, name in search.found()] == [(row["uri"], row["name"]) for row in one[0]]
