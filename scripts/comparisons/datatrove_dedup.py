"""What `scripts/compare datatrove` asks of texts in their company: n-grams of evaluation sets, sentences that are there
before. The decisions of datatrove are those of its own steps, on files in a folder that is removed afterwards.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datatrove.data import Document  # type: ignore[import-not-found, unused-ignore]
from datatrove.pipeline.decont import (  # type: ignore[import-not-found, unused-ignore]
    NGramsDecontConfig,
    NGramsDecontFilter,
    NGramsDecontIndexer,
)
from datatrove.pipeline.dedup import (  # type: ignore[import-not-found, unused-ignore]
    SentDedupConfig,
    SentenceDedupFilter,
    SentenceDedupSignature,
    SentenceFindDedups,
)

from comparisons.texts import Writer
from curate.dedup.contamination import Decontaminate, Decontamination
from curate.dedup.evaluation import Compared, EvaluationSet
from curate.dedup.exact import Chosen
from curate.dedup.spans import CutCopies, SpanDedup
from curate.exchange.protocol import ReducePart
from curate.exchange.row_ids import TableMarks
from curate.job.asset import Asset
from curate.pipeline.shard_books import BadRowBudget, ShardBooks
from curate.pipeline.step import BatchPosition, SideTable

N = 12
BATCH = 1_000
MIN_WORDS = 50
Agreement = Callable[[str, list[str], list[Any], list[Any], int], dict[str, Any]]


def _altered(writer: Writer, words: list[str]) -> str:
    """Returns words with other case, marks, accents, numbers or white space, which matter to neither."""
    found = []
    for word in words:
        kind = writer.random.randrange(8)
        if word == "7":
            word = writer.random.choice(["12", "3.5", "1,000", "٣"])
        elif kind == 0:
            word = word.upper()
        elif kind == 1:
            word += writer.random.choice([",", ".", "!", ")", "”", "…"])
        elif kind == 2:
            word = word.replace("e", "é")
        elif kind == 3:
            word = writer.random.choice(["(", "«", "- "]) + word
        found.append(word + writer.random.choice([" ", " ", " ", "\n", "\u00a0", "  "]))
    return "".join(found)


def contaminated(writer: Writer, sets: dict[str, list[dict[str, str]]], count: int) -> Iterator[str]:
    """Yields texts with words in a row of an example: as many as an n-gram has, or one less, for half of them."""
    examples = [f"{one['query']} {one['label']}".split() for rows in sets.values() for one in rows]
    for number in range(count):
        words = writer.random.choice(examples)
        size = writer.random.choice([N - 1, N]) if number % 2 else writer.random.choice([0, 3, 20, 30])
        size = min(size, len(words))
        at = writer.random.randrange(len(words) - size + 1)
        parts = [writer.prose(writer.random.randint(10, 60)), _altered(writer, words[at : at + size])]
        yield " ".join([*parts, writer.prose(writer.random.randint(10, 60))])


def evaluation(writer: Writer) -> dict[str, list[dict[str, str]]]:
    """Returns two sets of questions and answers, some of which are shorter than an n-gram, or empty."""

    def some(low: int, high: int) -> str:
        words = writer.words(writer.random.randint(low, high))
        return " ".join(word if writer.random.random() < 0.9 else "7" for word in words)

    return {
        name: [{"query": some(8, 40), "label": some(0, 25)} for _ in range(100)]
        + [{"query": some(20, 20), "label": ""}]
        for name in ("first", "second")
    }


def decontamination(count: int, seed: int, agreement: Agreement) -> list[dict[str, Any]]:
    """Returns how often both drop the same texts, and for the same n-gram of the same set."""
    writer = Writer(seed)
    sets = evaluation(writer)
    texts = list(contaminated(writer, sets, count))
    with tempfile.TemporaryDirectory() as folder:
        theirs = _their_ngrams(texts, sets, f"{folder}/index")
        ours = _our_ngrams(texts, sets, Path(folder))
    dropped = [[one is not None for one in told] for told in (ours, theirs)]
    return [
        agreement("decontamination: 12 words of an example", texts, *dropped, count // 2),
        agreement("decontamination: which n-gram, and its set", texts, ours, theirs, count // 2),
    ]


def _their_ngrams(texts: list[str], sets: dict[str, list[dict[str, str]]], folder: str) -> list[Any]:
    config = NGramsDecontConfig(n_grams=N)
    # Asked for to fetch sets by their names alone.
    NGramsDecontIndexer._requires_dependencies = []
    indexer = NGramsDecontIndexer(folder, config=config)
    Path(folder).mkdir()
    for name, rows in sets.items():
        hashes = {one for row in rows for one in indexer.compute_hashes(row["label"], row["query"])}
        np.array(sorted(hashes), np.uint64).tofile(f"{folder}/{name}.index.hashes")
    filter = NGramsDecontFilter(folder, config)
    found = []
    for text in texts:
        document = Document(text=text, id="")
        kept = filter.filter(document) is True
        told = document.metadata
        found.append(None if kept else (told["contaminated_ngram"], told["contaminated_task"]))
    return found


def _our_ngrams(texts: list[str], sets: dict[str, list[dict[str, str]]], folder: Path) -> list[Any]:
    made = []
    for name, rows in sets.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        made.append(EvaluationSet(name, Asset(str(folder / name)), ("label",), ("query",)))
    how = Decontamination("text", Compared(tuple(made), N, words="spacy"), max_documents=None, id_column="id")
    step = Decontaminate(how)
    first: dict[int, tuple[int, tuple[str, str]]] = {}
    for table in _tables(texts):
        for one in step.apply(table, ShardBooks(BadRowBudget()), BatchPosition("", 0)):
            for row in one.table.to_pylist() if isinstance(one, SideTable) else ():
                told = (row["start"], (row["ngram"], row["set"]))
                first[row["id"]] = min(first.get(row["id"], told), told, key=lambda one: one[0])
    return [first[number][1] if number in first else None for number in range(len(texts))]


def pages(count: int, seed: int) -> list[str]:
    """Returns texts with two, three or four sentences of an earlier one, and about as many words as a text needs."""
    writer = Writer(seed)
    found: list[list[str]] = []
    texts = []
    for number in range(count):
        wanted = MIN_WORDS * (1 + writer.random.uniform(-0.05, 0.05) if number % 2 else writer.random.uniform(0.3, 2))
        sentences: list[str] = []
        while (left := round(wanted) - sum(len(one.split()) for one in sentences)) > 1:
            sentences.append(writer.sentence(min(left, writer.random.randint(5, 14))))
        own = list(sentences)
        if found:
            other = writer.random.choice(found)
            size = writer.random.choice([0, 2, 2, 3, 3, 4])
            at = writer.random.randrange(max(1, len(other) - size))
            place = writer.random.randrange(len(sentences) + 1)
            sentences[place:place] = [
                one.upper() if writer.random.random() < 0.2 else one for one in other[at : at + size]
            ]
        found.append(own)
        texts.append("".join(one + writer.random.choice([" ", " ", "\n", "\n\n"]) for one in sentences).rstrip())
    return texts


def sentences(count: int, seed: int, agreement: Agreement) -> list[dict[str, Any]]:
    """Returns how often both leave the same of texts whose windows of three sentences are there before."""
    texts = pages(count, seed)
    with tempfile.TemporaryDirectory() as folder:
        theirs = _their_sentences(texts, folder)
    ours = _our_sentences(texts)
    same = agreement("sentences: the text that is left", texts, ours, theirs, count // 2)
    changed = [one != text for text, one in zip(texts, theirs, strict=True)]
    dropped = agreement(
        "sentences: too few words left", texts, *([not one for one in side] for side in (ours, theirs)), count // 2
    )
    return [same | {"kept": count - sum(changed), "dropped": sum(changed)}, dropped]


def _their_sentences(texts: list[str], folder: str) -> list[str | None]:
    # Of its own, it drops texts with fewer than three sentences left, too, which it splits anew.
    config = SentDedupConfig(min_num_sentences=0)
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    SentenceDedupSignature(f"{folder}/signatures", config=config).run(documents, 0, 1)
    SentenceFindDedups(f"{folder}/signatures", f"{folder}/duplicates", config=config).run(None, 0, 1)
    left = {one.id: one.text for one in SentenceDedupFilter(f"{folder}/duplicates", config=config).run(documents, 0, 1)}
    return [left.get(str(number)) for number in range(len(texts))]


def _our_sentences(texts: list[str]) -> list[str | None]:
    same = SpanDedup("text", "sentences", words="spacy", min_words=MIN_WORDS, id_column="id")
    chosen, tables = Chosen(same), list(_tables(texts))
    [step] = chosen.prepare(0)
    books = ShardBooks(BadRowBudget("100%"))
    places = [BatchPosition("", number * BATCH) for number in range(len(tables))]
    keys = pa.concat_tables(
        one for table, place in zip(tables, places, strict=True) for one in step.apply(table, books, place)
    )
    marks = pa.concat_tables(chosen.combine([chosen.orders[0].sort(keys)], books, ReducePart(0, 1)))
    cut = CutCopies(same).marked(TableMarks(marks, CutCopies.order))
    left: dict[int, str] = {}
    for table, place in zip(tables, places, strict=True):
        for one in cut.apply(table, books, place):
            if not isinstance(one, SideTable):
                left |= dict(zip(one["id"].to_pylist(), one["text"].to_pylist(), strict=True))
    return [left.get(number) for number in range(len(texts))]


def _tables(texts: list[str]) -> Iterator[pa.Table]:
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        yield pa.table(
            {"id": pa.array(range(start, start + len(part)), pa.int64()), "text": pa.array(part, pa.string())}
        )
