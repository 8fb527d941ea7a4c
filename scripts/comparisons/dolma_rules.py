"""The program of `scripts/compare dolma`: curate's decisions beside those of dolma, which another Python makes.

    python dolma_rules.py PYTHON COUNT SEED [PARQUET]

It prints what it found as one JSON object on standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from comparisons.common import MAX_WORDS, TIMED, Aim, agreement, left, measured, near, same_text, seconds
from comparisons.dolma_texts import BELOW_IN_DOLMA, DOLMA, PHRASES, REASONS_IN_DOLMA, languages
from comparisons.texts import made
from curate.jobs.langid import model_path
from curate.jobs.quality import Quality
from curate.texts.fasttext_model import FastTextModel
from curate.texts.rules import Rule

TAGGERS = Path(__file__).with_name("dolma_taggers.py")
ENGLISH = 0.5
GOPHER, PII, REPETITIONS = "x__gopher_v1__", "x__pii_regex_with_counts_fast_v2__", "x__tokenizer_repetitions_v2r2__"
ATTRIBUTES = {
    "dolma_words": GOPHER + "word_count",
    "dolma_median_word_length": GOPHER + "median_word_length",
    "dolma_symbol_words": GOPHER + "symbol_to_word_ratio",
    "dolma_alpha_words": GOPHER + "fraction_of_words_with_alpha_character",
    "dolma_stop_words": GOPHER + "required_word_count",
    "dolma_bullet_lines": GOPHER + "fraction_of_lines_starting_with_bullet_point",
    "dolma_ellipsis_lines": GOPHER + "fraction_of_lines_ending_with_ellipsis",
    "dolma_recurring_lines": GOPHER + "fraction_of_duplicate_lines",
    "dolma_recurring_line_chars": GOPHER + "fraction_of_characters_in_duplicate_lines",
    **{f"dolma_top_{n}_gram_chars": f"{GOPHER}fraction_of_characters_in_most_common_{n}grams" for n in (2, 3, 4)},
    **{
        f"dolma_recurring_{n}_gram_chars": f"{GOPHER}fraction_of_characters_in_duplicate_{n}grams" for n in range(5, 11)
    },
    "dolma_personal_data": PII + "doc_count",
    "dolma_repeats": REPETITIONS + "doc_max_score_repetition",
}
"""What dolma calls the measures of curate's rules."""
STEPS = {"dolma_words": 1, "dolma_median_word_length": 0.5, "dolma_stop_words": 1, "dolma_personal_data": 1}
"""The least by which two values of a measure differ, where that is more than 5 % of its threshold."""


def job(**parameters: Any) -> Quality:
    return Quality(rules=["dolma"], max_words=MAX_WORDS, **parameters)


def excluded(rules: list[Rule]) -> list[str]:
    """Returns the filters of Dolma v1.6 for its mixer, with the names that the taggers give: in the published ones the
    most frequent n-grams have names that no tagger gives, so they drop nothing."""
    found = []
    for rule in rules:
        if rule.measure in ATTRIBUTES:
            name = f"@.{ATTRIBUTES[rule.measure]}"
            bound = f"< {rule.least}" if rule.least is not None else f"> {rule.most}"
            found.append(f"$.attributes[?({name} && {name}[0] && {name}[0][2] {bound})]")
    return found


def theirs(python: str, texts: list[str], spoken: list[str] | None) -> dict[str, Any]:
    """Returns what dolma makes of texts, and how English it finds what is `spoken`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts.json").write_text(json.dumps(texts))
        (folder / "exclude.json").write_text(json.dumps(excluded(job().dolma())))
        if spoken is not None:
            (folder / "languages.json").write_text(json.dumps(spoken))
            (folder / "model").write_text(str(model_path()))
        subprocess.run([python, str(TAGGERS), name], check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        return found


def compared(texts: list[str], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns for each rule how often both say the same, and how many texts are near its threshold."""
    all_lines = job(annotate=True, ended_lines=False)
    ours = measured(all_lines, texts)
    results = []
    for rule in all_lines.dolma():
        if rule.measure not in ATTRIBUTES:
            continue
        values = ours[rule.measure].to_numpy().astype(float)
        scores = np.asarray([np.nan if one is None else one for one in found["scores"][ATTRIBUTES[rule.measure]]])
        # A rule about what a text does not have keeps it.
        drops, same = rule.fails({rule.measure: values}).tolist(), rule.fails({rule.measure: scores}).tolist()
        close = near(rule, values, least=STEPS.get(rule.measure, 0))
        results.append(agreement(rule.reason, texts, drops, same, close))
    for phrase, name in zip(PHRASES, ("curly_brace", "lorem_ipsum", "javascript"), strict=True):
        has = measured(job(annotate=True, phrases=[phrase]), texts)["dolma_phrases"].to_numpy() > 0
        score = found["scores"].get(f"x__c4_v2__has_{name}", [None] * len(texts))
        results.append(agreement(f"dolma: {phrase}", texts, has.tolist(), [one is not None for one in score], 0))
    for title, parameters, name in (
        ("dolma: lines without an end are removed", {}, "ended"),
        ("dolma: and those of fewer than 3 words", {"dolma_line_words": 3}, "both"),
    ):
        results.append(line_agreement(title, texts, parameters, found[name]))
    whole = same_text("dolma: all rules, and the text that is left", texts, left(job(), texts), found["whole"])
    return [*results, whole]


def line_agreement(title: str, texts: list[str], parameters: dict[str, Any], rest: list[str]) -> dict[str, Any]:
    """Returns how often both remove the same lines; a text that stays whole counts as kept."""
    free = {"min_words": 0, "min_median_word_length": 0.0, "min_alpha_words": 0.0, "min_stop_words": 0}
    free |= {"max_words": 10**9, "max_median_word_length": 1e9, "max_symbol_ratio": 1e9, "max_bullet_lines": 1.0}
    free |= {"max_ellipsis_lines": 1.0, "max_recurring_lines": 1.0, "max_recurring_line_chars": 1e9}
    free |= {"max_top_ngram_chars": {}, "max_repeated_ngram_chars": {}, "max_personal_data": 10**9}
    mine = left(Quality(rules=["dolma"], max_repeats=10**9, **free, **parameters), texts)
    same = agreement(title, texts, mine, rest, 0)
    dropped = sum(text != one for text, one in zip(texts, rest, strict=True))
    return same | {"kept": len(texts) - dropped, "dropped": dropped}


def spoken_alike(texts: list[str], english: list[float]) -> tuple[dict[str, Any], float]:
    """Returns how often both find a text English, with the same model, and curate's processor time."""
    model = FastTextModel(str(model_path()))
    before = time.process_time()
    scores = model.scores([text.lower() for text in texts], "en")
    taken = time.process_time() - before
    close = int((np.abs(scores - ENGLISH) <= 0.05 * ENGLISH).sum())
    drops, same = (scores < ENGLISH).tolist(), [one < ENGLISH for one in english]
    return agreement("language: English", texts, drops, same, close), taken


def main() -> None:
    python, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    whole = job(annotate=True, ended_lines=False)
    aim = Aim([(whole, whole.dolma())], REASONS_IN_DOLMA, lambda rule: STEPS.get(rule.measure, 0))
    texts = list(made(count, seed, DOLMA, BELOW_IN_DOLMA, aim))
    spoken = languages(count, seed)
    found = theirs(python, texts, spoken)
    title = f"{count:,} made-up texts"
    same_language, language_seconds = spoken_alike(spoken, found["english"])
    rules = {title: [*compared(texts, found), same_language]}
    for path in sys.argv[4:]:
        real = [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]
        rules[f"{len(real):,} texts of {Path(path).name}"] = compared(real, theirs(python, real, None))
    timed = job(annotate=True)
    timed.setup()
    part = texts[-TIMED:]
    seconds(timed, texts[:TIMED])
    taken = sum(found["seconds"].values())
    rates = [
        {"set": "dolma", "curate": len(part) / seconds(timed, part), "dolma": count / taken},
        {"set": "language", "curate": count / language_seconds, "dolma": count / found["language_seconds"]},
    ]
    sys.stdout.write(json.dumps({"made": title, "rules": rules, "rates": rates}))


if __name__ == "__main__":
    main()
