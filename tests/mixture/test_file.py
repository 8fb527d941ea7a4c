"""Mixtures as TOML files."""

from __future__ import annotations

import re

import pytest

from curate.errors import ConfigError
from curate.mixture.file import digest, parse_mixture

GOOD = """
budget = 1_000
unit = "tokens"
max_epochs = 2
seed = 7
[sources.web]
weight = 0.75
[sources.books]
weight = 0.25
max_epochs = 5
"""


def test_a_mixture_is_read() -> None:
    """A source has the epochs of all, or its own."""
    mixture = parse_mixture(GOOD, "mix.toml")
    assert mixture.as_dict() == {
        "budget": 1000,
        "unit": "tokens",
        "seed": 7,
        "sources": {"books": {"weight": 0.25, "max_epochs": 5}, "web": {"weight": 0.75, "max_epochs": 2}},
    }


def test_a_byte_order_mark_says_nothing() -> None:
    assert parse_mixture("\ufeff" + GOOD, "mix.toml") == parse_mixture(GOOD, "mix.toml")


def test_a_weight_above_all_doubles_is_refused() -> None:
    """Whole numbers of TOML have any number of digits."""
    with pytest.raises(ConfigError, match=r"mix.toml: mixture: weight of 'web' is 1000.*, expected a number above 0$"):
        parse_mixture(GOOD.replace("0.75", "1" + "0" * 400), "mix.toml")


def test_what_is_said_is_what_counts() -> None:
    """Comments, and the order of keys and tables, change no digest; a number does."""
    other = 'seed = 7\nbudget = 1000 # rows\nunit = "tokens"\n'
    other += "[sources]\nbooks = {max_epochs = 5, weight = 0.25}\nweb = {weight = 0.75, max_epochs = 2}\n"
    assert digest(parse_mixture(GOOD, "a")) == digest(parse_mixture(other, "b"))
    assert digest(parse_mixture(GOOD, "a")) != digest(parse_mixture(GOOD.replace("0.75", "0.76"), "a"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("budget = 1_000", "", "it has no budget; write budget = 1_000_000"),
        ("budget", "bugdet", "it has no key 'bugdet'; did you mean 'budget'? It may have budget, unit, max_epochs"),
        ("seed", "colour", "it has no key 'colour'; it may have budget"),
        ("weight = 0.75", "wieght = 1", "sources.web has no key 'wieght'; did you mean 'weight'?"),
        ("weight = 0.75", "", "sources.web has no weight; give its share of the budget"),
        ("weight = 0.75", "weight = 0", "weight of 'web' is 0, expected a number above 0; to use none of it"),
        ("weight = 0.75", "weight = -1.5", "weight of 'web' is -1.5, expected a number above 0"),
        ("weight = 0.75", "weight = nan", "weight of 'web' is nan, expected a number above 0"),
        ("weight = 0.75", "weight = inf", "weight of 'web' is inf, expected a number above 0"),
        ("weight = 0.75", "weight = true", "weight of 'web' is True, expected a number above 0"),
        ("weight = 0.75", 'weight = "0.75"', "weight of 'web' is '0.75', expected a number above 0"),
        ("1_000", "0", "budget is 0, expected a whole number, at least 1"),
        ("1_000", "1e3", "budget is 1000.0, expected a whole number"),
        ("1_000", "-5", "budget is -5, expected a whole number"),
        ('"tokens"', '"token"', "unit='token'; did you mean 'tokens'?; there are documents, characters and tokens"),
        ("max_epochs = 2", "max_epochs = 0", "max_epochs of 'web' is 0, expected a whole number, at least 1"),
        ("max_epochs = 5", "max_epochs = 1.5", "max_epochs of 'books' is 1.5, expected a whole number, at least 1"),
        ("seed = 7", "seed = -1", "seed is -1, expected a whole number, at least 0"),
        ("weight = 0.75", 'weight = 1\nfiles = ["web/*"]', "source 'books' has no files, but others have"),
        ("weight = 0.75", "weight = 1\nfiles = [3]", 'files is [3], expected patterns of paths, as ["web/*"]'),
        ("[sources.web]", "[sources.web", "mix.toml is not valid TOML"),
        (GOOD[GOOD.index("[") :], "", "it has no sources; write"),
        (GOOD[GOOD.index("[") :], "sources = 3", "sources is 3, expected a table for each source"),
        (GOOD[GOOD.index("[") :], "[sources]", "sources is {}, expected a table for each source"),
        (GOOD[GOOD.index("[") :], "[sources]\nweb = 0.5", "sources.web is 0.5, expected a table; write [sources.web]"),
    ],
)
def test_what_is_no_mixture_is_refused(old: str, new: str, said: str) -> None:
    """With the file, the place, what is there and what is expected."""
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        parse_mixture(GOOD.replace(old, new, 1), "mix.toml")
    assert str(raised.value).startswith("mix.toml")
