"""Plans whose rows say where they lie, and those that attributes are joined to by that."""

from __future__ import annotations

from dataclasses import replace

from curate.attributes.found import Found, is_of, refuse_other_reading, refuse_others
from curate.attributes.join import WithAttributes
from curate.errors import ConfigError
from curate.objects.places import PLACE, POSITION
from curate.plan.nodes import Apply, Checkpoint, Exchanged, Plan, Scan, Zip, name_of, schema_of, transform, walk
from curate.sources.files import Files


def with_attributes(plan: Plan, found: Found) -> Plan:
    """Returns the rows of a plan with attributes: of the files that it reads, if these are what the attributes are of,
    else by the positions that the rows carry. Raises ConfigError."""
    what = f"with_attributes({found.root!r})"
    files = [node.source for node in walk(plan) if isinstance(node, Scan) and isinstance(node.source, Files)]
    schema = schema_of(plan)
    carried = schema is not None and POSITION in schema.names
    if files and (not carried or all(is_of(found, one.listing) for one in files)):
        for one in files:
            refuse_others(found, one.listing)
            refuse_other_reading(found, one.listing, one.how)
        plan = placed(_undropped(plan), PLACE, what, found.shard_bytes)
        made: Plan = Apply(plan, WithAttributes(found, PLACE, drops=True))
    else:
        if not carried and not _of_a_job(plan):
            _refuse_unplaced(plan, what)
        made = Apply(plan, WithAttributes(found, POSITION))
    schema_of(made)
    return made


def placed(plan: Plan, name: str, what: str, shard_bytes: int | None = None) -> Plan:
    """Returns a plan whose rows say in a column `name` where they lie in the files that they are read from. Raises
    ConfigError, for `what` asks for it, where they are not rows of files, or do not have the column any more."""
    schema = schema_of(plan)
    if schema is not None and name in schema.names:
        return plan
    _refuse_unplaced(plan, what)

    def with_place(node: Plan) -> Plan:
        if isinstance(node, Scan) and isinstance(node.source, Files):
            return Scan(node.source.placed(name, shard_bytes))
        return node

    made = transform(plan, with_place, until=(Checkpoint,))
    schema = schema_of(made)
    if schema is None or name not in schema.names:
        raise ConfigError(
            f"{what}: the places of the rows are not known behind {name_of(plan)}; call it before, right behind "
            "read_..., or before columns are selected"
        )
    return made


def _refuse_unplaced(plan: Plan, what: str) -> None:
    for node in walk(plan):
        joins = isinstance(node, Zip) or (isinstance(node, Exchanged) and len(node.inputs) > 1)
        if joins or isinstance(node, Checkpoint):
            raise ConfigError(f"{what}: the places of the rows are not known behind {name_of(node)}; call it before")
        if isinstance(node, Scan) and not isinstance(node.source, Files):
            raise ConfigError(
                f"{what}: the rows of {node.source.name} are not read from files, so they have no places; write them "
                "and read them again; in a job, set keep_positions = True"
            )


def _undropped(plan: Plan) -> Plan:
    """Returns a plan whose rows keep their places behind attributes that they were given: more are to come."""

    def keep(node: Plan) -> Plan:
        if isinstance(node, Apply) and isinstance(node.operator, WithAttributes) and node.operator.drops:
            return Apply(node.input, replace(node.operator, drops=False))
        return node

    return transform(plan, keep, until=(Checkpoint,))


def _of_a_job(plan: Plan) -> bool:
    """Returns whether a plan is of a job's inputs whose columns nobody knows yet."""
    return schema_of(plan) is None and any(
        isinstance(node, Scan) and getattr(node.source, "positions", False) for node in walk(plan)
    )
