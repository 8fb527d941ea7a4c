"""Which files of a repository of the Hugging Face Hub are a split: as its README says, or else by their names. Pure.

The rules are those that the Hub publishes ("File names and splits", "Manual Configuration"), in this order:

    README.md      configs: [{config_name, data_files: [{split, path}]}]
    data/          train-00000-of-00004.parquet: any name of a split
    folders        train/…, data/valid/…
    names          my-train.csv, test_part1.jsonl.gz
    none of them   all files are `train`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fsspec.utils import glob_translate

from curate.errors import ConfigError
from curate.formats.encoding import Format, detect

DEFAULT = "default"
"""What a configuration is called that has no name."""
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_NUMBERED = re.compile(r"data/(?:.*/)?([^/]+?)-\d+-of-\d+[^/]*")
_READABLE = (Format.PARQUET, Format.JSONL, Format.CSV, Format.TEXT, Format.WEBDATASET)

Splits = Mapping[str, Sequence[str]]
"""The files of each split, in the order of their names."""


def splits_of(names: Sequence[str], configs: Any = None, config: str | None = None) -> Splits:
    """Returns the files of each split of a repository with these files. `configs` is what its README.md says of them,
    `config` the one that is asked for. Raises ConfigError for a configuration that there is not, or that matches none.

    >>> splits_of(["README.md", "data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"])
    {'train': ['data/train-00000-of-00001.parquet'], 'test': ['data/test-00000-of-00001.parquet']}
    >>> splits_of(["a.jsonl", "b.jsonl"])
    {'train': ['a.jsonl', 'b.jsonl']}
    """
    files = sorted(one for one in names if _is_data(one))
    declared = _declared(configs, config)
    if declared is None:
        return _by_name(files)
    base, patterns = declared
    found = {}
    for split, globs in patterns.items():
        expressions = [re.compile(glob_translate(f"{base}{one.removeprefix('./')}")) for one in globs]
        found[split] = [one for one in files if any(each.fullmatch(one) for each in expressions)]
        if not found[split]:
            raise ConfigError(f"README.md says that {split!r} is {', '.join(globs)}, and no file matches that")
    return found


def format_of(split: str, files: Sequence[str]) -> Format:
    """Returns the format of the files of a split. Raises ConfigError if they have several."""
    formats = {detect(one).format: one for one in files}
    if len(formats) > 1:
        told = " and ".join(f"{one.value} ({name})" for one, name in formats.items())
        raise ConfigError(f"the split {split!r} has files of several formats: {told}; read them with read_... each")
    return next(iter(formats))


def _is_data(name: str) -> bool:
    if any(part.startswith((".", "_")) for part in name.split("/")) or name == "README.md":
        return False
    try:
        return detect(name).format in _READABLE
    except ConfigError:
        return False


def _declared(configs: Any, config: str | None) -> tuple[str, Mapping[str, Sequence[str]]] | None:
    """Returns the folder and the globs of each split, as a README says it; None if it says nothing."""
    some = configs if isinstance(configs, list) else []
    known = {str(one.get("config_name", DEFAULT)): one for one in some if isinstance(one, dict)}
    if config is None and len(known) > 1:
        preferred = [name for name, one in known.items() if one.get("default") or name == DEFAULT]
        if not preferred:
            raise ConfigError(f"the repository has several configurations; choose one with config=: {', '.join(known)}")
        config = preferred[0]
    config = config or next(iter(known), None)
    if config is None:
        return None
    if config not in known:
        raise ConfigError(f"config={config!r}: README.md names {', '.join(known) or 'no configuration'}")
    files, folder = known[config].get("data_files"), known[config].get("data_dir")
    base = f"{str(folder).strip('/')}/" if folder else ""
    if files is None:
        return (base, {"train": ["**/*"]}) if base else None
    if isinstance(files, str) or (isinstance(files, list) and all(isinstance(one, str) for one in files)):
        return base, {"train": _texts(files)}
    if isinstance(files, list) and all(isinstance(one, dict) and {"split", "path"} <= one.keys() for one in files):
        return base, {str(one["split"]): _texts(one["path"]) for one in files}
    raise ConfigError(f"README.md: data_files of {config!r} are {files!r:.100}, expected globs, or splits with a path")


def _texts(value: Any) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def _by_name(files: Sequence[str]) -> Splits:
    numbered: dict[str, list[str]] = {}
    for one in files:
        if match := _NUMBERED.fullmatch(one):
            numbered.setdefault(match.group(1), []).append(one)
    if numbered:
        return _ordered(numbered)
    for part in (0, 2):  # what comes before the last slash, and after it
        named: dict[str, list[str]] = {}
        for one in files:
            words = re.split(r"[^a-z]+", one.rpartition("/")[part].lower())
            for split, keywords in _KEYWORDS.items():
                if any(word in keywords for word in words):
                    named.setdefault(split, []).append(one)
        if named:
            return _ordered(named)
    return {"train": list(files)} if files else {}


def _ordered(found: Mapping[str, list[str]]) -> Splits:
    """Returns splits with the usual ones first."""
    usual = [one for one in _KEYWORDS if one in found]
    return {name: found[name] for name in [*usual, *(one for one in found if one not in usual)]}
