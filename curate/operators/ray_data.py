"""What users of ray.data write and curate does not have, each with what to write instead: one line.

The first table is of methods of a Dataset, the second of arguments of methods that call functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS: Mapping[str, str] = {}

_PLACES = "Ray chooses nodes by what a task or an actor holds; say that with num_cpus, num_gpus, memory or resources"
_RETRIES = "shards are tried again by themselves (raise curate.RetryLater for a busy service); leave it out"

ARGUMENTS: Mapping[str, str] = {
    "zero_copy_batch": "batches are given without a copy, and may be read-only; leave it out, and copy in the function "
    "what it writes into: batch['x'].copy()",
    "udf_modifying_row_count": "a function may always return any number of rows; leave it out",
    "ray_remote_args": "say what it holds with num_cpus, num_gpus, memory or resources",
    "ray_remote_args_fn": "say what it holds with num_cpus, num_gpus, memory or resources",
    "accelerator_type": "write resources={'accelerator_type:A100': 0.001}, as Ray calls the resource of such nodes",
    "label_selector": _PLACES,
    "fallback_strategy": _PLACES,
    "scheduling_strategy": _PLACES,
    "runtime_env": "give it to Ray: ray.init(runtime_env=...) before the first run, or ray job submit --runtime-env",
    "max_calls": "a worker keeps its process; leave it out",
    "max_concurrency": "an actor works on one batch at a time; write concurrency=..., or compute=curate.ActorPool(...)",
    "max_restarts": _RETRIES,
    "max_retries": _RETRIES,
    "max_task_retries": _RETRIES,
    "retry_exceptions": _RETRIES,
    "parallelism": "files are split by their bytes, and tasks are as many as there are CPUs; leave it out",
    "override_num_blocks": "files are split by their bytes; leave it out, or write .repartition(n) before a write",
}
"""By the name of the argument."""


def instead_of_argument(name: str) -> str:
    """Returns what to write instead of an argument of ray.data; empty for one that ray.data does not have, too.

    >>> instead_of_argument("udf_modifying_row_count")
    'a function may always return any number of rows; leave it out'
    """
    return ARGUMENTS.get(name, "")


def instead_of_compute(compute: Any) -> str:
    """Returns what to write instead of what ray.data takes as `compute`: its strategies, or their names.

    >>> instead_of_compute("actors")
    'write compute=curate.ActorPool(size=2), or curate.ActorPool(min_size=1, max_size=8)'
    """
    kind = compute if isinstance(compute, str) else type(compute).__name__
    if kind in ("tasks", "TaskPoolStrategy"):
        return "leave it out: a function runs in the tasks that read, as many as there are CPUs"
    sizes = [getattr(compute, name, None) for name in ("min_size", "max_size")]
    if kind == "ActorPoolStrategy" and isinstance(sizes[0], int):
        if sizes[0] == sizes[1]:
            return f"write compute=curate.ActorPool(size={sizes[0]})"
        most = f", max_size={sizes[1]}" if isinstance(sizes[1], int) else ""
        return f"write compute=curate.ActorPool(min_size={sizes[0]}{most})"
    return "write compute=curate.ActorPool(size=2), or curate.ActorPool(min_size=1, max_size=8)"
