"""Reads the steps of a chain from a TOML file: a table for each step, in the order in which they run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from curate.chain.steps import Step
from curate.errors import ConfigError, did_you_mean

OWN = ("job", "input", "input_from", "output")
"""Keys of a step that are not options of its job."""
EXAMPLE = '[steps.scored] with job = "toxicity", input = "texts/*.jsonl" and output = "out/scored"'


def read_steps(path: str) -> list[Step]:
    """Returns the steps of a file, as it has them. Raises ConfigError if it is not there, or is no such file.

    Whether a job takes the other keys of its step is known once the job is imported: they are the step's options.
    """
    try:
        told = tomllib.loads(Path(path).read_text("utf-8-sig"))
    except FileNotFoundError as error:
        near = did_you_mean(Path(path).name, [one.name for one in Path(path).parent.glob("*.toml")])
        raise ConfigError(f"there is no file {path}{near or '; pass the TOML file of a chain of jobs'}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); pass the TOML file of a chain of jobs") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it there") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: its lists or tables lie too deep in each other; take some levels out") from error
    try:
        return [_step(name, table) for name, table in _tables(told).items()]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _tables(told: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in told:
        if key != "steps":
            raise ConfigError(
                f"it has the key {key!r}, expected tables of steps{did_you_mean(key, ['steps'])}; write {EXAMPLE}"
            )
    steps = told.get("steps", {})
    if not isinstance(steps, Mapping) or not steps:
        raise ConfigError(f"it has no steps; write a table for each: {EXAMPLE}")
    return steps


def _step(name: str, table: Any) -> Step:
    if not isinstance(table, Mapping):
        raise ConfigError(f"steps.{name} is {table!r}, expected a table; write {EXAMPLE}")
    for key in ("job", "output"):
        if key not in table:
            near = did_you_mean(key, [one for one in table if one not in OWN])
            raise ConfigError(f"step {name!r} has no {key}{near}; write {EXAMPLE}")
    if not isinstance(table["job"], str):
        raise ConfigError(
            f"step {name!r}: job is {table['job']!r}, expected a text: a name that `curate jobs` lists, or the path of "
            "a Python file"
        )
    own = {key: table[key] for key in OWN if key in table}
    options = {key: value for key, value in table.items() if key not in OWN}
    _refuse_slips(name, own, options)
    return Step(name, options=options, **own)


def _refuse_slips(name: str, own: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raises ConfigError for a step without input that has a key like it; `from` is one."""
    if "input" not in own and "input_from" not in own:
        for key in options:
            near = "; did you mean 'input_from'?" if key == "from" else did_you_mean(key, ("input", "input_from"))
            if near:
                raise ConfigError(f"step {name!r} reads nothing, and has the key {key!r}{near}")
