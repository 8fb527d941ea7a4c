"""Listings of many pages, over all stores: what a service says of folders, and where a page begins."""

from __future__ import annotations

import pytest

from curate.requests import listing
from curate.stores import gcs
from curate.stores.s3 import store as s3
from curate.testing.contract import StorePlace

FOLDERS = ["a", "a.", "a-b", "b c", "b+c", "b%20c", "c/d", "c/d/e", "é", "\U0001f600", "z&<>", "z"]


@pytest.mark.ci(15)
@pytest.mark.quick(1)
@pytest.mark.parametrize("prefix", ["", "a", "c/", "c/d/", "z/none"])
def test_many_folders(place: StorePlace, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """Names are as they were written, in code-point order, each once: marks of folders, and what lies beside them."""
    for module in (gcs, s3):
        monkeypatch.setattr(module, "LIST_PAGE", 3)
    for name in ("PLAIN_PAGES", "RANGE_PAGES"):
        monkeypatch.setattr(listing, name, 1)
    names = [f"{folder}/{number}" for folder in FOLDERS for number in range(4)] + ["a.json", "c.x", "zz", "b c.txt"]
    if place.root.startswith(("gs:", "s3:")):
        names += ["a/", "c/d/"]
    for name in names:
        place.store.publish(place.root + name, b"x")
    found = [one.uri.removeprefix(place.root) for one in place.store.list(place.root + prefix)]
    assert found == sorted(name for name in names if name.startswith(prefix))
