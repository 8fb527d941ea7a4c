"""Sets of characters, as ranges of code points in base 16: facts of Unicode, and of the code of published rules."""

from __future__ import annotations

from functools import cache

_SYMBOLS = (
    "0-8 b-1f 21-2f 3a-40 5b-60 7b-9f ab b4 bb 2013-2014 2019 201c-201e 2026 2236 2501 25ba 3001-3002 3008-300d "
    "3010-3011 ff01 ff05 ff08-ff09 ff0c ff0e ff11 ff1a-ff1b ff1f ff5e"
)
_ENDS = (
    "21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736 17d4-17d6 "
    "17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 203c-203d 2047-2049 "
    "2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb "
    "fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 "
    "111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 "
    "1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 "
    "16b37-16b38 16b44 16e98 1bc9f 1da88"
)
_NOT_OF_SPACY = "61d-61e 837 839 83d-83e 17d4-17d6 17d9-17da 1b7d-1b7e 2e53-2e54 10f55-10f59 10f86-10f89 11944 11946"
_NOT_OF_SPACY += " 11ef7-11ef8 11f43-11f44 16e98"


def _characters(ranges: str) -> frozenset[str]:
    found: set[str] = set()
    for one in ranges.split():
        first, _, last = one.partition("-")
        found.update(map(chr, range(int(first, 16), int(last or first, 16) + 1)))
    return frozenset(found)


@cache
def terminal_punctuation() -> frozenset[str]:
    """Returns the characters that end a sentence in any script: Unicode's property Sentence_Terminal, and some more.

    >>> sorted(terminal_punctuation())[:4]
    ['!', '.', '?', '։']
    """
    return _characters(_ENDS)


@cache
def sentence_marks() -> frozenset[str]:
    """Returns the tokens after which spaCy's `sentencizer` lets a sentence end."""
    return _characters(_ENDS) - _characters(_NOT_OF_SPACY)


@cache
def symbols() -> frozenset[str]:
    """Returns the characters of which a word is no word if it has no others: control characters, punctuation.

    These are those of FineWeb's code (datatrove 0.10.1), in which a full-width 1 is one by mistake, and stays one.
    """
    return _characters(_SYMBOLS) | _characters(_ENDS)
