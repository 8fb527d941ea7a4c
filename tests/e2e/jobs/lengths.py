"""The small job that does everything, with an extra output."""

from __future__ import annotations

from collections.abc import Mapping

from curate.dataset.dataset import Dataset
from tests.e2e.jobs.curation import Curation


class Lengths(Curation):
    """The same, and beside each output the lengths of its texts."""

    def build(self, ds: Dataset) -> Mapping[str, Dataset]:
        made = super().build(ds)
        assert isinstance(made, Dataset)
        return {"main": made, "lengths": made.select_columns(["id", "length"])}


if __name__ == "__main__":
    Lengths.main()
