"""What is said of two identities that differ: something, short, and of each part that is another."""

from __future__ import annotations

import pytest

from curate.resume.identity import identity_difference

BODY = ",".join(["Pass()"] * 30)
F = f"FunctionDef(name='f',args=arguments(),body=[{BODY}])"
HELPER = f"FunctionDef(name='helper',args=arguments(),body=[{BODY}])"
COMPILED = "9501970064017c0064021900000000000000000089017a00000069015300 () ('r',) ('k',) (None, 'v', 'id')"


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (F, F.replace("Pass", "Pause", 1), "the code of f ("),
        (f"{F}\n{HELPER}", f"{F}\n{HELPER.replace('Pass', 'Pause', 1)}", "the code of f ("),
        (f"{F}\nk = int 1", f"{F}\nk = int 2", "k = int 1']], you asked for "),
        (f"{F}\nk = str '{'x' * 100}'", f"{F}\nk = str '{'x' * 99}y'", "the code of f ("),
        (COMPILED, COMPILED.replace("9501", "9502"), "the code of a function ("),
        (f"{COMPILED}\nk = int 1", f"{COMPILED}\nk = int 2", "k = int 2"),
        ("a" * 100, "a" * 99 + "b", "aaab"),
        ("type Add\naf4b22e26d8672a9", "type Add\naf4b22e26d8672aa", "the code of Add ("),
        (f"type Add\naf4b22e26d8672a9\n{HELPER}", "type Add\naf4b22e26d8672a9", "the code of Add ("),
        (f"partial {F} list(tuple(int 1))", f"partial {F} list(tuple(int 2))", "with list(tuple(int 2))"),
        (f"partial {F} list(tuple())", f"partial {HELPER} list(tuple())", "a partial of the code of helper ("),
    ],
    ids=[
        *("code", "a helper's code", "a value", "a long value", "compiled", "a value of compiled code", "no code"),
        *("class", "a class's helper", "a value of a partial", "code of a partial"),
    ],
)
def test_code_is_told_in_a_few_words_and_both_sides_are_told_apart(one: str, other: str, says: str) -> None:
    text = identity_difference({"operators": [["map", one]]}, {"operators": [["map", other]]})
    theirs, ours = text.split("made with ")[1].split(", you asked for ")
    assert theirs != ours
    assert says in text
    assert len(text) < 300


def test_an_exchange_that_reads_something_else_is_told_so() -> None:
    """What it reads is told by a hash alone."""
    sort = ["sort", {"keys": [["n", False]]}]
    assert identity_difference({"exchange": [sort, ["a"]]}, {"exchange": [sort, ["b"]]}) == (
        "  what the exchange reads is another: its inputs, or a step before it"
    )
    assert "you asked for [['shuffle'" in identity_difference(
        {"exchange": [sort, ["a"]]}, {"exchange": [["shuffle"], ["b"]]}
    )
    assert identity_difference({"exchange": [sort, ["a"]]}, {"exchange": [sort, ["a"]]}) == ""
