"""The last thing that is written about a job: `summary.json`, which exists if and only if every shard is done."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import orjson

from curate.errors import GenerationMismatch, ObjectNotFound
from curate.storage.protocol import Object, Outcome
from curate.tasks import layout
from curate.tasks.ledger import Ledger
from curate.tasks.outputs import OutputListing


def publish_summary(ledger: Ledger, listing: OutputListing, value: Mapping[str, Any]) -> None:
    """Publishes the summary of a driver that knows of every shard in `listing`'s plan, and that all of them are done.

    Other drivers may be at work on the same output. Of two that end, the one that knows of more shards has the last
    word; one that adds shards removes the summary once they are in the plan, and this one looks at the plan once the
    summary is there, so that one of both sees the other.
    """
    uri, data = ledger.uri(layout.SUMMARY), orjson.dumps(value, option=orjson.OPT_INDENT_2)
    published = ledger.store.publish(uri, data)
    if published.outcome is Outcome.DIFFERENT:
        try:
            found = ledger.read_json(layout.SUMMARY)
        except ObjectNotFound:
            return  # another driver has new work
        if _same(found, value) or found["shards"]["total"] > value["shards"]["total"]:
            return
        # Of a driver that knew less. It would never be believed again, nor replaced.
        _remove(ledger, published.object)
        published = ledger.store.publish(uri, data)
    if _plan_has_grown(ledger, listing):
        _remove(ledger, published.object)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two summaries say the same of the job, whichever run wrote them."""
    return all(one.get(key) == other[key] for key in other if key != "run_id")


def _remove(ledger: Ledger, summary: Object) -> None:
    with contextlib.suppress(GenerationMismatch):
        ledger.store.delete(summary.uri, summary.generation)


def _plan_has_grown(ledger: Ledger, listing: OutputListing) -> bool:
    try:
        ledger.store.stat(ledger.uri(ledger.next_part(listing)))
    except ObjectNotFound:
        return False
    return True
