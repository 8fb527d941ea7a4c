"""Steps that would read two files of one name: a step names its outputs after what it reads, so it refuses these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from curate.chain.steps import Step
from curate.sources.inputs import FileRows
from curate.stage.stage import Stage

Names = frozenset[tuple[str, frozenset[int]]]
"""What files are named after: an input as the chain has it, or a step that numbers its outputs; and the shard sizes at
which steps have cut files since, because parts of a file have names of their own."""


def same_names(steps: Sequence[Step], stages: Mapping[str, Stage]) -> Iterator[tuple[str, str]]:
    """Yields each step that reads two files of one name, with why, where that is known before any step has run.

    An extra output has the names of the main one. Outputs are named after inputs, whatever steps these went through;
    after an exchange they are numbered, and how many there will be is not known.
    """
    named: dict[str, Names] = {}
    for step in steps:
        stage = stages[step.name]
        read: dict[str, Names] = {f"input {text!r}": frozenset({(text, frozenset())}) for text in step.input}
        read |= {f"the output of {one!r}": named[one.partition("/")[0]] for one in step.input_from}
        size = {stage.tasks.shard_bytes}
        cut = {what: frozenset((place, sizes | size) for place, sizes in names) for what, names in read.items()}
        own = frozenset({(f"the step {step.name!r}", frozenset[int]())})
        named[step.name] = frozenset().union(*cut.values()) if _keeps_names(stage) else own
        if not isinstance(stage.rows, FileRows):
            # It reads files whatever is in them: their endings, which may differ, are part of their names.
            continue
        for one, other in combinations(cut, 2):
            if shared := cut[one] & cut[other]:
                after = min(place for place, _ in shared)
                yield (
                    step.name,
                    f"{one} and {other} have files of the same names, those of {after}, and the step would name its "
                    "own outputs after both; read one of them here, and the other in another step",
                )
                break


def _keeps_names(stage: Stage) -> bool:
    """Returns whether each output has the name of the file that it was made of, without its ending."""
    numbered = stage.exchange is not None or stage.from_inputs is not None
    return isinstance(stage.rows, FileRows) and not numbered and all(one.marks is not None for one in stage.before)
