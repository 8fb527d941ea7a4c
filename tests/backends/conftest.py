"""Which of these tests are for an installation with Ray: without it, all others are to pass."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_ray*.py"]
