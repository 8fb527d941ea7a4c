"""Of statements that are in others, as those of a main block, those count that decide on what is used; no others."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.code.function import callable_text
from tests.job.modules import Modules
from tests.support.examples import examples

BLOCKS = {
    "a main block": "if __name__:\n    $BODY",
    "a loop": "for _ in range(1):\n    $BODY",
    "a `while`": "while True:\n    $BODY\n    break",
    "a `with`": "with contextlib.nullcontext():\n    $BODY",
    "a `try`": "try:\n    $BODY\nexcept OSError:\n    print('failed')",
    "what follows a `try`": "try:\n    print('begun')\nfinally:\n    $BODY",
    "a case": "match 1:\n    case str():\n        print('a text')\n    case 1:\n        $BODY",
    "two blocks": "if __name__:\n    for _ in 'a':\n        $BODY",
}
COUNT = {
    "a value": "k = $K\nf = lambda row: k",
    "another's value": "j = $K\nk = j + 1\nf = lambda row: k",
    "what is added": "k = []\nk.append($K)\nf = lambda row: k",
    "what a function puts in": "k = {}\ndef put(x): k['x'] = x\nput($K)\nf = lambda row: k",
    "by another name": "k = {}\nj = k\nj['a'] = $K\nf = lambda row: k",
    "a function": "def g(row): return $K\nf = lambda row: g(row)",
    "a function in a table": "k = {'g': lambda row: $K}\nf = lambda row: k['g'](row)",
    "one that is put into it": "k = {}\nk['g'] = lambda row: $K\nf = lambda row: k['g'](row)",
    "one that a decorator puts into it": "k = []\n@k.append\ndef g(row): return $K\nf = lambda row: k[0](row)",
    "one of two": "if $K == 1:\n    def g(row): return 1\nelse:\n    def g(row): return 2\nf = lambda row: g(row)",
    "one of two in a list": "k = []\nif $K == 1:\n    @k.append\n    def g(row): return 1\nelse:\n    @k.append\n"
    "    def g(row): return 2\nf = lambda row: k[0](row)",
    "where a loop ends": "for i in range(9):\n    g = [lambda row: 0, lambda row: 1, lambda row: 2][i]\n"
    "    if i == $K: break\nf = lambda row: g(row)",
    "what a loop passes over": "for i in range(3):\n    if i > $K: continue\n    g = [lambda row: 0, lambda row: 1, "
    "lambda row: 2][i]\nf = lambda row: g(row)",
    "how often a loop runs": "for i in range($K): print(1)\nf = lambda row: i",
    "what fails": "def g(row): return 1\ntry:\n    [0, 0][$K]\nexcept IndexError:\n    def g(row): return 2\n"
    "f = lambda row: g(row)",
    "what fails in a loop": "for i in range(3):\n    try: [0, 0, 0][i + $K]\n    except IndexError: break\n"
    "    g = [lambda row: 0, lambda row: 1, lambda row: 2][i]\nf = lambda row: g(row)",
    "where a loop ends that nothing tells": "for k in map(io.StringIO, '012'):\n    if k.getvalue() == '$K': break\n"
    "f = lambda row: k.getvalue()",
    "what fails, that nothing tells": "try:\n    [0, 0][$K]\n    k = io.StringIO('a')\nexcept IndexError:\n"
    "    k = io.StringIO('b')\nf = lambda row: k.getvalue()",
    "what a `with` gives": "with contextlib.nullcontext($K) as k: print(1)\nf = lambda row: k",
    "what a case names": "match $K:\n    case int(k): print(1)\nf = lambda row: k",
    "what a condition names": "if (k := $K): print(1)\nf = lambda row: k",
    "an attribute": "class C: pass\nk = C()\nk.a = $K\nf = lambda row: k.a",
    "what is set on a class": "class C: pass\nC.a = $K\nf = lambda row: C.a",
    "what is taken out": "k = {1: 1, 2: 2, 3: 3}\ndel k[$K]\nf = lambda row: k",
    "what is bound": "k = functools.partial(max, $K)\nf = lambda row: k(row)",
}
DO_NOT = {
    "what is printed before": "print($K)\nk = 3\nf = lambda row: k",
    "what is printed after": "k = 3\nf = lambda row: k\nprint($K)",
    "another variable": "j = $K\nk = 3\nf = lambda row: k",
    "another function": "def h(row): return $K\ndef g(row): return 3\nf = lambda row: g(row)",
    "another branch": "if __name__ == 'a':\n    k = 1\nelif __name__ == 'b':\n    print($K)\nelse:\n    k = 3\n"
    "f = lambda row: k",
    "another loop's end": "k = 3\nfor i in range(9):\n    if i == $K: break\nf = lambda row: k",
    "what is told where it fails": "try:\n    k = 3\nexcept OSError:\n    print($K)\nf = lambda row: k",
    "what is done in a loop": "for k in range(3):\n    print($K)\nf = lambda row: k",
    "what is done with a condition": "if (k := 3):\n    print($K)\nf = lambda row: k",
    "what is beside a library's": "k = re.compile('a')\nprint($K)\nf = lambda row: k.match(row)",
    "what is beside an import": "import decimal\nprint($K)\nf = lambda row: decimal.Decimal(row)",
    "another of its name": "def g():\n    k = $K\n    return k\nk = 3\nf = lambda row: k",
    "other lambdas": "k = [lambda row: 3]\nj = lambda row: $K\nf = lambda row: k[0](row)",
}
NOTES = ("print(1)", "print(2); print(3)")
"""What a program may do beside: it decides on nothing."""


@pytest.fixture(name="modules")
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    return Modules(tmp_path, monkeypatch)


def _in(block: str, source: str) -> str:
    """Returns a program whose statements are in a block."""
    head, _, rest = BLOCKS[block].partition("$BODY")
    before = head[head.rindex("\n") + 1 :]
    return f"import contextlib, functools, io, re\n{head}{textwrap.indent(source, before).lstrip()}{rest}\n"


def _text(modules: Modules, source: str) -> str:
    return callable_text("f", modules.load(source, "blocks").f)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", [*COUNT, *DO_NOT])
def test_what_decides_on_a_value_counts_and_nothing_beside_it(name: str, block: str, modules: Modules) -> None:
    """In whichever block."""
    source = _in(block, COUNT.get(name) or DO_NOT[name])
    one, again, other = (_text(modules, source.replace("$K", str(number))) for number in (1, 1, 2))
    assert one == again
    assert (one != other) == (name in COUNT)


@st.composite
def _programs(draw: st.DrawFn) -> tuple[str, str]:
    """Two programs that differ by one number, with `$NOTE` for what they may do beside."""
    numbers = list[int]()

    def number() -> str:
        numbers.append(draw(st.integers(0, 3)))
        return f"${len(numbers)}$"

    def block(depth: int, further: tuple[str, ...]) -> Iterator[str]:
        for _ in range(draw(st.integers(1, 3))):
            for line in statement(depth, further):
                yield f"    {line}"

    def statement(depth: int, further: tuple[str, ...]) -> Iterator[str]:
        variable, function = draw(st.sampled_from("ab")), draw(st.sampled_from("gh"))
        kinds = ("number", "function", "lambda", "same", *further)
        match draw(st.sampled_from((*kinds, "if", "for", "try", "with", "match") if depth else kinds)):
            case "number":
                yield f"{variable} = {draw(st.sampled_from('ab'))} + {number()}"
            case "function":
                yield f"def {function}(): return {number()}"
            case "lambda":
                yield f"{function} = lambda: {number()}"
            case "same":
                yield f"{function} = {draw(st.sampled_from('gh'))}"
            case "note":
                yield "$NOTE"
            case "leave":
                yield f"if {variable} > {number()}: {draw(st.sampled_from(['break', 'continue']))}"
            case "if":
                yield f"if {variable} > {number()}:"
                yield from block(depth - 1, further)
                yield "else:"
                yield from block(depth - 1, further)
            case "for":
                yield f"for {variable} in range({number()}):"
                yield from block(depth - 1, (*further, "leave"))
            case "try":
                # Where other statements run if one fails, each may be what does.
                may_fail = tuple(one for one in further if one != "note")
                yield "try:"
                yield from block(depth - 1, may_fail)
                yield f"    [0, 0][min({variable}, {number()})]"
                yield from block(depth - 1, may_fail)
                yield "except IndexError:"
                yield from block(depth - 1, further)
            case "with":
                yield f"with contextlib.nullcontext({number()}) as {variable}:"
                yield from block(depth - 1, further)
            case "match":
                yield f"match {variable} + {number()}:"
                yield "    case 1 | 2:"
                yield from (f"    {line}" for line in block(depth - 1, further))
                yield f"    case {draw(st.sampled_from('ab'))}:"
                yield from (f"    {line}" for line in block(depth - 1, further))

    begin = "import contextlib\na = b = 0\ng = h = lambda: 0\nif __name__:"
    end = f"f = lambda row: {draw(st.sampled_from(['g()', 'h()', '(a, g())']))}"
    program = "\n".join([begin, *block(3, ("note",)), end])
    at = draw(st.integers(0, max(0, len(numbers) - 1)))
    others = [one + (place == at) for place, one in enumerate(numbers)]
    return _filled(program, numbers), _filled(program, others)


def _filled(program: str, numbers: Sequence[int]) -> str:
    return re.sub(r"\$(\d+)\$", lambda one: str(numbers[int(one[1]) - 1]), program)


@settings(max_examples=examples(120))
@given(programs=_programs())
def test_programs_that_make_other_rows_are_others(
    programs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever number in whichever statement it is that they differ by. What they do beside changes nothing."""
    texts, rows = list[str](), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        modules = Modules(tmp_path_factory.mktemp("blocks"), patch)
        for program in programs:
            found = {_text(modules, program.replace("$NOTE", note)) for note in NOTES}
            assert len(found) == 1
            texts += found  # of which the last one is there now
            rows.append(sys.modules["blocks"].f(0))
    assert rows[0] == rows[1] or texts[0] != texts[1]
