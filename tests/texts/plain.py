"""The measures of texts once more: a text at a time, in plain Python, from the descriptions of the published rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from curate.texts.characters import symbols, terminal_punctuation
from jobs.quality import Quality

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
POLICY = ["terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"]
Split = Callable[[str], list[str]]


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def gopher(text: str, words: Sequence[str]) -> dict[str, Any]:
    plain = [word for word in words if any(one not in symbols() for one in word)]
    lines = text.splitlines()
    return {
        "gopher_words": len(plain),
        "gopher_mean_word_length": share(sum(map(len, plain)), len(plain)),
        "gopher_hash_signs": share(text.count("#"), len(words)),
        "gopher_ellipses": share(text.count("...") + text.count("…"), len(words)),
        "gopher_bullet_lines": share(sum(line.lstrip().startswith(("•", "-")) for line in lines), len(lines)),
        "gopher_ellipsis_lines": share(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines)),
        "gopher_alpha_words": share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "gopher_stop_words": len(STOP_WORDS.intersection(words)),
    }


def again(pieces: Sequence[str]) -> list[str]:
    """Returns the pieces that are equal to an earlier one."""
    return [piece for number, piece in enumerate(pieces) if piece in pieces[:number]]


def repetition(text: str, words: Sequence[str], top: Sequence[int], repeated: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for what, pieces in (
        ("paragraph", re.split("\n\n+", text.strip())),
        ("line", re.split("\n+", text)),
    ):
        found[f"repeated_{what}s"] = share(len(again(pieces)), len(pieces))
        found[f"repeated_{what}_chars"] = share(sum(map(len, again(pieces))), len(text))
    for n in top:
        grams = Counter(" ".join(words[at : at + n]) for at in range(len(words) - n + 1))
        best, count = grams.most_common(1)[0] if grams else ("", 0)
        found[f"top_{n}_gram_chars"] = share(len(best) * count, len(text))
    for n in repeated:
        seen: set[str] = set()
        chars = at = 0
        while at + n <= len(words):
            gram = "".join(words[at : at + n])
            known = gram in seen
            seen.add(gram)
            chars += len(gram) if known else 0
            at += n if known else 1
        found[f"repeated_{n}_gram_chars"] = share(chars, len(text))
    return found


def fineweb(text: str, words: Sequence[str], short: int) -> dict[str, Any]:
    lines = [line for line in text.split("\n") if line.strip()]
    return {
        "fineweb_lines": len(lines),
        "fineweb_ended_lines": share(sum(line[-1] in terminal_punctuation() for line in lines), len(lines)),
        "fineweb_short_lines": share(sum(len(line) <= short for line in lines), len(lines)),
        "fineweb_repeated_line_chars": share(sum(map(len, again(lines))), len(text.replace("\n", ""))),
        "fineweb_breaks": share(text.count("\n"), len(words)),
    }


def dolma_lines(job: Quality, text: str) -> tuple[str, Counter[str]]:
    """Returns what is left of a text, and which lines are removed."""
    left = ""
    removed: Counter[str] = Counter()
    for line in re.findall("[^\n]*\n|[^\n]+", text):
        some = bool(line.strip())
        if job.ended_lines and not line.strip().endswith((".", "?", "!", '"')):
            removed["no end of a sentence"] += some
        elif len(line.split()) < job.dolma_line_words:
            removed["too few words"] += some
        else:
            left += line
    return left, removed


def dolma(job: Quality, raw: str, text: str) -> dict[str, Any]:
    """Returns what is measured of a text, of which `text` is left."""
    words, lines = text.split(), text.split("\n")
    sizes = sorted(map(len, words))
    middle = len(sizes) // 2
    line_counts = Counter(lines)
    found = {
        "dolma_phrases": sum(phrase.lower() in raw.lower() for phrase in job.phrases),
        "dolma_words": len(words),
        "dolma_median_word_length": (sizes[middle] + sizes[(len(sizes) - 1) // 2]) / 2 if sizes else 0,
        "dolma_symbol_words": share(sum("#" in word or "…" in word for word in words), len(words)),
        "dolma_alpha_words": share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "dolma_stop_words": sum(word in STOP_WORDS for word in words),
        "dolma_bullet_lines": share(sum(line[:1] in ("*", "-") for line in lines), len(lines)),
        "dolma_ellipsis_lines": share(sum(line.endswith("…") for line in lines), len(lines)),
        "dolma_recurring_lines": share(sum(line_counts[line] > 1 for line in lines), len(lines)),
        "dolma_recurring_line_chars": share(sum(len(line) for line in lines if line_counts[line] > 1), sum(sizes)),
    }
    for n in map(int, [*job.max_top_ngram_chars, *job.max_repeated_ngram_chars]):
        grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
        counts = Counter(grams)
        chars = Counter({gram: len("".join(gram)) * count for gram, count in counts.items()})
        if str(n) in job.max_top_ngram_chars:
            best = chars[counts.most_common(1)[0][0]] if grams else 0
            found[f"dolma_top_{n}_gram_chars"] = share(best, sum(sizes))
        if str(n) in job.max_repeated_ngram_chars:
            again = sum(chars[gram] for gram, count in counts.items() if count > 1)
            found[f"dolma_recurring_{n}_gram_chars"] = share(again, chars.total())
    return found | {"dolma_personal_data": personal(text), "dolma_repeats": repeats(words)}


def personal(text: str) -> int:
    """Counts paragraph by paragraph, with dolma's idea of each kind in the words of `re`."""
    number = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
    found = 0
    for line in re.findall("[^\n]*\n|[^\n]+", text):
        for mail in re.finditer(r"[^\s@]+@([^\s@,?!;:)(]+?)[.\s@,?!;:)(]?\s", line):
            found += "." in mail[1]
        found += len(re.findall(r"\s\(?\d{3}\)?[-. ]*\d{3}[-. ]?\d{4}", line))
        found += len(re.findall(rf"(?:{number}\.){{3}}{number}", line))
    return found


def repeats(words: Sequence[str]) -> int:
    """Returns how many times 1 to 13 words follow each other at most, from any word on."""
    most = 0
    for size in range(1, 14):
        for start in range(len(words) - size):
            end = start + size
            while end < len(words) and words[end] == words[end - size]:
                end += 1
            most = max(most, (end - start) // size)
    return most if most > 2 else 0


def c4(job: Quality, text: str, sentences: Callable[[str], int]) -> tuple[dict[str, Any], str, Counter[str]]:
    """Returns what is measured, what is left of the text, and which lines are removed."""
    kept: list[str] = []
    removed: Counter[str] = Counter()
    drop = ""
    for raw in text.splitlines():
        words = raw.split()
        some = bool(words)
        line = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", raw.strip())
        lower = line.lower()
        if any(len(word) > job.max_word_length for word in words):
            removed["a word is too long"] += some
        elif job.ended_lines and (not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...")):
            removed["no end of a sentence"] += some
        elif len(words) < job.min_line_words:
            removed["too few words"] += some
        elif "lorem ipsum" in lower:
            drop = drop or "lorem"
        elif "javascript" in lower:
            removed["javascript"] += some
        elif "{" in line:
            drop = drop or "curly"
        elif any(phrase in lower for phrase in POLICY):
            removed["policy"] += some
        else:
            kept.append(line)
    measured = {
        "c4_lorem_ipsum": drop == "lorem",
        "c4_curly_bracket": drop == "curly",
        "c4_sentences": sum(map(sentences, kept)),
    }
    return measured, "\n".join(kept).strip(), removed


def sentences(line: str) -> int:
    """Counts ends one character at a time: marks, then what closes, then white space or nothing."""
    found = at = 0
    while at < len(line):
        if line[at] not in ".!?":
            at += 1
            continue
        while at < len(line) and line[at] in ".!?":
            at += 1
        while at < len(line) and line[at] in "\"'”’)]":
            at += 1
        found += at == len(line) or line[at] in " \t\r\n\f"
    return found


def judged(
    job: Quality, text: str, split: Split = str.split, count: Callable[[str], int] = sentences
) -> tuple[str | None, str, Counter[str], dict[str, Any]]:
    """Returns the reason for which a text is dropped, if any; what is left of it; the lines that are removed by then;
    and all that is measured."""
    reason, removed, measured = None, Counter[str](), dict[str, Any]()
    for name in job.rules:
        left = text
        if name == "c4":
            found, left, lines = c4(job, text, count)
            removed += lines if reason is None else Counter()
        elif name == "gopher":
            found = gopher(text, split(text))
        elif name == "dolma":
            left, lines = dolma_lines(job, text)
            found = dolma(job, text, left)
            removed += lines if reason is None else Counter()
        elif name == "fineweb":
            found = fineweb(text, split(text), job.short_line_chars)
        else:
            top, repeated = [*map(int, job.max_top_ngram_chars)], [*map(int, job.max_repeated_ngram_chars)]
            found = repetition(text, split(text), top, repeated)
        measured |= found
        rules = getattr(job, name.removeprefix("gopher-"))()
        for rule in rules:
            value = found[rule.measure]
            if (rule.least is not None and value < rule.least) or (rule.most is not None and value > rule.most):
                reason = reason or rule.reason
        text = left
    return reason, text, +removed, measured
