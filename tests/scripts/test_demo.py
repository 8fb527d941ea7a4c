"""scripts/demo: a corpus if there is none, the job, its status; the exit code is the job's."""

from __future__ import annotations

from tests.support.checkout import Checkout

CORPUS = "python scripts/corpus --output demo/reddit"
JOB = "python jobs/toxicity.py --input demo/reddit --text-column body --output demo/toxicity"
STATUS = "curate status demo/toxicity"


def test_again_and_again(checkout: Checkout) -> None:
    """The corpus is made once; the job is run each time, and finds out by itself that it has nothing to do."""
    assert checkout.run(f"{checkout.root}/scripts/demo")[0] == 0
    (checkout.root / "demo" / "reddit").mkdir(parents=True)
    assert checkout.run(f"{checkout.root}/scripts/demo")[0] == 0
    assert checkout.calls() == [CORPUS, JOB, STATUS, JOB, STATUS]


def test_fresh_starts_from_nothing(checkout: Checkout) -> None:
    (checkout.root / "demo" / "reddit").mkdir(parents=True)
    assert checkout.run(f"{checkout.root}/scripts/demo --fresh")[0] == 0
    assert checkout.calls() == [CORPUS, JOB, STATUS]


def test_failed_shards_are_shown_and_fail_the_demo(checkout: Checkout) -> None:
    checkout.fail("toxicity.py", 1)
    assert checkout.run(f"{checkout.root}/scripts/demo")[0] == 1
    assert checkout.calls() == [CORPUS, JOB, STATUS]


def test_an_interrupted_job_ends_the_demo(checkout: Checkout) -> None:
    """Who pressed Ctrl-C wants the prompt."""
    checkout.fail("toxicity.py", 130)
    assert checkout.run(f"{checkout.root}/scripts/demo")[0] == 130
    assert checkout.calls() == [CORPUS, JOB]


def test_no_corpus_no_job(checkout: Checkout) -> None:
    checkout.fail("corpus", 1)
    assert checkout.run(f"{checkout.root}/scripts/demo")[0] == 1
    assert checkout.calls() == [CORPUS]


def test_an_unknown_option_is_refused(checkout: Checkout) -> None:
    code, _, err = checkout.run(f"{checkout.root}/scripts/demo --frsh")
    assert code == 2
    assert "usage: scripts/demo [--fresh]" in err
    assert checkout.calls() == []
