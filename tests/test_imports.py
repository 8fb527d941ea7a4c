"""What is imported, and what is only about to be."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import curate
from curate import imports
from curate.operators.convert import is_data_frame


def test_a_module_is_there_once_its_import_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that asks in the middle of another one's import finds none."""
    gate = tmp_path / "gate.py"
    gate.write_text("import threading\nbegun, go_on = threading.Event(), threading.Event()\n")
    (tmp_path / "slow_to_import.py").write_text("import gate\ngate.begun.set()\ngate.go_on.wait()\nlast = 1\n")
    (tmp_path / "fails_to_import.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    gates = __import__("gate")
    thread = threading.Thread(target=__import__, args=("slow_to_import",))
    thread.start()
    try:
        gates.begun.wait()
        assert "slow_to_import" in sys.modules
        assert imports.imported("slow_to_import") is None
    finally:
        gates.go_on.set()
        thread.join()
        monkeypatch.delitem(sys.modules, "gate")
    found = imports.imported("slow_to_import")
    assert found is not None
    assert found.last == 1
    monkeypatch.delitem(sys.modules, "slow_to_import")
    assert imports.imported("slow_to_import") is None
    with pytest.raises(ImportError):
        __import__("fails_to_import")
    assert imports.imported("fails_to_import") is None
    assert imports.imported("__main__") is sys.modules["__main__"]


def test_batches_are_told_while_pandas_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker of Ray may be doing for Arrow: a shard failed by `pandas` having no `DataFrame` yet."""
    import pandas as pd

    frame = pd.DataFrame({"n": [1]})
    begun = ModuleType("pandas")
    # As the import system marks one.
    monkeypatch.setattr(begun, "__spec__", SimpleNamespace(_initializing=True))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pandas", begun)
        assert not is_data_frame({"n": [1]})
    assert is_data_frame(frame)


@pytest.mark.slow
def test_only_one_function_looks_for_what_another_thread_may_be_importing() -> None:
    """`sys.modules` gives a module whose import has only begun, too."""
    asked = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if _asks_by_name(node)
    }
    assert asked == set()


ROOT = Path(curate.__file__).parent


def _asks_by_name(node: ast.AST) -> bool:
    """Returns whether code takes a module that it names from `sys.modules`."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(), *_]):
            return ast.unparse(of) == "sys.modules"
        case ast.Subscript(value=of, slice=ast.Constant()):
            return ast.unparse(of) == "sys.modules"
    return False


@pytest.mark.parametrize("frozen", [False, True])
def test_what_imports_make_is_not_looked_through(frozen: bool) -> None:
    """Neither meanwhile nor right after; later it is, as all else, and what somebody had set aside stays so."""
    code = (
        "import gc\n"
        "from curate.imports import uncollected\n"
        f"if {frozen}: gc.freeze()\n"
        "before, found = gc.get_freeze_count(), []\n"
        "gc.callbacks.append(lambda phase, info: found.append(info['generation']))\n"
        "with uncollected():\n"
        "    made = [[] for _ in range(50_000)]\n"
        "some = [[] for _ in range(100)]\n"
        "told = [gc.isenabled(), len(found), gc.get_freeze_count() == before]\n"
        "made.append(made)\n"
        "del made\n"
        "print(*told, gc.collect() >= 1)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Where it is another's, it is looked through once. Python 3.12 sets objects of its own aside as it starts.
    another = frozen or sys.version_info[:2] == (3, 12)
    assert ended.stdout.split() == ["True", str(2 * another), "True", "True"]
