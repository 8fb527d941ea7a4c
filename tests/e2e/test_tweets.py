"""The main job on real, labelled text."""

from __future__ import annotations

import csv

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from tests.support.harness import ROOT, Place, run

TWEETS = ROOT.parent / "shared/data/labeled-tweets/labeled_data.csv"


def auc(scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> float:
    """Returns the area under the ROC curve: how often a positive outranks a negative, ties counting half."""
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    n = int(positive.sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


def test_auc_of_hand_made_ranks() -> None:
    """Perfect, inverted, and all tied."""
    positive = np.array([False, False, True, True])
    assert auc(np.array([1.0, 2, 3, 4]), positive) == 1
    assert auc(np.array([4.0, 3, 2, 1]), positive) == 0
    assert auc(np.ones(4), positive) == 0.5
    assert auc(np.array([1.0, 2, 2, 3]), positive) == 0.875


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
