"""The main job on real, labelled text."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.jobs.test_toxicity import auc
from tests.support.harness import ROOT, Place, run

TWEETS = ROOT.parent / "shared/data/labeled-tweets/labeled_data.csv"


@pytest.mark.slow
@pytest.mark.skipif(not TWEETS.exists(), reason="the labelled tweets are not here")
def test_labelled_tweets(local: Place) -> None:
    """24,783 rows in order, and a ROC AUC of at least 0.98 for "class is not 2" (neither hate nor offence)."""
    columns = ("--text-column", "tweet", "--id-column", "", "--keep-columns", "class")
    argv = ("jobs/toxicity.py", "--backend", "inline", "--json", "--input", str(TWEETS), *columns)
    ended = run(*argv, "--output", f"{local.root}/out")
    assert ended.code == 0, ended.err
    assert ended.json["rows"] == {"in": 24783, "created": 0, "out": 24783, "dropped": {}, "quarantined": 0}
    table = pq.read_table(f"{local.root}/out/labeled_data.parquet")
    with TWEETS.open(newline="") as file:
        classes = [row["class"] for row in csv.DictReader(file)]
    assert [str(value) for value in table["class"].to_pylist()] == classes
    score = table["toxicity"].to_numpy().astype(float)
    assert auc(score, np.array([value != "2" for value in classes])) >= 0.98
    assert table["toxic"].to_numpy().tolist() == (table["toxicity"].to_numpy() >= np.float32(0.5)).tolist()
