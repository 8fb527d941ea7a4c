"""The schema that files of one input share; those that do not are refused."""

from __future__ import annotations

import pyarrow as pa

from curate.arrow.schema import format_schema, readable, widen
from curate.errors import SchemaMismatch, did_you_mean, listed
from curate.formats.encoding import Encoding, Format


def refuse_mismatch(uri: str, found: pa.Schema, held: pa.Schema, encoding: Encoding) -> None:
    """Raises SchemaMismatch if a file of the columns `found` cannot be read as `held`; a type of null fits all.

    So it is for a column that is not held, where all are asked for; and for one that is missing, unless files are read
    as somebody said: then it will be null.
    """
    how = encoding.how
    if how is None:
        for name in held.names:
            if name not in found.names:
                near = did_you_mean(name, found.names)
                raise SchemaMismatch(
                    f"{uri}: no column {name!r}{near}; it has {listed(found.names)}; every input needs "
                    "the columns of the first one, or those that the job reads by name (columns, keep_columns)"
                )
    times = {name: found.names.count(name) for name in held.names}
    problems = [f"column {name!r} occurs {count} times" for name, count in times.items() if count > 1]
    differing = {
        field.name: field.type
        for field in held
        if times[field.name] == 1 and not readable(found.field(field.name).type, field.type)
    }
    problems += [f"column {name!r} is {found.field(name).type}, expected {type}" for name, type in differing.items()]
    for name in dict.fromkeys(found.names) if encoding.all_read else ():
        if name not in held.names:
            problems.append(f"column {name!r} is in this file only{did_you_mean(name, held.names)}")
    if how is None:
        if problems:
            raise SchemaMismatch(
                f"{uri}: {problems[0]}; columns are as in the first input, or as the job declares them: rewrite the "
                "file, or name the columns to read, with a type that holds both (columns, keep_columns)"
            )
        return
    if problems:
        other = f"{how.first} has" if how.first else "declared is"
        selects = how.format is Format.PARQUET
        apart = [name for name, type in differing.items() if widen(found.field(name).type, type) is None]
        if apart and selects:
            # Text is read as what is declared; a file with types of its own is not.
            remedy = f"no type holds both of {listed(apart)}: rewrite the files, or select other columns with columns="
        else:
            remedy = f"declare all columns with schema={', or select columns with columns=' * selects}"
        raise SchemaMismatch(
            f"{uri}: {'; '.join(problems)}. This file has ({format_schema(found)}), and {other} "
            f"({format_schema(held)}); {remedy}"
        )
