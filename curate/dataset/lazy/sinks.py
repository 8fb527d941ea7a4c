"""A plan as a stage over files: it is planned, run, resumed and looked at like any job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from curate.dataset.formats import DEFAULT_CODEC, OutputFormat, suffix
from curate.dataset.lazy.operators import Operator
from curate.dataset.lazy.plan import Apply, Checkpoint, Plan
from curate.dataset.lazy.rules import First, Fusion, Local, Tasks, Zipped, lower
from curate.dataset.lazy.sources import Files
from curate.dataset.pipeline import Pipeline, read_rows, task_cpus
from curate.dataset.spec import StageSpec
from curate.errors import ConfigError
from curate.runtime.protocol import Resources
from curate.units import MIB

SHARD_BYTES = 256 * MIB


def stage_of(plan: Plan, format: OutputFormat, codec: str | None) -> tuple[StageSpec, Sequence[str]]:
    """Returns the stage that writes a plan's rows, and the paths that it reads; those of its checkpoint, if it has one.

    Raises ConfigError for a plan that is no chain of operators over files, and for one without an identity.
    """
    codec = codec or DEFAULT_CODEC
    suffix(format, codec)
    # As they were asked for: how they are rewritten changes no byte, and may change with the next version of curate.
    asked = tuple(_operators(plan))
    name = f"write_{'json' if format is OutputFormat.JSONL else format.value}"
    identity = {
        "job": name,
        "version": None,
        "operators": [operator.identity() for operator in asked],
        "batch_size": read_rows(asked),
        "shard_bytes": SHARD_BYTES,
        "format": format.value,
        "codec": codec,
    }
    base = _base(plan)
    if isinstance(base, Checkpoint):
        upstream, paths = stage_of(base.input, OutputFormat.PARQUET, None)
        operators, columns, kept = asked, None, (upstream, base.path)
        identity["checkpoint"] = upstream.fingerprint
    else:
        fusion = _fusion(plan)
        source = fusion.source
        assert isinstance(source, Files)
        operators, columns, paths, kept = fusion.operators, fusion.view.columns or source.wanted, source.paths, None
        identity["columns"] = None if source.wanted is None else list(source.wanted)
    spec = StageSpec(
        name=name,
        identity=identity,
        code_digest="",
        parameters={"operators": [operator.name for operator in asked]},
        operator=Pipeline(operators),
        columns=None if columns is None else dict.fromkeys(columns),
        required=frozenset(),
        output_schema=None,
        batch_rows=read_rows(operators),
        shard_bytes=SHARD_BYTES,
        format=format,
        codec=codec,
        resources=Resources(task_cpus(operators)),
        upstream=kept,
    )
    return spec, paths


def _base(plan: Plan) -> Plan:
    return _base(plan.input) if isinstance(plan, Apply) else plan


def _operators(plan: Plan) -> Iterator[Operator]:
    """Yields the operators of a chain, in the order in which rows go through them."""
    if isinstance(plan, Apply):
        yield from _operators(plan.input)
        yield plan.operator


def _fusion(plan: Plan) -> Fusion:
    physical = lower(plan)
    below = physical
    while isinstance(below, First | Local):
        below = below.input
    if isinstance(below, Zipped):
        raise ConfigError(
            "a zip cannot be written: its rows are put side by side in the consumer's process, and no file of the "
            "input is one of the output; write its to_arrow() with pyarrow"
        )
    if isinstance(physical, First | Local):
        raise ConfigError(
            "a limit before a write is not resumable yet: which rows each shard gives would have to be decided first; "
            "filter the rows, or write all and limit what is read"
        )
    if not isinstance(physical, Tasks) or len(physical.fusions) > 1:
        raise ConfigError("a union cannot be written yet; write its parts, or name all paths in one read_*")
    fusion = physical.fusions[0]
    if not isinstance(fusion.source, Files):
        raise ConfigError(
            f"{fusion.source.name} is in memory, and a write is resumed by the files that it reads; write its "
            "to_arrow() with pyarrow, or read from files"
        )
    return fusion
