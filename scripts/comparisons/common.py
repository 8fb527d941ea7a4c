"""What the comparisons share: what curate's rules decide of texts, and how often others decide the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from curate.jobs.quality import REASON, Quality
from curate.testing.local import run_local
from curate.texts.rules import Rule

EXAMPLES = 3
NEAR = 0.05
BATCH = 1_000
TIMED = 2_000
MAX_WORDS = 500
"""Instead of 100,000, so that texts are small."""


def as_table(texts: list[str]) -> pa.Table:
    return pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())})


def measured(job: Quality, texts: list[str]) -> pa.Table:
    """Returns what a job with `annotate` measures of each text, and for what it would be dropped."""
    job.setup()
    return pa.concat_tables(_processed(job, as_table(texts)))


def reasons(job: Quality, texts: list[str]) -> list[str | None]:
    found: list[str | None] = measured(job, texts)[REASON].to_pylist()
    return found


def left(job: Quality, texts: list[str]) -> list[str | None]:
    """Returns what a job leaves of each text; none of one that is dropped."""
    rows = run_local(job, as_table(texts)).table
    kept = dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))
    return [kept.get(number) for number in range(len(texts))]


def seconds(job: Quality, texts: list[str]) -> float:
    """Returns the processor's time for all that a job with `annotate` measures of texts, words and all."""
    table = as_table(texts)
    before = time.process_time()
    list(_processed(job, table))
    return time.process_time() - before


def _processed(job: Quality, table: pa.Table) -> Iterable[pa.Table]:
    for start in range(0, len(table), BATCH):
        yield from job.process(table[start : start + BATCH])


def near(rule: Rule, values: Any, least: float = 0) -> int:
    """Returns how many values are within 5 % of a rule's threshold, or as far as `least`."""
    bound = rule.least if rule.least is not None else rule.most
    assert bound is not None
    return int((np.abs(np.asarray(values, float) - bound) <= max(NEAR * bound, least)).sum())


class Aim:
    """Says whether a text is near the threshold of the rule that it was made for, on the side that was meant."""

    def __init__(
        self,
        jobs: Iterable[tuple[Quality, Iterable[Rule]]],
        kinds: Mapping[str, str],
        least: Callable[[Rule], float],
    ):
        """`jobs`: each with the rules that it measures; `kinds`: the reason of a rule by the kind of texts that are
        made for it; `least`: as `near` has it."""
        by_reason = {}
        for job, rules in jobs:
            job.setup()
            by_reason |= {rule.reason: (job, rule) for rule in rules}
        self._least = least
        self._rules = {kind: by_reason[reason] for kind, reason in kinds.items()}

    def __call__(self, kind: str, text: str, dropped: bool) -> bool:
        if kind not in self._rules:
            return True
        job, rule = self._rules[kind]
        (table,) = _processed(job, as_table([text]))
        values = table[rule.measure].to_numpy(zero_copy_only=False).astype(float)
        return near(rule, values, self._least(rule)) == 1 and bool(rule.fails({rule.measure: values})[0]) == dropped


def agreement(reason: str, texts: list[str], ours: list[Any], theirs: list[Any], near: int) -> dict[str, Any]:
    """Returns how many texts both drop, or keep, alike; `ours` and `theirs` say for each whether it is dropped."""
    differing = [text for text, one, other in zip(texts, ours, theirs, strict=True) if one != other]
    return {
        "rule": reason,
        "texts": len(texts),
        "kept": sum(not one for one in theirs),
        "dropped": sum(bool(one) for one in theirs),
        "near": near,
        "agree": len(texts) - len(differing),
        "examples": differing[:EXAMPLES],
    }


def same_text(rule: str, texts: list[str], ours: list[str | None], theirs: list[str | None]) -> dict[str, Any]:
    """Returns the same for what is left of each text; nothing is left of one that is dropped."""
    found = agreement(rule, texts, ours, theirs, 0)
    dropped = sum(one is None for one in theirs)
    return found | {"kept": len(texts) - dropped, "dropped": dropped}
