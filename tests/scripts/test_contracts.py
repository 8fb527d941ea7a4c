"""The import contracts in pyproject.toml have teeth: an import that goes up, or around a wall, is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"


@pytest.mark.ci(2)
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("stores/memory.py", "import curate.tasks.shard", "Imports go down only"),
        ("tasks/shard.py", "import ray", "Only curate.backends.ray imports ray"),
        ("backends/inline.py", "from ray import exceptions", "Only curate.backends.ray imports ray"),
        ("dataset/__init__.py", "import gcsfs", "Only curate.stores.gcs imports gcsfs"),
        ("helpers.py", "", "Imports go down only"),
        ("arrow/order.py", "import curate.arrow.groups", "No circles anywhere"),
        ("arrow/hashing.py", "import curate.arrow.order", "curate.arrow: down only"),
        ("arrow/order.py", "import curate.storage.protocol", "arrow knows nothing of curate"),
        ("tasks/failure.py", "import curate.tasks.scheduler", "What a row's own process imports is small"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(tmp_path: Path, module: str, line: str, contract: str) -> None:
    """Each case adds one line to a copy of the package; a module that belongs to no layer is one too many."""
    shutil.copytree(ROOT / "curate", tmp_path / "curate", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / "curate" / module, "a") as file:
        file.write(f"\n{line}\n")
    result = subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    # Without a module's layer the contract cannot even be checked, which is said in place of its name.
    assert f"{contract} BROKEN" in result.stdout or "helpers" in result.stdout
