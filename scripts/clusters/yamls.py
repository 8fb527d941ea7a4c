"""Parses YAML with line numbers, so that errors can name the line."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .problems import Problem, shown

Where = tuple[Hashable, ...]
"""The keys and positions that lead to a value."""


@dataclass(frozen=True)
class Document:
    """One document of a YAML file."""

    file: str
    data: Any
    lines: dict[Where, int]
    """The line of each value: that of its key, or of its dash."""

    def problem(self, where: Where, text: str) -> Problem:
        """Returns a problem at a value, or at the nearest value around it that there is."""
        while where not in self.lines:
            where = where[:-1]
        return Problem(self.file, self.lines[where], text)

    def get(self, *where: Hashable, default: Any = None) -> Any:
        """Returns the value at a place, or the default where there is none."""
        value = self.data
        for key in where:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return default
        return value


def read(path: Path) -> tuple[list[Document], list[Problem]]:
    """Returns the documents of a YAML file, or what keeps it from being read: bad syntax, or a key given twice.

    PyYAML keeps the last of two values with one key and says nothing.
    """
    file = shown(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        return [], [Problem(file, 1, f"cannot be read: {error.strerror}")]
    try:
        text = content.decode()
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        data = list(yaml.safe_load_all(text))
    except UnicodeDecodeError as error:
        return [], [Problem(file, content[: error.start].count(b"\n") + 1, "no YAML: not UTF-8")]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        return [], [Problem(file, line, f"no YAML: {error.problem or error.context}")]
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        return [], [Problem(file, line, f"no YAML: the character {error.character:#x}: {error.reason}")]
    except (RecursionError, ValueError) as error:
        # A text of the shape of a date that is none, such as 2024-99-99.
        return [], [Problem(file, 1, f"no YAML: {error}")]
    documents, problems = [], []
    for node, value in zip(nodes, data, strict=True):
        # Before a first `---`, or behind a last one.
        if value is None:
            continue
        lines: dict[Where, int] = {(): node.start_mark.line + 1}
        for where, line, again in _walk(node, ()):
            if again:
                problems.append(Problem(file, line, f"{where[-1]!r} is given twice (first in line {lines[where]})"))
            lines.setdefault(where, line)
        documents.append(Document(file, value, lines))
    return documents, problems


def _walk(node: yaml.Node, where: Where, around: tuple[yaml.Node, ...] = ()) -> Iterator[tuple[Where, int, bool]]:
    """Yields every place in a node, its line, and whether its key was there before."""
    # An anchor within what it names.
    if node in around:
        return
    around = (*around, node)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            # What is merged (`<<`) has the lines of the place that it is merged into.
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            name = yaml.safe_load(key.value) if key.tag != "tag:yaml.org,2002:str" else key.value
            yield (*where, name), key.start_mark.line + 1, name in seen
            seen.add(name)
            yield from _walk(value, (*where, name), around)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield (*where, number), value.start_mark.line + 1, False
            yield from _walk(value, (*where, number), around)
