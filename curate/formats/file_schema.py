"""The schema that files of one input share; those that do not are refused."""

from __future__ import annotations

from collections import Counter

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
    # Once each: a schema that is asked for its names makes a list of them.
    times, wanted = Counter(found.names), dict.fromkeys(held.names)
    if how is None:
        for name in wanted:
            if name not in times:
                near = did_you_mean(name, found.names)
                raise SchemaMismatch(
                    f"{uri}: no column {name!r}{near}; it has {listed(found.names)}; every input needs "
                    "the columns of the first one, or those that the job reads by name (columns, keep_columns)"
                )
    problems = [f"column {name!r} occurs {times[name]} times" for name in wanted if times[name] > 1]
    differing = {
        field.name: field.type
        for field in held
        if times[field.name] == 1 and not readable(found.field(field.name).type, field.type)
    }
    problems += [f"column {name!r} is {found.field(name).type}, expected {type}" for name, type in differing.items()]
    for name in times if encoding.all_read else ():
        if name not in wanted:
            problems.append(f"column {name!r} is in this file only{did_you_mean(name, wanted)}")
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
