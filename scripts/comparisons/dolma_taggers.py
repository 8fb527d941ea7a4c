"""What dolma makes of texts, run by the Python of an environment that has dolma and nothing of curate.

    python dolma_taggers.py FOLDER

FOLDER has `texts.json` (a list of texts), `exclude.json` (the filters of a configuration, by rule), and `model`, the
path of a fastText model for languages, if that is asked for. It gets `found.json`: the scores of the taggers, each list
by the name of its attribute; the texts that dolma's mixer leaves; and the processor's time.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dolma.core.data_types import Document  # type: ignore[import-not-found, unused-ignore]
from dolma.core.registry import TaggerRegistry  # type: ignore[import-not-found, unused-ignore]
from dolma.taggers.language import (  # type: ignore[import-not-found, unused-ignore]
    FastTextEnglishLanguageDocumentTagger,
)
from dolma.taggers.repetitions import (  # type: ignore[import-not-found, unused-ignore]
    TokenizerRepetitionsSkipEmptyTagger,
)
from tokenizers import Tokenizer, models, pre_tokenizers  # type: ignore[import-not-found, unused-ignore]

C4, GOPHER, PII = "c4_v2", "gopher_v1", "pii_regex_with_counts_fast_v2"
REPETITIONS = "tokenizer_repetitions_v2r2"


def repetitions(texts: list[str]) -> Any:
    """Returns dolma's tagger of repetitions with words for tokens: its own tokenizer would have to be fetched."""
    words = {word for text in texts for word in text.split()}
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(sorted(words))}, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tagger = TokenizerRepetitionsSkipEmptyTagger.__new__(TokenizerRepetitionsSkipEmptyTagger)
    tagger.tokenizer = tokenizer
    return tagger


def tagged(tagger: Any, name: str, texts: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Returns the spans of each text by the name of their attribute, and the processor's time for all."""
    documents = [Document(source="", id=str(number), text=text) for number, text in enumerate(texts)]
    before = time.process_time()
    results = [tagger.predict(document) for document in documents]
    taken = time.process_time() - before
    found = []
    for result in results:
        spans: dict[str, Any] = {}
        for span in result.spans:
            spans.setdefault(f"x__{name}__{span.type}", []).append([span.start, span.end, span.score])
        found.append(spans)
    return found, taken


def mixed(folder: Path, texts: list[str], spans: list[dict[str, Any]], stream: dict[str, Any]) -> list[str | None]:
    """Returns what dolma's mixer leaves of each text; none of one that it leaves out."""
    for name in ("documents", "attributes/x"):
        (folder / name).mkdir(parents=True)
    with gzip.open(folder / "documents" / "0.json.gz", "wt") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": str(number), "source": "", "text": text}) + "\n")
    with gzip.open(folder / "attributes" / "x" / "0.json.gz", "wt") as file:
        for number, attributes in enumerate(spans):
            file.write(json.dumps({"id": str(number), "attributes": attributes}) + "\n")
    whole = {
        "name": "x",
        "documents": [str(folder / "documents" / "*.gz")],
        "attributes": ["x"],
        "output": {"path": str(folder / "out"), "max_size_in_bytes": 2**32},
        **stream,
    }
    work = {"input": str(folder / "in-work"), "output": str(folder / "out-work")}
    (folder / "mixer.json").write_text(json.dumps({"streams": [whole], "work_dir": work, "processes": 1}))
    command = [str(Path(sys.executable).parent / "dolma"), "-c", str(folder / "mixer.json"), "mix"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"dolma mix ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    left: list[str | None] = [None] * len(texts)
    for path in sorted((folder / "out").rglob("*.gz")):
        with gzip.open(path, "rt") as file:
            for line in file:
                row = json.loads(line)
                left[int(row["id"])] = row["text"]
    return left


def removing(name: str) -> dict[str, Any]:
    return {"span": f"$.attributes.x__{C4}__{name}", "min_score": 0.5, "replacement": ""}


def scores(spans: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """Returns the score of each attribute that is about a whole text, for each text that has one."""
    names = sorted({name for one in spans for name in one})
    return {name: [one[name][0][2] if name in one else None for one in spans] for name in names}


def all_tagged(texts: list[str]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    taggers = {name: TaggerRegistry.get(name)() for name in (C4, GOPHER, PII)} | {REPETITIONS: repetitions(texts)}
    parts = {name: tagged(tagger, name, texts) for name, tagger in taggers.items()}
    merged = [
        {name: spans for part, _ in parts.values() for name, spans in part[number].items()}
        for number in range(len(texts))
    ]
    return merged, {name: taken for name, (_, taken) in parts.items()}


def main() -> None:
    folder = Path(sys.argv[1])
    texts = json.loads((folder / "texts.json").read_text())
    exclude = json.loads((folder / "exclude.json").read_text())
    spans, taken = all_tagged(texts)
    ended = {"span_replacement": [removing("lines_with_no_ending_punctuation")]}
    both = {"span_replacement": [*ended["span_replacement"], removing("lines_with_too_few_words")]}
    ended_lines = mixed(folder / "ended", texts, spans, ended)
    # As Dolma is made: what is left of lines is tagged, and decided about.
    assert all(text is not None for text in ended_lines)
    cleaned = [text or "" for text in ended_lines]
    whole = mixed(folder / "whole", cleaned, all_tagged(cleaned)[0], {"filter": {"exclude": exclude}})
    found = {
        "scores": scores(spans),
        "ended": ended_lines,
        "both": mixed(folder / "both", texts, spans, both),
        "whole": whole,
        "seconds": taken,
    }
    if (folder / "languages.json").exists():
        FastTextEnglishLanguageDocumentTagger.MODEL_PATH = (folder / "model").read_text()
        english, seconds = tagged(
            FastTextEnglishLanguageDocumentTagger(), "en", json.loads((folder / "languages.json").read_text())
        )
        found |= {"english": [one["x__en__en"][0][2] for one in english], "language_seconds": seconds}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
