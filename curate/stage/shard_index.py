"""The file that names all outputs of a job, where the readers of a format want one: `index.json` of MDS.

It is published when all outputs are there, and removed before any is made again: so it names what there is, but for
outputs without rows. It has the job's fingerprint, by which it is known as curate's.
"""

from __future__ import annotations

from typing import Any

import orjson

from curate.errors import ConfigError, GenerationMismatch, ObjectNotFound
from curate.ledger import layout
from curate.ledger.ledger import Ledger
from curate.ledger.listing import OutputListing
from curate.objects.mds import ShardHead, decode_head, encode_index
from curate.prefetch import ahead
from curate.storage.protocol import Object, Outcome

INDEXED = ".mds"
"""Suffix of outputs that have such a file beside them."""
_OWNER = "curate"
_READERS = 8


def lacks_index(listing: OutputListing, suffix: str) -> bool:
    """Returns whether there is to be an index of outputs with that suffix, and is none."""
    return suffix == INDEXED and listing.row(layout.INDEX) < 0


def own_index(ledger: Ledger, listing: OutputListing, suffix: str) -> Object | None:
    """Returns the index of outputs with that suffix, if there is one. Raises ConfigError for one of somebody else."""
    if suffix != INDEXED or lacks_index(listing, suffix):
        return None
    found = listing.object(ledger.root, listing.row(layout.INDEX))
    try:
        read = orjson.loads(ledger.store.read(found.uri))
    except ObjectNotFound:
        return None
    except ValueError:
        read = None
    if not isinstance(read, dict) or _OWNER not in read:
        raise ConfigError(
            f"{found.uri} was not written by curate, but it has the name of the index of all outputs; move it, or use "
            "another output"
        )
    return found


def publish_index(
    ledger: Ledger, listing: OutputListing, position: Any, suffix: str, fingerprint: str
) -> Object | None:
    """Publishes the index of outputs with that suffix, if there is to be one, in place of another one of curate's.
    Returns it, None if it is not there.

    `position` are the places of all outputs in the listing, in the order of the plan. One small read an output.
    """
    if suffix != INDEXED:
        return None
    data = index_of(ledger, listing, position, fingerprint)
    uri = ledger.uri(layout.INDEX)
    published = ledger.store.publish(uri, data)
    if published.outcome is not Outcome.DIFFERENT:
        return published.object
    if own_index(ledger, ledger.list(), suffix) is None:
        return None
    # Of fewer outputs, or of some that were made again.
    return ledger.store.replace(uri, data)


def index_of(ledger: Ledger, listing: OutputListing, position: Any, fingerprint: str) -> bytes:
    """Returns the index of the outputs at these places of a listing, in the order of the plan. Raises CorruptInput."""
    found = listing.objects.take(position, "name", "size")
    files = list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def head_of(file: tuple[str, int]) -> ShardHead:
        uri = ledger.uri(file[0])
        return decode_head(uri, lambda to: ledger.store.read(uri, 0, to))

    about: dict[str, Any] | None = None
    shards = []
    for (name, size), head in ahead(head_of, files, _READERS):
        about = about or head.about
        if head.samples:
            # Readers divide by the samples of a shard.
            shards.append({"basename": name, "bytes": size, "samples": head.samples})
    return encode_index(about or {}, shards, {_OWNER: fingerprint})


def remove_index(ledger: Ledger, listing: OutputListing, suffix: str) -> None:
    """Removes the index, if there is one, as it was seen: some outputs are to be made again."""
    found = own_index(ledger, listing, suffix)
    if found is not None:
        try:
            ledger.store.delete(found.uri, found.generation)
        except GenerationMismatch:
            return  # another driver has just published it
