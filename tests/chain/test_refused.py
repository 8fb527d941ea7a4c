"""What is wrong with a chain is said before anything is written: what was found, what was expected, what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from curate.chain.chain import Chain
from curate.chain.steps import Step
from curate.errors import ConfigError
from tests.chain.chains import CHAIN, place
from tests.cli.running import Curate, curate
from tests.job.inline import everything

__all__ = ["curate", "place"]

COPY = 'job = "steps_of_test.py:Copied"'

ORDERED = 'job = "steps_of_test.py:Ordered"'

BAD = {
    "no TOML": ("[steps.a\n", "pipeline.toml is not valid TOML: ", "correct it there"),
    "too deep": (f"x = {'[' * 3000}{']' * 3000}\n", "pipeline.toml: its lists or tables lie too deep in each other"),
    "empty": ("", "pipeline.toml: it has no steps; write a table for each: [steps.scored]"),
    "another table": ("[step.a]\n", "it has the key 'step', expected tables of steps; did you mean 'steps'?"),
    "no table": ("[steps]\na = 1\n", "steps.a is 1, expected a table; write [steps.scored]"),
    "no job": ('[steps.a]\njobb = "x"\noutput = "o"\n', "step 'a' has no job; did you mean 'jobb'?"),
    "no output": (f'[steps.a]\n{COPY}\ninput = "in"\n', "step 'a' has no output; write [steps.scored]"),
    "no input": (f'[steps.a]\n{COPY}\noutput = "o"\n', "step 'a' reads nothing; give it input", "or input_from"),
    "from": (f'[steps.a]\n{COPY}\nfrom = "b"\noutput = "o"\n', "has the key 'from'; did you mean 'input_from'?"),
    "input is a number": (f'[steps.a]\n{COPY}\ninput = 1\noutput = "o"\n', "input is 1, expected a text, or a list of"),
    "output is a number": (f'[steps.a]\n{COPY}\ninput = "in"\noutput = 1\n', "output is 1, expected a path as text"),
    "nobody's input": (
        f'[steps.a]\n{COPY}\ninput = "~nobody here/in"\noutput = "o"\n',
        "step 'a': '~nobody here/in' names the home of a user that does not exist",
    ),
    "job is a number": ('[steps.a]\njob = 1\noutput = "o"\n', "job is 1, expected a text: a name that `curate jobs`"),
    "no such step": (CHAIN.replace('"kept"', '"keptt"'), "'keptt', and there is no such step; did you mean 'kept'?"),
    "itself": (CHAIN.replace('["kept"]', '["last"]'), "step 'last' reads its own output; name an earlier step"),
    "a later one": (
        CHAIN.replace('input = "in/*.jsonl"', 'input = "in/*.jsonl"\ninput_from = "other"')
        + f'\n[steps.other]\n{COPY}\ninput = "in"\noutput = "out/other"\n',
        "step 'clean' reads 'other', which is a later step; move 'other' before 'clean'",
    ),
    "a circle": (
        CHAIN.replace('input = "in/*.jsonl"', 'input_from = "kept"'),
        "steps read each other in a circle: clean reads kept reads scored reads clean; take one of these out",
    ),
    "one output": (
        CHAIN.replace("out/last", "out/odd/"),
        "steps 'odd' and 'last' have one output, ",
        "give each its own",
    ),
    "output in output": (
        CHAIN.replace("out/last", "out/odd/x"),
        "lie one in the other",
        "give each a folder of its own",
    ),
    "output as input": (
        CHAIN.replace('input_from = "scored"', 'input = "out/scored/*.parquet"'),
        "step 'kept': its input ",
        "reaches the output of step 'scored'; name the step instead: input_from = 'scored'",
    ),
    "a step as input": (
        CHAIN.replace('input_from = "clean"', 'input = "clean"'),
        "/clean' does not exist, as a file or a directory; check the path; the output of the step 'clean' is "
        'input_from = "clean"',
    ),
    "own output": (CHAIN.replace('"in/*.jsonl"', '"out/clean"'), "reaches its own output", "choose an output beside"),
    "no such job": (
        CHAIN.replace("steps_of_test.py:Kept", "toxicityy"),
        "step 'kept': curate has no built-in job 'toxicityy'",
    ),
    "no such file": (
        CHAIN.replace("steps_of_test.py:Kept", "gone.py"),
        "step 'kept': there is no file ",
        "/gone.py; pass",
    ),
    "no such class": (CHAIN.replace("py:Kept", "py:Keptt"), "has no job 'Keptt'; did you mean 'Kept'?"),
    "unknown parameter": (
        CHAIN.replace("least =", "leasst ="),
        "step 'kept': steps_of_test.py:Kept has no parameter 'leasst'; did you mean 'least'?; it has: attributes, ",
    ),
    "mistyped parameter": (CHAIN.replace("least = 4", 'least = "4"'), "step 'kept': least is '4'"),
    "for one run": (
        CHAIN.replace("least = 4", "limit = 4"),
        "step 'kept': limit is for one run; take it out of the step",
    ),
    "mistyped option": (
        CHAIN.replace("least = 4", "redo_stale = 1"),
        "step 'kept': --redo-stale 1 is not true or false",
    ),
    "backend": (CHAIN.replace("least = 4", 'backend = "rayy"'), "step 'kept': no backend 'rayy'; did you mean 'ray'?"),
    "option of another type": (
        CHAIN.replace("least = 4", 'max_in_flight = "many"'),
        "step 'kept': --max-in-flight many is not a whole number",
    ),
    "size": (CHAIN.replace("least = 4", 'shard_bytes = "64 cows"'), "step 'kept': ", "64 cows"),
    "no such extra output": (
        CHAIN.replace("scored/odd", "scored/od"),
        "step 'odd': input_from names 'scored/od', and 'scored' has no extra output 'od'",
        "it has: odd",
    ),
    **{
        f"one name {number}": (
            f'{CHAIN}\n[steps.both]\n{COPY if "job" not in reads else ""}\n{reads}\noutput = "out/both"\n',
            "step 'both': ",
            f"{one} and {other} have files of the same names, those of ",
            "in/*.jsonl, and the step would name its own outputs after both; read one of them here, and the other in",
        )
        for number, (reads, one, other) in enumerate(
            [
                ('input_from = ["clean", "last"]', "the output of 'clean'", "the output of 'last'"),
                ('input_from = ["scored", "scored/odd"]', "the output of 'scored'", "the output of 'scored/odd'"),
                ('input_from = ["odd", "kept"]', "the output of 'odd'", "the output of 'kept'"),
                ('input = "in/*.jsonl"\ninput_from = "kept"', "in/*.jsonl'", "the output of 'kept'"),
                (
                    'job = "steps_of_test.py:Ordered"\ninput_from = ["clean", "scored"]',
                    "the output of 'clean'",
                    "the output of 'scored'",
                ),
            ]
        )
    },
    "one name of an exchange": (
        f'{CHAIN}\n[steps.sorted]\n{ORDERED}\ninput_from = "clean"\noutput = "out/sorted"\n'
        + "".join(f'[steps.{one}]\n{COPY}\ninput_from = "sorted"\noutput = "out/{one}"\n' for one in ("c", "d"))
        + f'[steps.both]\n{COPY}\ninput_from = ["c", "d"]\noutput = "out/both"\n',
        "step 'both': the output of 'c' and the output of 'd' have files of the same names, those of the step 'sorted'",
    ),
    "a column that is not there": (
        CHAIN.replace("py:Clean", "py:Picky"),
        "step 'clean': ",
        "'m'",
    ),
    "missing input": (CHAIN.replace("in/*.jsonl", "inn/*.jsonl"), "step 'clean': ", "inn/*.jsonl"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_and_nothing_is_written(place: Path, curate: Curate, case: str) -> None:
    """Exit code 2."""
    text, *said = BAD[case]
    (place / "pipeline.toml").write_text(text)
    before = everything(place)
    refused = curate("run", "pipeline.toml", "--backend", "inline")
    assert refused.code == 2
    for part in said:
        assert part in refused.err
    assert {name: data for name, data in everything(place).items() if "__pycache__" not in name} == before


@pytest.mark.parametrize(
    "steps",
    [
        {"both": f'{COPY}\ninput_from = ["kept", "kept"]'},
        {"sorted": f'{ORDERED}\ninput_from = "clean"', "both": f'{COPY}\ninput_from = ["kept", "sorted"]'},
        {
            "cut": f'{COPY}\ninput = "in/*.jsonl"\nshard_bytes = "1MiB"',
            "both": f'{COPY}\ninput_from = ["kept", "cut"]',
        },
        {
            "b": f'{COPY}\ninput = "in/1*.jsonl"',
            "a": f'{COPY}\ninput = "in/0*.jsonl"',
            "both": f'{COPY}\ninput_from = ["a", "b"]',
        },
    ],
    ids=["one output twice", "numbered", "cut otherwise", "other inputs"],
)
def test_names_that_may_differ_are_left_to_the_run(place: Path, curate: Curate, steps: dict[str, str]) -> None:
    """Whether they do is known once the steps before have run."""
    text = "".join(f'\n[steps.{name}]\n{table}\noutput = "out/{name}"\n' for name, table in steps.items())
    (place / "pipeline.toml").write_text(CHAIN + text)
    assert curate("run", "pipeline.toml", "--dry-run", "--backend", "inline").code == 0


def test_all_jobs_are_checked_at_once(place: Path, curate: Curate) -> None:
    """Two mistakes in two steps are two lines."""
    (place / "pipeline.toml").write_text(CHAIN.replace("least =", "leasst =").replace("py:Clean", "py:Cleen"))
    lines = curate("run", "pipeline.toml").err.splitlines()
    assert [line.partition(":")[0] for line in lines if "step '" in line] == ["error", "step 'kept'"]


def test_there_is_no_such_file(place: Path, curate: Curate) -> None:
    """Neither to run nor to look at; one that is called like it is named."""
    assert curate("run", "pipelin.toml").err == "error: there is no file pipelin.toml; did you mean 'pipeline.toml'?\n"
    assert "did you mean 'pipeline.toml'?" in curate("status", f"{place}/piepline.toml").err
    for command in ("run", "status"):
        refused = curate(command, "gone.toml")
        assert (refused.code, refused.err) == (
            2,
            "error: there is no file gone.toml; pass the TOML file of a chain of jobs\n",
        )


@pytest.mark.parametrize("option", ["--step", "--overwrite"])
def test_a_step_that_is_named_exists(place: Path, curate: Curate, option: str) -> None:
    """Else the nearest is named; of an empty name, as where a variable is not set, all are. It was every step."""
    refused = curate("run", "pipeline.toml", option, "keppt")
    assert (refused.code, refused.err) == (2, "error: there is no step 'keppt'; did you mean 'kept'?\n")
    refused = curate("run", "pipeline.toml", option, "", "--backend", "inline")
    assert (refused.code, refused.err) == (2, "error: there is no step ''; there are: clean, scored, odd, kept, last\n")
    with pytest.raises(ConfigError, match="there is no step ''; there are: clean"):
        Chain.read("pipeline.toml").run(step="", backend="inline")
    assert not (place / "out").exists()


def test_in_python_too() -> None:
    """What a file cannot say: no step at all, two of one name, and no step."""
    one = Step("a", "toxicity", output="out", input="in")
    for steps, said in (
        ([], "a chain has no step; give it one or more"),
        ([one, one], "two steps have the name 'a'; rename one of them"),
        (["a"], "a chain has 'a' as a step, expected a curate.Step"),
    ):
        with pytest.raises(ConfigError, match=said):
            Chain(steps)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a step has the name 'a/b', expected a text without '/'"):
        Step("a/b", "toxicity", output="out", input="in")
