"""read_huggingface: the files of a split of a repository, read as they lie on the Hub, or in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from curate.dataset.dataset import Dataset
from curate.dataset.read.files import chosen, read_csv, read_json, read_parquet, read_text, read_webdataset
from curate.dataset.read.repository import format_of, splits_of
from curate.errors import ConfigError, did_you_mean
from curate.formats.encoding import Format
from curate.operators.arguments import answers
from curate.storage.protocol import Store
from curate.storage.uris import normalise_input
from curate.stores.open import open_store

_READERS: Mapping[Format, Callable[..., Dataset]] = {
    Format.PARQUET: read_parquet,
    Format.JSONL: read_json,
    Format.CSV: read_csv,
    Format.TEXT: read_text,
    Format.WEBDATASET: read_webdataset,
}
README = "README.md"


@answers
def read_huggingface(
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    num_cpus: float | None = None,
) -> Dataset:
    """Returns the rows of one split of a dataset of the Hugging Face Hub, `"org/name"`, read from its files.

    Nothing is downloaded in advance: files are inputs like any other, in shards that a write resumes at. They are
    Parquet, JSON lines, CSV, text or WebDataset; which ones are a split is what README.md says for `config`, or else
    their names, by the rules of the Hub. `revision` is a branch, tag or commit: with a commit the files never change.
    `path` can be a folder too, or any URI, with the same layout: a clone, or what `snapshot_download` returned.

    `split` may be left out if there is only one. `columns` and `schema` are those of `read_parquet` and `read_json`.
    `"org/name"` needs `pip install 'curate[huggingface]'`. Raises ConfigError for a repository without such files, a
    split or config that it does not have, and a split with files of several formats.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for split in ("train", "test"):
    ...     _ = (folder / f"{split}.jsonl").write_text(f'{{"split": "{split}"}}\\n')
    >>> curate.read_huggingface(folder, split="test").take_all()
    [{'split': 'test'}]
    """
    root = _root(os.fspath(path), revision, is_path=not isinstance(path, str))
    store = open_store(root)
    names = [one.uri[len(root) + 1 :] for one in store.list(f"{root}/")]
    splits = splits_of(names, _configs(store, root) if README in names else None, config)
    if not splits:
        raise ConfigError(
            f"read_huggingface: {root} has no file that curate reads (Parquet, JSON lines, CSV, text, WebDataset)"
            if names
            else f"read_huggingface: {root} does not exist, or is empty"
        )
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    if split is None or split not in splits:
        found = "leaves out the split" if split is None else f"has no split {split!r}"
        raise ConfigError(
            f"read_huggingface({os.fspath(path)!r}) {found}{did_you_mean(split or '', splits)}; "
            f"there are: {', '.join(splits)}"
        )
    format = format_of(split, splits[split])
    given: dict[str, Any] = {} if schema is None else {"schema": schema}
    if schema is not None and format in (Format.TEXT, Format.WEBDATASET):
        raise ConfigError(f"read_huggingface(schema=...): files of {format.value} have a schema of their own")
    read = _READERS[format]([f"{root}/{_escaped(one)}" for one in splits[split]], num_cpus=num_cpus, **given)
    return read if columns is None else chosen(read, "read_huggingface(columns=...)", columns)


def _root(path: str, revision: str | None, *, is_path: bool) -> str:
    """Returns the URI of a repository."""
    parts = path.split("/")
    if is_path or "://" in path or path.startswith((".", "/", "~")):
        if revision is not None:
            raise ConfigError(f"read_huggingface(revision={revision!r}): a folder or a URI has none; leave it out")
        return normalise_input(os.path.expanduser(path))  # noqa: PTH111 - of a URI nothing is expanded
    if len(parts) > 2 or not all(parts):
        raise ConfigError(f"read_huggingface({path!r}): expected 'org/name', a folder such as './name', or a URI")
    # A branch called refs/convert/parquet is one component of the path.
    at = "" if revision is None else f"@{revision.replace('/', '%2F')}"
    return normalise_input(f"hf://datasets/{path}{at}")


def _configs(store: Store, root: str) -> Any:
    """Returns what a README says of files, in the YAML between the first two lines of dashes. Raises ConfigError."""
    lines = store.read(f"{root}/{README}").decode(errors="replace").splitlines()
    if not lines or lines[0].strip() != "---" or "---" not in [line.strip() for line in lines[1:]]:
        return None
    end = [line.strip() for line in lines[1:]].index("---") + 1
    if not any(line.startswith("configs") for line in lines[1:end]):
        return None
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{root}/{README} says which files are which split, and to read it the package pyyaml is needed: "
            "pip install 'curate[huggingface]'"
        ) from error
    try:
        found = yaml.safe_load("\n".join(lines[1:end]))
    except yaml.YAMLError as error:
        raise ConfigError(f"{root}/{README}: the YAML at its beginning cannot be read: {error}") from error
    return found.get("configs") if isinstance(found, dict) else None


def _escaped(name: str) -> str:
    """Returns the name of a file as the path that names it: what would be a glob stands for itself."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)
