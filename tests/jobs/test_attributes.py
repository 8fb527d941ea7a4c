"""Jobs that write attributes: what drops rows, or adds no column, is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curate.job.job import Job
from curate.testing.local import run_local
from jobs.classify import Classify
from jobs.corpus import Corpus
from jobs.langid import LangId
from jobs.pii import Pii
from jobs.quality import Quality
from jobs.urls import Urls
from tests.job.inline import refusing
from tests.jobs.test_classify import model  # noqa: F401 - a fixture

ROWS = [{"id": "1", "text": "This is a text in English.", "url": "http://a.de"}, {"id": "2", "text": "?!", "url": "x"}]


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        (Classify, {"min_score": 0.5}, "--keep and --min-score drop some; leave these out, and filter by score"),
        (Classify, {"keep": ["hq"], "column": "q"}, "drop some; leave these out, and filter by q"),
        (Corpus, {"shards": 1, "work": "work"}, "this job drops and shuffles rows; leave it out"),
        (LangId, {"keep": ["en"]}, "drop some; leave these out, and filter by language and language_score"),
        (LangId, {"min_score": 0.5}, "drop some; leave these out, and filter by language and language_score"),
        (Pii, {}, "attributes are columns beside the text, and --action replace adds none; annotate"),
        (Pii, {"action": "drop"}, "--action drop adds none; annotate"),
        (Quality, {}, "rows are dropped; add --annotate"),
        (Urls, {"block_domains": "domains.txt"}, "this job adds none and drops rows; leave it out"),
    ],
)
def test_what_drops_rows_has_no_attributes(
    job: type[Job],
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,  # noqa: F811
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "domains.txt").write_text("example.org\n")
    with refusing(message):
        run_local(job(attributes=True, **options, **({"model": model} if job is Classify else {})), ROWS)


@pytest.mark.parametrize(
    ("job", "options", "columns"),
    [
        (Classify, {"label": "hq"}, {"score"}),
        (LangId, {}, {"language", "language_score"}),
        (Pii, {"action": "annotate"}, {"pii"}),
        (Quality, {"annotate": True, "rules": ["c4"]}, {"c4_sentences", "quality_reason"}),
    ],
)
def test_what_is_measured_of_each_row_has(
    job: type[Job],
    options: dict[str, Any],
    columns: set[str],
    model: str,  # noqa: F811
) -> None:
    ran = run_local(job(attributes=True, **options, **({"model": model} if job is Classify else {})), ROWS)
    assert columns < {*ran.table.column_names}
    assert (len(ran.table), "text" in ran.table.column_names) == (2, False)
