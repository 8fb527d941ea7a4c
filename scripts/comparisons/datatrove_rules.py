"""The program of `scripts/compare datatrove`, run by the Python of an environment that has both.

    python datatrove_rules.py COUNT SEED [PARQUET]

It prints what it found as one JSON object on standard output.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datatrove.data import Document  # type: ignore[import-not-found, unused-ignore]
from datatrove.pipeline.filters import (  # type: ignore[import-not-found, unused-ignore]
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.formatters import PIIFormatter  # type: ignore[import-not-found, unused-ignore]
from loguru import logger  # type: ignore[import-not-found, unused-ignore]

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from comparisons import datatrove_urls
from comparisons.common import MAX_WORDS, TIMED, Aim, agreement, left, measured, near, reasons, same_text, seconds
from comparisons.datatrove_dedup import decontamination, sentences  # type: ignore[import-not-found, unused-ignore]
from comparisons.texts import REASONS, Writer, made
from curate.jobs.quality import Quality
from curate.texts.pii import EMAIL, IP, find, replaced
from curate.texts.rules import Rule

LEFT = "c4: the text that is left"
GOPHER: dict[str, Any] = dict.fromkeys(
    (
        "min_doc_words",
        "max_doc_words",
        "min_avg_word_length",
        "max_avg_word_length",
        "max_symbol_word_ratio",
        "max_bullet_lines_ratio",
        "max_ellipsis_lines_ratio",
        "max_non_alpha_words_ratio",
        "min_stop_words",
    )
)
REPETITION: dict[str, Any] = {
    **dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")),
    "top_n_grams": (),
    "dup_n_grams": (),
}
FINEWEB: dict[str, Any] = {
    "line_punct_thr": 0.0,
    "short_line_thr": 1.0,
    "char_duplicates_ratio": 1.0,
    "new_line_ratio": float("inf"),
}


def alone() -> dict[str, tuple[Any, set[str]]]:
    """Returns by curate's reason the filter that has that rule alone, and what it calls it."""
    gopher = {
        "gopher: too few words": ("min_doc_words", 50, "gopher_short_doc"),
        "gopher: too many words": ("max_doc_words", MAX_WORDS, "gopher_long_doc"),
        "gopher: words too short": ("min_avg_word_length", 3, "gopher_below_avg_threshold"),
        "gopher: words too long": ("max_avg_word_length", 10, "gopher_above_avg_threshold"),
        "gopher: too many hash signs": ("max_symbol_word_ratio", 0.1, "gopher_too_many_hashes"),
        "gopher: too many ellipses": ("max_symbol_word_ratio", 0.1, "gopher_too_many_ellipsis"),
        "gopher: too many bullet points": ("max_bullet_lines_ratio", 0.9, "gopher_too_many_bullets"),
        "gopher: too many lines end with an ellipsis": (
            "max_ellipsis_lines_ratio",
            0.3,
            "gopher_too_many_end_ellipsis",
        ),
        "gopher: too few words with a letter": ("max_non_alpha_words_ratio", 0.8, "gopher_below_alpha_threshold"),
        "gopher: too few stop words": ("min_stop_words", 2, "gopher_enough_stop_words"),
    }
    repetition: dict[str, tuple[str, Any, str]] = {
        "repetition: too many paragraphs": ("dup_para_frac", 0.3, "dup_para_frac"),
        "repetition: too much text in paragraphs": ("dup_para_char_frac", 0.2, "dup_para_char_frac"),
        "repetition: too many lines": ("dup_line_frac", 0.3, "dup_line_frac"),
        "repetition: too much text in lines": ("dup_line_char_frac", 0.2, "dup_line_char_frac"),
    }
    for n, share in ((2, 0.2), (3, 0.18), (4, 0.16)):
        repetition[f"repetition: the most frequent {n} words"] = ("top_n_grams", ((n, share),), f"top_{n}_gram")
    for n, share in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1)):
        repetition[f"repetition: {n} words"] = ("dup_n_grams", ((n, share),), f"duplicated_{n}_n_grams")
    fineweb = {
        "fineweb: too few lines end in punctuation": ("line_punct_thr", 0.12, "line_punct_ratio"),
        "fineweb: too many short lines": ("short_line_thr", 0.67, "short_line_ratio"),
        "fineweb: repeated lines": ("char_duplicates_ratio", 0.01, "char_dup_ratio"),
        "fineweb: too many line feeds": ("new_line_ratio", 0.3, "list_ratio"),
    }
    c4 = C4QualityFilter()
    return {
        **{
            reason: (GopherQualityFilter(**{**GOPHER, name: value}), {word})
            for reason, (name, value, word) in gopher.items()
        },
        **{
            reason: (GopherRepetitionFilter(**{**REPETITION, name: value}), {word})
            for reason, (name, value, word) in repetition.items()
        },
        "c4: lorem ipsum": (c4, {"lorem_ipsum"}),
        "c4: curly bracket": (c4, {"curly_bracket"}),
        "c4: too few sentences": (c4, {"too_few_sentences"}),
        **{
            reason: (FineWebQualityFilter(**{**FINEWEB, name: value}), {word})
            for reason, (name, value, word) in fineweb.items()
        },
    }


def decided(texts: list[str]) -> dict[str, list[Any]]:
    """Returns what datatrove decides of each text, by curate's reason: whether it is dropped for it. Text by text, as
    it splits a text into words once if that is asked for again at once."""
    filters = alone()
    found: dict[str, list[Any]] = {reason: [] for reason in filters}
    rest: list[Any] = []
    for text in texts:
        answers: dict[int, Any] = {}
        for reason, (one, words) in filters.items():
            if id(one) not in answers:
                document = Document(text=text, id="")
                answers[id(one)] = one.filter(document)
                if isinstance(one, C4QualityFilter):
                    rest.append(document.text if answers[id(one)] is True else None)
            answer = answers[id(one)]
            found[reason].append(isinstance(answer, tuple) and answer[1] in words)
    found[LEFT] = rest
    return found


SETS = ("gopher-repetition", "gopher", "fineweb", "c4")


def job_of(*sets: str) -> Quality:
    return Quality(rules=list(sets), words="spacy", annotate=True, max_words=MAX_WORDS)


def all_rules() -> Quality:
    return job_of(*SETS)


def rules_of(job: Quality) -> list[Rule]:
    return [*job.repetition(), *job.gopher(), *job.fineweb(), *job.c4()]


def least(rule: Rule) -> float:
    """Returns the least by which two values of a measure differ, where 5 % of the threshold may be less."""
    return 1 if rule.reason.startswith("c4") or "stop" in rule.reason else 0


def aim() -> Aim:
    """Returns what says whether a text is near the threshold of the rule that it was made for."""
    # Of each text one rule is looked at: to measure all would take ten times as long.
    repetition, gopher, fineweb, c4 = (job_of(name) for name in SETS)
    of = [(repetition, repetition.repetition()), (gopher, gopher.gopher()), (fineweb, fineweb.fineweb()), (c4, c4.c4())]
    return Aim(of, REASONS, least)


def compared(texts: list[str]) -> list[dict[str, Any]]:
    """Returns for each rule how often both say the same, and how many texts are near its threshold."""
    theirs = decided(texts)
    job = all_rules()
    ours = measured(job, texts)
    # Of C4 the first rule that is failed decides, in both.
    first = reasons(Quality(rules=["c4"], words="spacy", annotate=True), texts)
    c4 = {rule.reason for rule in job.c4()}
    hashes = next(one for one in job.gopher() if one.measure == "gopher_hash_signs").fails(
        {"gopher_hash_signs": ours["gopher_hash_signs"].to_numpy()}
    )
    found = []
    for rule in rules_of(job):
        if rule.reason not in theirs:
            continue
        value = ours[rule.measure].to_numpy(zero_copy_only=False).astype(float)
        drops = [one == rule.reason for one in first]
        if rule.reason not in c4:
            fails = rule.fails({rule.measure: value})
            # Hash signs and ellipses have one parameter there, and hash signs are looked at first.
            drops = (fails & ~hashes if rule.measure == "gopher_ellipses" else fails).tolist()
        close = near(rule, value, least(rule))
        found.append(agreement(rule.reason, texts, drops, theirs[rule.reason], close))
    mine = left(Quality(rules=["c4"], words="spacy"), texts)
    return [*found, same_text(LEFT, texts, mine, theirs[LEFT])]


def addresses(count: int, seed: int) -> list[dict[str, Any]]:
    """Returns how often both replace the same mail addresses, and the same IPv4 addresses, in texts with some."""
    writer = Writer(seed)
    kinds = {
        EMAIL: (writer.mail, PIIFormatter(remove_ips=False, email_replacement="[email]")),
        IP: (writer.address, PIIFormatter(remove_emails=False, ip_replacement="[ip]")),
    }
    found = []
    for kind, (make, theirs) in kinds.items():
        texts = [writer.with_some(make) for _ in range(count)]
        mine = [replaced(text, find(text, [kind]), "[{}]".format) for text in texts]
        other = [theirs.format(text) for text in texts]
        same = agreement(f"pii: {kind}", texts, mine, other, 0)
        kept = sum(text == one for text, one in zip(texts, other, strict=True))
        found.append(same | {"kept": kept, "dropped": count - kept})
    return found


def rates(texts: list[str]) -> list[dict[str, Any]]:
    """Returns how many texts a second each set of rules decides about, by the processor's time, with words and all;
    the second of two rounds, of other texts, as a worker that has been at it for a while."""
    filters = {
        "gopher-repetition": GopherRepetitionFilter,
        "gopher": GopherQualityFilter,
        "c4": C4QualityFilter,
        "fineweb": FineWebQualityFilter,
    }
    found = []
    half = len(texts) // 2
    for name, make in filters.items():
        job, theirs = Quality(rules=[name], words="spacy", annotate=True), make()
        job.setup()
        taken = {}
        for part in (texts[:half], texts[half:]):
            taken["curate"] = seconds(job, part)
            before = time.process_time()
            for text in part:
                theirs.filter(Document(text=text, id=""))
            taken["datatrove"] = time.process_time() - before
        found.append({"set": name, **{who: half / one for who, one in taken.items()}})
    return found


def prose(seed: int) -> list[str]:
    """Returns texts that most rules keep: of others datatrove leaves out what is behind the first rule that fails."""
    writer = Writer(seed)
    return [writer.prose(writer.random.randint(60, 400), 8) for _ in range(TIMED)]


def main() -> None:
    logger.remove()
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    texts = list(made(count, seed, fits=aim()))
    title = f"{count:,} made-up texts"
    company = decontamination(count, seed, agreement) + sentences(count, seed, agreement)
    rules = {title: compared(texts) + addresses(count, seed) + company}
    for path in sys.argv[3:]:
        real = [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]
        rules[f"{len(real):,} texts of {Path(path).name}"] = compared(real)
    rules[f"{count:,} made-up URLs"] = datatrove_urls.compared(count, seed)
    timed = [*rates(prose(seed)), datatrove_urls.rate(seed)]
    sys.stdout.write(json.dumps({"made": title, "rules": rules, "rates": timed}))


if __name__ == "__main__":
    main()
