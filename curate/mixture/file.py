"""A mixture as a TOML file: its budget, and a table for each source. Pure: text to values."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from curate.errors import ConfigError, did_you_mean
from curate.mixture.mixture import DOCUMENTS, MAX_EPOCHS, Mixture, Source

KEYS = ("budget", "unit", "max_epochs", "seed", "sources")
SOURCE_KEYS = ("weight", "max_epochs", "files")
EXAMPLE = "budget = 1_000_000, and for each source a table such as [sources.web] with weight = 0.7"


def parse_mixture(text: str, called: str) -> Mixture:
    """Returns the mixture that a TOML file says, which is `called` so in errors. Raises ConfigError for a key that is
    not known or not there, and for a value that it cannot have.

    >>> told = parse_mixture("budget = 10\\n[sources.web]\\nweight = 3\\n[sources.books]\\nweight = 1\\n", "mix.toml")
    >>> told.names, [str(one) for one in told.weights]
    (['books', 'web'], ['1', '3'])
    >>> parse_mixture("budget = 10\\n[sources.web]\\nwieght = 3\\n", "mix.toml")
    Traceback (most recent call last):
    curate.errors.ConfigError: mix.toml: sources.web has no key 'wieght'; did you mean 'weight'? It may have weight, \
max_epochs, files
    """
    try:
        told = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{called} is not valid TOML: {error}; correct it there") from error
    try:
        return _mixture(told)
    except ConfigError as error:
        raise ConfigError(f"{called}: {error}") from error


def digest(mixture: Mixture) -> str:
    """Returns the SHA-256 of what a mixture says: comments and the order of keys are nothing to it."""
    return hashlib.sha256(orjson.dumps(mixture.as_dict(), option=orjson.OPT_SORT_KEYS)).hexdigest()


def _mixture(told: Mapping[str, Any]) -> Mixture:
    _refuse_unknown("it", told, KEYS)
    for key in ("budget", "sources"):
        if key not in told:
            raise ConfigError(f"it has no {key}; write {EXAMPLE}")
    tables = told["sources"]
    if not isinstance(tables, Mapping) or not tables:
        raise ConfigError(f"sources is {tables!r}, expected a table for each source; write {EXAMPLE}")
    most = told.get("max_epochs", MAX_EPOCHS)
    sources = tuple(_source(name, table, most) for name, table in tables.items())
    return Mixture(sources, told["budget"], told.get("unit", DOCUMENTS), told.get("seed", 0))


def _source(name: str, table: Any, max_epochs: Any) -> Source:
    if not isinstance(table, Mapping):
        raise ConfigError(f"sources.{name} is {table!r}, expected a table; write [sources.{name}] with weight = 0.5")
    _refuse_unknown(f"sources.{name}", table, SOURCE_KEYS)
    if "weight" not in table:
        raise ConfigError(f"sources.{name} has no weight; give its share of the budget, in proportion to the others")
    files = table.get("files", [])
    files = [files] if isinstance(files, str) else files
    if not isinstance(files, list) or not all(isinstance(one, str) and one for one in files):
        raise ConfigError(f'sources.{name}: files is {files!r}, expected patterns of paths, as ["web/*"]')
    return Source(name, table["weight"], table.get("max_epochs", max_epochs), tuple(files))


def _refuse_unknown(owner: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            near = did_you_mean(key, known)
            raise ConfigError(
                f"{owner} has no key {key!r}{f'{near} It' if near else '; it'} may have {', '.join(known)}"
            )
