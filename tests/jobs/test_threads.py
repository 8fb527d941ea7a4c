"""The job of threads: each against plain Python, what is said of what is missing, and runs from end to end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import curate
from curate.ledger.summary import RunState
from curate.testing.local import run_local
from jobs.threads import THREAD, Threads, parents_of, reading_order, thread
from tests.job.inline import output_rows, refusing, run_job, write_jsonl

ROOT = Path(__file__).parents[2]


def comment(name: str, parent: str | None = None, created: int | None = 0, **more: Any) -> dict[str, Any]:
    """Returns a comment of the thread t3_x."""
    return {
        "id": name,
        "link_id": "t3_x",
        "parent_id": parent,
        "subreddit": "s",
        "author": f"by {name}",
        "created_utc": created,
        "score": 1,
        "body": f"body {name}",
    } | more


def thread_of(*comments: dict[str, Any], max_comments: int = 100, separator: str = "\n\n") -> dict[str, Any]:
    """Returns the one thread that comments become."""
    table = pa.Table.from_pylist(list(comments), schema=COMMENTS)
    [found] = thread(table, most=max_comments, separator=separator).to_pylist()
    return dict(found)


COMMENTS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "link_id", "parent_id", "subreddit", "author", "body")),
        ("created_utc", pa.int64()),
        ("score", pa.int64()),
    ]
)


def told(parents: dict[str, str | None], names: list[str]) -> list[str]:
    """Returns names in the order in which a thread is read: the rule, by recursion."""

    def below(above: str | None) -> list[str]:
        return [one for name in names if parents[name] == above for one in (name, *below(name))]

    return below(None)


@given(st.data())
def test_any_thread_is_told_as_the_rule_says(data: st.DataObject) -> None:
    """Answers follow what they answer, and come by time; whatever the order of the rows."""
    names = [f"c{k}" for k in range(data.draw(st.integers(1, 12)))]
    # What is answered is older, or the post, or gone.
    answered = [
        data.draw(st.sampled_from([None, "t3_x", "t1_gone", *(f"t1_{one}" for one in names[:k])]))
        for k in range(len(names))
    ]
    rows = [comment(name, parent, created=k) for k, (name, parent) in enumerate(zip(names, answered, strict=True))]
    found = thread_of(*data.draw(st.permutations(rows)), separator="|")
    known = {f"t1_{name}": name for name in names}
    parents = {name: known.get(parent or "") for name, parent in zip(names, answered, strict=True)}
    assert found["text"].split("|") == [f"body {name}" for name in told(parents, names)]
    assert [one["id"] for one in found["comments"]] == names
    for one in found["comments"]:
        above = found["comments"][one["parent"]]["id"] if one["parent"] is not None else None
        assert above == parents[one["id"]]
        depth, at = 0, parents[one["id"]]
        while at is not None:
            depth, at = depth + 1, parents[at]
        assert one["depth"] == depth
    assert found["num_orphans"] == answered.count("t1_gone")
    assert (found["num_comments"], found["first_utc"], found["last_utc"]) == (len(names), 0, len(names) - 1)


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=10))
def test_every_comment_is_told_once_whoever_answers_whom(links: list[int | None]) -> None:
    """Also where comments are one another's answers, or their own: each circle is cut at its first one, and nowhere
    else."""
    names = [f"c{k}" for k in range(len(links))]
    parents = parents_of(names, [None if one is None else f"t1_c{one}" for one in links])
    order, depths = reading_order(parents)
    assert sorted(order) == list(range(len(links)))
    for place, (parent, link) in enumerate(zip(parents, links, strict=True)):
        assert depths[place] == (0 if parent is None else depths[parent] + 1)
        if parent is None and link is not None and link < len(links):
            circle, at = [place], link
            while at != place and len(circle) <= len(links):
                circle.append(at)
                following = links[at]
                assert following is not None
                at = following
            assert place == min(circle)
        else:
            assert parent == (link if link is not None and link < len(links) else None)


def test_a_deep_thread() -> None:
    """People answer one another a thousand times, and more."""
    rows = [comment(f"c{k}", f"t1_c{k - 1}" if k else "t3_x", created=k) for k in range(5000)]
    found = thread_of(*rows, max_comments=5000)
    assert (found["max_depth"], found["num_orphans"]) == (4999, 0)
    assert found["text"].split("\n\n") == [f"body c{k}" for k in range(5000)]


def test_of_a_huge_thread_the_first_comments_are_kept() -> None:
    """As many as `max_comments` says; what answers one that is left out is no orphan of theirs, for it is out too."""
    rows = [comment(f"c{k}", f"t1_c{k + 1}" if k == 3 else "t3_x", created=k) for k in range(10)]
    found = thread_of(*reversed(rows), max_comments=4)
    assert [one["id"] for one in found["comments"]] == ["c0", "c1", "c2", "c3"]
    assert (found["num_comments"], found["num_omitted"], found["num_orphans"]) == (4, 6, 1)
    assert thread_of(*rows, max_comments=10)["num_omitted"] == 0


def test_what_is_missing_or_there_twice() -> None:
    """Deleted authors do not count; comments without a time come last; of an id, the row that comes first."""
    found = thread_of(
        comment("a", created=None),
        comment("b", created=7, author=None),
        comment("c", created=9, author="[deleted]"),
        comment("b", created=1, body="again"),
    )
    assert [one["id"] for one in found["comments"]] == ["b", "c", "a"]
    assert (found["num_duplicates"], found["num_authors"]) == (1, 1)
    assert (found["first_utc"], found["last_utc"]) == (7, 9)


def test_rows_that_are_no_comments_are_set_aside(tmp_path: Path) -> None:
    """Without a thread, an id or a body; the others become threads."""
    rows = [comment("a"), comment("b", link_id=None), comment("c", body=None), {"id": "d"}]
    source = write_jsonl(tmp_path / "in" / "rows.jsonl", rows)
    summary = run_job(Threads(), source, tmp_path / "out")
    assert summary.state is RunState.COMPLETE
    assert [row["num_comments"] for row in output_rows(tmp_path / "out")] == [1]


def test_no_threads_at_all() -> None:
    """The output has its columns all the same."""
    ran = run_local(Threads, COMMENTS.empty_table())
    assert ran.summary.state is RunState.COMPLETE
    assert ran.table.schema.remove_metadata().equals(THREAD)


def test_refused() -> None:
    """A thread of nothing."""
    with refusing("--max-comments 0 would leave nothing of any thread"):
        Threads(max_comments=0).spec()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file that can be read, by other means than curate's."""
    if path.suffix == ".parquet":
        yield from pq.read_table(path).to_pylist()
        return
    with pa.input_stream(str(path), compression="detect") as stream:
        for line in stream.read().splitlines():
            with contextlib.suppress(orjson.JSONDecodeError):
                yield orjson.loads(line)


def by_thread(source: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the comments of a corpus by their threads, each by time."""
    threads: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        for row in read_rows(path):
            if all(isinstance(row.get(name), str) for name in ("id", "link_id", "body")):
                threads[row["link_id"]].append(row)
    return {link: sorted(rows, key=lambda row: row["created_utc"]) for link, rows in sorted(threads.items())}


def run_corpus(folder: Path, *options: str, comments: int = 2_000) -> dict[str, Any]:
    """Makes a corpus, and threads of it with the script itself; returns what it printed."""
    corpus = [sys.executable, str(ROOT / "scripts/corpus"), "--output", str(folder / "in"), "--comments", str(comments)]
    subprocess.run(corpus, check=True, capture_output=True)
    ran = subprocess.run(
        [
            sys.executable,
            str(ROOT / "jobs/threads.py"),
            "--input",
            str(folder / "in"),
            "--output",
            str(folder / "out"),
            "--json",
            *options,
        ],
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    value: dict[str, Any] = orjson.loads(ran.stdout)
    return value


def check_corpus(folder: Path) -> None:
    threads = by_thread(folder / "in")
    found = pq.read_table(folder / "out")
    assert found["link_id"].to_pylist() == list(threads)
    for row, rows in zip(found.to_pylist(), threads.values(), strict=True):
        assert [one["id"] for one in row["comments"]] == [one["id"] for one in rows]
        assert sorted(row["text"]) == sorted("\n\n".join(one["body"] for one in rows))
        assert row["subreddit"] == rows[0]["subreddit"]


@pytest.mark.slow
def test_a_corpus_by_the_script_itself(tmp_path: Path) -> None:
    """Every comment that can be read is in its thread, once, by time; threads come in order; a rerun does nothing."""
    summary = run_corpus(tmp_path, "--backend", "inline")
    assert (summary["state"], summary["job"]) == ("complete", "threads")
    check_corpus(tmp_path)
    again = run_job(Threads(), tmp_path / "in", tmp_path / "out")
    assert (again.state, again.dispatched) == (RunState.COMPLETE, 0)


@pytest.mark.slow
@pytest.mark.ray_lane
@pytest.mark.nightly
@pytest.mark.usefixtures("on_ray")
def test_a_corpus_on_ray(tmp_path: Path) -> None:
    """The same in processes of Ray, of a smaller one."""
    run_corpus(tmp_path, comments=300)
    check_corpus(tmp_path)


def test_dumps_with_times_as_text_are_read_as_the_readme_says(tmp_path: Path) -> None:
    """They are refused otherwise, with the reason; and rows of them are bad rows where that is asked for."""
    write_jsonl(tmp_path / "old" / "a.jsonl", [comment("a", created=None, created_utc="1230768000")])
    refused = run_job(Threads(), tmp_path / "old", tmp_path / "refused")
    assert refused.state == "failed"
    assert "column 'created_utc' is not an integer: found string" in refused.failures[0].error
    left_out = run_job(Threads(max_bad_rows="100%"), tmp_path / "old", tmp_path / "left out")
    assert (left_out.books.rows_out, left_out.books.quarantined) == (0, 1)
    comments = curate.read_json(tmp_path / "old").with_column("created_utc", pc.field("created_utc").cast("int64"))
    assert comments.write_parquet(tmp_path / "new", backend="inline").state == "complete"
    run_job(Threads(), tmp_path / "new", tmp_path / "out")
    [found] = pq.read_table(tmp_path / "out").to_pylist()
    assert (found["first_utc"], found["num_comments"]) == (1230768000, 1)
