"""The rules of the house (curate/README.md) hold for the tree: rooms have their size, their words and their place.

What imports what is import-linter's (see test_contracts). Nothing is imported here: files are read as text.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]
CURATE = ROOT / "curate"

FOLDERS = sorted(path.parent for path in CURATE.rglob("__init__.py"))
ROOMS = [folder for folder in FOLDERS if folder.parent == CURATE]

MOST_FILES = 15
MOST_LINES = 4_200
"""Of a room, with the rooms within it."""
LONG_LINES = 450

UNPLAIN = re.compile(
    r"\b(seams?|heard of|mended|told|gave|comes|of which|at work|what is left|such as there (is|are))\b"
    r"|(?<!there )\bis no\b(?! longer)",
    re.IGNORECASE,
)
"""Words that readers who learnt English later have to read twice: messages and help have ordinary verbs and nouns."""

LONG = {
    "exchange/run_file.py",
    "formats/read/csv.py",
    "backends/ray/backend.py",
    "backends/ray/calls.py",
    "stores/gcs.py",
    "stores/local.py",
    "tasks/scheduler.py",
    "testing/contract.py",
}
"""Files above LONG_LINES that stay so: one concept each. Their docstrings say why, in a paragraph that begins so:"""
WHY = "Long because "


def name_of(path: Path) -> str:
    return path.relative_to(CURATE).as_posix()


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.py") if path.name != "__init__.py"]


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def docstring_of(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def texts_of(path: Path) -> list[str]:
    """Returns the string literals of a file, those within f-strings too, but no docstrings: what users may read."""
    tree = ast.parse(path.read_text())
    prose = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    found = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and id(one) not in prose]
    return [one.value for one in found if isinstance(one.value, str)]


def contracts() -> dict[tuple[str, ...], list[str]]:
    """Returns the layers of each contract of that kind, by what it is about."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {tuple(one["containers"]): one["layers"] for one in told if one["type"] == "layers"}


def imports_of_own_room(folder: Path) -> bool:
    """Returns whether a file of a folder, or of one within it, imports another of that folder by its full name."""
    own = ".".join(folder.relative_to(ROOT).parts)
    text = "".join(path.read_text() for path in folder.rglob("*.py") if path != folder / "__init__.py")
    return re.search(rf"^\s*(?:from|import) {re.escape(own)}[. ]", text, re.MULTILINE) is not None


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_is_seen_at_a_glance(folder: Path) -> None:
    """No folder has more than 15 files besides `__init__.py`."""
    assert len(files_of(folder)) <= MOST_FILES


@pytest.mark.parametrize("room", ROOMS, ids=name_of)
def test_a_room_is_of_a_size_that_one_person_can_know(room: Path) -> None:
    """No room has more than 4,200 lines, with the rooms within it."""
    assert sum(map(lines_of, room.rglob("*.py"))) <= MOST_LINES


def test_every_folder_says_what_it_is_in_words_of_its_own() -> None:
    """Each `__init__.py` has a docstring, and no two begin alike."""
    first = {name_of(folder): docstring_of(folder / "__init__.py").partition("\n")[0] for folder in FOLDERS}
    assert [name for name, line in first.items() if not line] == []
    assert len(set(first.values())) == len(first)


def test_every_file_says_what_it_is() -> None:
    """Each module has a docstring."""
    assert [name_of(path) for path in CURATE.rglob("*.py") if not docstring_of(path)] == []


def test_every_room_stands_in_the_table_in_its_place() -> None:
    """The table of curate/README.md lists the layers of the import contract in their order: all rooms, and the single
    files below them; and in brackets the rooms within a room."""
    table = (CURATE / "README.md").read_text().partition("\n## The rooms\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\|[^|]*\| (`[^|]*) \|", table, re.MULTILINE)
    listed = [re.findall(r"`(\w+)`", cell.partition("(")[0]) for cell in cells]
    assert [name for names in listed for name in names] == contracts()[("curate",)]
    inner = {
        (names[0], one)
        for names, cell in zip(listed, cells, strict=True)
        for one in re.findall(r"`(\w+)`", cell.partition("(")[2])
    }
    there = {folder.relative_to(CURATE).parts for folder in FOLDERS if folder.parent not in (CURATE, ROOT)}
    assert inner == there


def test_every_room_is_a_layer() -> None:
    """The import contract orders all rooms and all single files, and nothing that is not there."""
    there = [room.name for room in ROOMS] + [path.stem for path in files_of(CURATE)]
    assert sorted(contracts()[("curate",)]) == sorted(there)


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != CURATE], ids=name_of)
def test_a_room_of_several_floors_has_a_contract_of_its_own(folder: Path) -> None:
    """Where a file of a room imports another one of it, a contract orders all of its files and inner rooms."""
    floors = contracts().get((".".join(folder.relative_to(ROOT).parts),))
    if floors is None:
        assert not imports_of_own_room(folder)
        return
    listed = [name for floor in floors for name in floor.split(" | ")]
    there = [path.stem for path in files_of(folder)] + [one.name for one in FOLDERS if one.parent == folder]
    assert sorted(listed) == sorted(there)


def test_the_long_files_are_those_that_are_named_here() -> None:
    """What became short leaves the list."""
    long = {name_of(path) for path in CURATE.rglob("*.py") if lines_of(path) > LONG_LINES}
    assert long - LONG == set(), "part these files; or say in their docstrings why they are long"
    assert LONG - long == set(), "these are short now: take them out of the list"


@pytest.mark.parametrize("name", sorted(LONG))
def test_a_long_file_says_why(name: str) -> None:
    """Its docstring says so in a sentence of its own."""
    assert f"\n\n{WHY}" in docstring_of(CURATE / name)


def test_what_the_map_names_is_there() -> None:
    """Each file that curate/README.md names with its room exists."""
    text = (CURATE / "README.md").read_text()
    rooms = "|".join(room.name for room in ROOMS)
    named = set(re.findall(rf"`((?:{rooms})/[a-z_/]+)`", text))
    named |= {f"{room}/{name}" for room, name in re.findall(rf"\*\*({rooms})/\*\*`([a-z_/]+)`", text)}
    assert len(named) > 50
    assert [one for one in sorted(named) if not (CURATE / f"{one}.py").is_file() and not (CURATE / one).is_dir()] == []


def test_messages_are_in_plain_words() -> None:
    """No message, help text or log event has a word of UNPLAIN."""
    texts = [(name_of(path), text) for path in CURATE.rglob("*.py") for text in texts_of(path)]
    assert [(name, text) for name, text in texts if " " in text and UNPLAIN.search(text)] == []


def test_no_object_is_read_by_threads_of_arrow() -> None:
    """`read_table` reads ahead in threads that may hold its bytes for longer than Python is there: a process that ends
    right after, as one that refuses does, would be aborted. Readers of `curate.testing` are those of a test."""
    found = [
        path for path in CURATE.rglob("*.py") if "pq.read_table(" in path.read_text() and "testing" not in path.parts
    ]
    assert found == []
