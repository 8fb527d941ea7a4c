"""The job that keeps evaluation sets out of a corpus."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from curate.errors import ConfigError
from curate.testing.local import run_local
from jobs.decontaminate import Decontaminate
from tests.job.inline import outputs, write_jsonl
from tests.jobs.places import PLACES, there
from tests.jobs.test_paragraphs import written

QUESTION = "If a train leaves at 9:30 and goes 120 km, when is it there?"
ANSWER = "It is there at eleven."
ROWS = [
    {"id": "a", "text": f"Homework. {QUESTION} I do not know."},
    {"id": "b", "text": "Trains leave at nine, and go far."},
    {"id": "c", "text": f"{QUESTION.upper()}\n\n{ANSWER} Thanks."},
    {"id": "d", "text": None},
    {"id": "e", "text": ""},
]


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    """Two sets, of other formats and columns."""
    write_jsonl(tmp_path / "math.test.jsonl.gz", [{"question": QUESTION, "answer": ANSWER}])
    pq.write_table(pa.table({"text": ["nothing of it is anywhere"], "n": [1]}), tmp_path / "other.parquet")
    return [str(tmp_path / "math.test.jsonl.gz"), str(tmp_path / "other.parquet")]


def job(sets: list[str], **given: Any) -> Decontaminate:
    return Decontaminate(
        **{
            "sets": sets,
            "n": 5,
            "columns_of_sets": {"math": ["question", "answer"]},
            "prompt_columns": [],
            **given,
        }
    )


def test_contaminated_texts_are_dropped_and_told(sets: list[str]) -> None:
    """Set, example, n-gram and place of each; other rows, nulls and empty texts stay as they are."""
    ran = run_local(job(sets), ROWS)
    assert ran.rows == [ROWS[1], *ROWS[3:]]
    assert ran.summary.books.dropped == {"contaminated": 2}
    told = ran.sides["contaminated"].to_pylist()
    assert told[0] == {
        "id": "a",
        "set": "math",
        "example": 0,
        "ngram": "if a train leaves at",
        "start": 10,
        "end": 30,
        "occurrences": 1,
    }
    assert Counter(row["id"] for row in told) == {"a": 11, "c": 16}


def test_a_question_alone_may_be_quoted(sets: list[str]) -> None:
    """Where it is a prompt, n-grams count that end in the answer."""
    one = job(sets[:1], prompt_columns=["question"], columns_of_sets={"math": ["answer"]})
    ran = run_local(one, ROWS)
    assert [row["id"] for row in ran.rows] == ["a", "b", "d", "e"]
    told = [row["ngram"] for row in ran.sides["contaminated"].to_pylist()]
    assert (told[0], told[-1], len(told)) == ("when is it there it", "it is there at eleven", 5)


def test_texts_are_annotated_or_cut(sets: list[str]) -> None:
    """Two columns say how many n-grams, and of which sets; or nothing else is changed than that they are gone."""
    ran = run_local(job(sets, action="annotate", set_names=["m", "o"], columns_of_sets={"m": ["question"]}), ROWS)
    assert [(row["contaminated_ngrams"], row["contaminated_sets"]) for row in ran.rows] == [
        (11, ["m"]),
        (0, []),
        (11, ["m"]),
        (0, []),
        (0, []),
    ]
    assert [{"id": row["id"], "text": row["text"]} for row in ran.rows] == ROWS
    ran = run_local(job(sets, action="cut", min_words=2), ROWS)
    assert [row["text"] for row in ran.rows] == [
        "Homework.  I do not know.",
        *[row["text"] for row in (ROWS[1], *ROWS[3:])],
    ]
    assert ran.summary.books.dropped == {"too few words left": 1}
    assert ran.summary.books.counters["spans cut out"] == 2
    ran = run_local(job(sets, action="cut", margin=4, min_words=0), ROWS)
    assert ran.rows[0]["text"] == "Homewoo not know."


def test_what_many_texts_say_is_no_example(sets: list[str]) -> None:
    """N-grams of more texts than a bound are left out of account; with a bound of 0 none is."""
    rows = [{"id": n, "text": f"{QUESTION} {n}"} for n in range(4)] + [{"id": 9, "text": f"{ANSWER} {QUESTION}"}]
    assert len(run_local(job(sets, max_documents=4), rows).rows) == 4
    assert len(run_local(job(sets, max_documents=5), rows).rows) == 0
    assert len(run_local(job(sets, max_documents=0), rows).rows) == 0


def test_short_examples_are_said_and_a_set_of_them_is_refused(tmp_path: Path) -> None:
    examples = [{"text": text} for text in (QUESTION, "", "Why?", None, QUESTION)]
    some = str(write_jsonl(tmp_path / "some.jsonl", examples))
    with capture_logs() as logs:
        assert [row["id"] for row in run_local(Decontaminate(sets=[some]), ROWS).rows] == ["b", "d", "e"]
    said = {one["event"] for one in logs if one.get("set") == "some"}
    assert said == {
        "evaluation set 'some': 3 of 5 examples cannot be found: they have fewer than 13 words (2 have none)"
    }
    with pytest.raises(ConfigError, match="none of its 5 examples has 16 words in text"):
        run_local(Decontaminate(sets=[some], n=16), ROWS)


def test_what_makes_no_sense_is_refused(sets: list[str], tmp_path: Path) -> None:
    """Before anything runs, with what to do."""
    twice = str(write_jsonl(tmp_path / "b" / "math.jsonl", [{"question": QUESTION}]))
    for said, one in {
        "does not exist; check the path in sets=": job([str(tmp_path / "gone.jsonl")]),
        "--set-names has 1 names for 2 sets": job(sets, set_names=["math"]),
        "two evaluation sets are called 'math'": job([sets[0], twice]),
        r"--columns-of-sets: 'math' has 'question', expected a list": job(sets, columns_of_sets={"math": "question"}),
        r"columns of 'maths'; did you mean 'math'\?": job(sets, columns_of_sets={"maths": ["question"]}),
        "set 'math' .*no column 'text'.*'question'": job(sets, columns_of_sets={}),
        "no column 'questions'; did you mean 'question'": job(sets, columns_of_sets={"math": ["questions"]}),
        "column 'n' is int64, expected texts": job(sets, columns_of_sets={"math": ["question"], "other": ["n"]}),
        "max-documents is -1, expected a whole number": job(sets, max_documents=-1),
        "--sets names no evaluation set": Decontaminate(sets=[]),
        "no column 'body'": job(sets, text_column="body"),
    }.items():
        with pytest.raises(ConfigError, match=said):
            run_local(one, ROWS)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"columns_of_sets": {}}, "set_columns=..."),
        ({"set_columns": ["question"], "columns_of_sets": {}, "prompt_columns": ["text"]}, "prompt_columns=..."),
        ({"set_columns": ["question"], "columns_of_sets": {"math": ["text"]}}, "columns_of_sets=..."),
    ],
)
def test_a_column_that_a_set_lacks_is_told_with_the_option_of_sets(
    sets: list[str], options: dict[str, Any], told: str
) -> None:
    """And not with that of the column of the corpus, which is called alike."""
    with pytest.raises(ConfigError, match=r"^evaluation set 'math' .*no column 'text'") as refused:
        job(sets, **options).spec()
    assert str(refused.value).endswith(f". Another one is chosen with {told}")


def test_texts_that_are_not_utf8_stay_and_are_counted(sets: list[str]) -> None:
    texts = [b"\xed\xa0\x80 " + QUESTION.encode(), QUESTION.encode(), b"\xff"]
    table = pa.table({"id": range(3), "text": pa.array(texts).view(pa.string())})
    ran = run_local(job(sets), table)
    assert ran.table["text"].cast(pa.binary()).to_pylist() == [texts[0], texts[2]]
    assert ran.summary.books.counters["texts that are not UTF-8"] == 2


@pytest.mark.nightly
@pytest.mark.parametrize("action", ["drop", "cut"])
def test_a_text_of_100_mb(sets: list[str], action: str) -> None:
    """It is a text like others: an example in the middle of it is found."""
    half = "".join(f"line {n:08} of a very long text, which goes on and on\n" for n in range(1_000_000))
    table = pa.table({"id": [0], "text": pa.array([f"{half}{QUESTION}\n{half}"], pa.large_string())})
    ran = run_local(job(sets, action=action, normalise="folded"), table)
    assert len(half) > 50_000_000
    assert ran.sides["contaminated"]["start"].to_pylist()[0] == len(half)
    assert ran.table["text"].to_pylist() == ([f"{half}\n{half}"] if action == "cut" else [])


@pytest.mark.ray(0)
@pytest.mark.parametrize(("files", "backend"), PLACES)
def test_brute_force_at_one_shard_and_many(
    files: int, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What is dropped and told is what a loop over texts and examples finds, and the same for any files."""
    draw = random.Random(8)
    words = [f"w{n}" for n in range(6)]
    texts = [" ".join(draw.choices(words, k=draw.randrange(30))) for _ in range(300)]
    examples = [" ".join(draw.choices(words, k=draw.randrange(12))) for _ in range(20)]
    path = tmp_path / "made.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in examples))

    def grams(text: str) -> list[str]:
        return [" ".join(text.split()[at : at + 4]) for at in range(len(text.split()) - 3)]

    known: dict[str, int] = {}
    for number, text in enumerate(examples):
        for gram in grams(text):
            known.setdefault(gram, number)
    count = Counter(gram for text in texts for gram in set(grams(text)))
    told = [
        (id, gram, known[gram])
        for id, text in enumerate(texts)
        for gram in dict.fromkeys(grams(text))
        if gram in known and count[gram] <= 2
    ]
    gone = {id for id, _, _ in told}
    assert 20 < len(gone) < 200
    assert sum(count[gram] > 2 for gram in known) > 20
    folder = written([{"id": id, "text": text} for id, text in enumerate(texts)], tmp_path / "in", files)
    out = tmp_path / "out"
    made = Decontaminate(sets=[str(path)], n=4, max_documents=2, normalise="exact")
    summary = made.run(input=str(folder), output=str(out), backend=there(backend, request))
    found = outputs(out)
    rows = [row for name, table in found.items() if not name.startswith("_side") for row in table.to_pylist()]
    side = [row for name, table in found.items() if name.startswith("_side") for row in table.to_pylist()]
    assert rows == [{"id": id, "text": text} for id, text in enumerate(texts) if id not in gone]
    assert [(row["id"], row["ngram"], row["example"]) for row in side] == told
    assert summary.books.dropped == {"contaminated": len(gone)}
