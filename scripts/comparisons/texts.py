"""Texts that are made up so that each rule about quality has some on either side of its threshold, most of them near.

A text is made for one rule: what the rule measures is aimed at a multiple of its threshold, which is within 5 % of one
for most of the texts. What is measured in the end may be off, as words and lines are whole: such a text is made again,
where somebody measures it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping

STOP_WORDS = ["the", "be", "to", "of", "and", "that", "have", "with"]
Make = Callable[["Writer", float], str]
Fits = Callable[[str, str, bool], bool]
"""Whether a text of a kind is near the threshold, and on the side that is dropped, or kept."""
TRIES, AT_FIRST = 40, 4
"""How often a text is made that does not fit, and how often with the aim that was meant."""
WIDE = 0.4


class Writer:
    """Writes plain prose out of made-up words, which differ enough for nothing to be repeated by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgk"
        self.vocabulary = [
            "".join(self.random.choices(letters, range(len(letters), 0, -1), k=self.random.randint(2, 9)))
            for _ in range(30_000)
        ]

    def word(self) -> str:
        if self.random.random() < 0.3:
            return self.random.choice(STOP_WORDS)
        return self.random.choice(self.vocabulary)

    def words(self, count: int) -> list[str]:
        return [self.word() for _ in range(count)]

    def sentence(self, count: int | None = None) -> str:
        words = self.words(count or self.random.randint(6, 18))
        if len(words) > 9 and self.random.random() < 0.5:
            words[4] += self.random.choice([",", ";", "'s", " -", " (so)"])
        return words[0].capitalize() + " " + " ".join(words[1:]) + self.random.choice([".", ".", ".", "!", "?", '."'])

    def mail(self) -> str:
        """Returns a mail address, or what looks like one."""
        local = self.random.choice(["john.doe", "a", "x_y-z+1", "#tag", "o'neil", "a..b", ".a", "a.", "ü"])
        host = self.random.choice(
            ["example.com", "sub.a-b.co.uk", "x", "a_b.com", "-a.com", "b.c.", "1.2.3.4", "[1.2.3.4]", "exa mple.com"]
        )
        return local + self.random.choice(["@", "@", "@", " @", "@@"]) + host

    def address(self) -> str:
        """Returns an IPv4 address, public or not."""
        return ".".join(str(self.random.choice([0, 1, 8, 10, 99, 127, 168, 172, 192, 203, 255])) for _ in range(4))

    def with_some(self, make: Callable[[], str]) -> str:
        """Returns prose with none or some of what `make` makes, and marks around it."""
        words = self.words(40)
        for _ in range(self.random.randint(0, 3)):
            before = self.random.choice(["", "", "(", "<", "to:", '"'])
            behind = self.random.choice(["", ".", ",", ")", ">", ";", "'s", "/24"])
            words.insert(self.random.randrange(len(words)), before + make() + behind)
        return " ".join(words)

    def prose(self, words: int, lines: int = 1) -> str:
        """Returns about as many words in as many lines, each a few sentences."""
        found = []
        for _ in range(lines):
            line = []
            left = max(6, words // lines)
            while left > 0:
                size = min(left, self.random.randint(6, 18)) if left > 8 else left
                line.append(self.sentence(max(size, 2)))
                left -= size
            found.append(" ".join(line))
        return "\n".join(found)


def _mixed(writer: Writer, share: float, total: int, special: Callable[[int], str], plain: Callable[[int], str]) -> str:
    """Returns `total` lines, of which about a `share` are special."""
    count = round(min(max(share, 0.0), 1.0) * total)
    lines = [special(number) for number in range(count)] + [plain(number) for number in range(total - count)]
    writer.random.shuffle(lines)
    return "\n".join(lines)


def _symbols(mark: str) -> Make:
    def make(writer: Writer, ratio: float) -> str:
        words = writer.words(writer.random.randint(120, 300))
        count = round(0.1 * ratio * len(words) / (1 - min(0.1 * ratio, 0.5)))
        for _ in range(count):
            words.insert(writer.random.randrange(len(words)), mark)
        return " ".join(words)

    return make


def _letters(length: float) -> Make:
    def make(writer: Writer, ratio: float) -> str:
        words = []
        for _ in range(writer.random.randint(60, 160)):
            size = max(1, round(writer.random.gauss(length * ratio, 0.8)))
            words.append("".join(writer.random.choices("abcdefghijklmnoprstuvw", k=size)))
        return " ".join(words) + " the and"

    return make


def _with_numbers(writer: Writer, ratio: float) -> str:
    total = writer.random.randint(80, 300)
    letters = min(total, round(0.8 * ratio * total))
    words = writer.words(letters) + [str(writer.random.randint(10, 9999)) for _ in range(total - letters)]
    writer.random.shuffle(words)
    return " ".join(words)


def _stop_words(writer: Writer, ratio: float) -> str:
    rare = [writer.random.choice(writer.vocabulary) for _ in range(writer.random.randint(60, 120))]
    rare = [word for word in rare if word not in STOP_WORDS]
    wanted = 1 if ratio < 1 else 2
    return " ".join([*rare, *writer.random.sample(STOP_WORDS, wanted)])


def _repeated(separator: str, share: float, *, by_chars: bool) -> Make:
    def make(writer: Writer, ratio: float) -> str:
        total = writer.random.randint(20, 60)
        if by_chars:
            # One long piece twice; what comes again is about the share of all characters.
            plain = [writer.sentence() for _ in range(total)]
            size = sum(map(len, plain))
            again = share * ratio / (1 - min(2 * share * ratio, 0.9)) * size
            piece = writer.prose(max(2, round(again / 6)))[: max(3, round(again))]
            pieces = [*plain, piece, piece]
        else:
            count = round(share * ratio * total)
            pieces = [writer.sentence() for _ in range(max(1, total - count))]
            pieces += [pieces[0]] * count
        writer.random.shuffle(pieces)
        return separator.join(pieces)

    return make


def _phrase(size: int, share: float, *, counted_once: bool) -> Make:
    def make(writer: Writer, ratio: float) -> str:
        phrase = " ".join(writer.random.choices(writer.vocabulary, k=size))
        count = writer.random.randint(3, 6)
        # All phrases, but for the first where it does not count, are to be the wanted share of the whole.
        # Spaces count in a text, and not in its phrases.
        wanted = share * ratio * (1.15 if counted_once else 1)
        chars = len(phrase) * (count - counted_once) / min(wanted, 0.8) - (len(phrase) + 1) * count
        words: list[str] = []
        while chars > 0:
            words.append(writer.random.choice(writer.vocabulary))
            chars -= len(words[-1]) + 1
        for _ in range(count):
            words.insert(writer.random.randint(0, len(words)), phrase)
        return " ".join(words)

    return make


def _sentences(writer: Writer, ratio: float) -> str:
    count = max(1, round(5 * ratio)) if abs(ratio - 1) > 0.05 else writer.random.choice([4, 5])
    return " ".join(writer.sentence() for _ in range(count))


def _said(phrase: str) -> Make:
    def make(writer: Writer, ratio: float) -> str:
        lines = writer.prose(120, 6).split("\n")
        if ratio >= 1:
            at = writer.random.randrange(len(lines))
            lines[at] = lines[at][:20] + f" {phrase} " + lines[at][20:]
        return "\n".join(lines)

    return make


def _lines_of_c4(writer: Writer, ratio: float) -> str:
    """Lines that C4 removes, or changes, between those that it keeps."""
    kinds = [
        "Home",
        "Please enable JavaScript to see this page.",
        "We use cookies to make it better.",
        "He wrote it in 1911.[12]",
        "[edit] It was long ago and far away.",
        "Wait for it...",
        "Too few.",
        "\t Log in \u00a0",
        "x" * 1001 + " is a long word.",
        'She said: "It is here."',
    ]
    lines = writer.prose(round(80 * ratio) + 20, 5).split("\n") + writer.random.sample(kinds, 5)
    writer.random.shuffle(lines)
    return "\n".join(lines)


def _short_lines(writer: Writer, ratio: float) -> str:
    return _mixed(
        writer,
        0.67 * ratio,
        writer.random.randint(25, 80),
        lambda _: writer.sentence(3)[:30],
        lambda _: writer.sentence(14),
    )


def _ended_lines(writer: Writer, ratio: float) -> str:
    return _mixed(
        writer,
        0.12 * ratio,
        writer.random.randint(150, 250),
        lambda _: writer.word() + ".",
        lambda _: " ".join(writer.words(2)),
    )


def _breaks(writer: Writer, ratio: float) -> str:
    words = writer.words(writer.random.randint(100, 300))
    for at in writer.random.sample(range(len(words)), min(len(words), round(0.3 * ratio * len(words)))):
        words[at] += "\n"
    return " ".join(words)


MAKES: dict[str, Make] = {
    "min_words": lambda writer, ratio: " ".join(writer.words(max(1, round(50 * ratio)))),
    "max_words": lambda writer, ratio: writer.prose(max(1, round(500 * ratio))),
    "min_mean": _letters(3.0),
    "max_mean": _letters(10.0),
    "hashes": _symbols("#"),
    "ellipses": _symbols("..."),
    # A share of more than the threshold is at least one line more.
    "bullets": lambda writer, ratio: _mixed(
        writer, 0.9 * ratio + (ratio > 1) / 60, 60, lambda _: "- " + writer.sentence(), lambda _: writer.sentence()
    ),
    "unfinished": lambda writer, ratio: _mixed(
        writer, 0.3 * ratio + (ratio > 1) / 200, 120, lambda _: writer.word() + " ...", lambda _: writer.sentence(4)
    ),
    "letters": _with_numbers,
    "stop_words": _stop_words,
    "paragraphs": _repeated("\n\n", 0.3, by_chars=False),
    "paragraph_chars": _repeated("\n\n", 0.2, by_chars=True),
    "lines": _repeated("\n", 0.3, by_chars=False),
    "line_chars": _repeated("\n", 0.2, by_chars=True),
    **{f"top_{n}": _phrase(n, share, counted_once=False) for n, share in ((2, 0.2), (3, 0.18), (4, 0.16))},
    **{
        f"repeated_{n}": _phrase(n, share, counted_once=True)
        for n, share in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))
    },
    "lorem": _said("lorem ipsum"),
    "curly": _said("{"),
    "sentences": _sentences,
    "lines_of_c4": _lines_of_c4,
    "ended": _ended_lines,
    "short": _short_lines,
    "duplicates": _repeated("\n", 0.01, by_chars=True),
    "breaks": _breaks,
}
BELOW = frozenset({"min_words", "min_mean", "letters", "stop_words", "sentences", "ended"})
"""Those whose rule drops what is below the threshold."""


REASONS = {
    "min_words": "gopher: too few words",
    "max_words": "gopher: too many words",
    "min_mean": "gopher: words too short",
    "max_mean": "gopher: words too long",
    "hashes": "gopher: too many hash signs",
    "ellipses": "gopher: too many ellipses",
    "bullets": "gopher: too many bullet points",
    "unfinished": "gopher: too many lines end with an ellipsis",
    "letters": "gopher: too few words with a letter",
    "stop_words": "gopher: too few stop words",
    "paragraphs": "repetition: too many paragraphs",
    "paragraph_chars": "repetition: too much text in paragraphs",
    "lines": "repetition: too many lines",
    "line_chars": "repetition: too much text in lines",
    **{f"top_{n}": f"repetition: the most frequent {n} words" for n in (2, 3, 4)},
    **{f"repeated_{n}": f"repetition: {n} words" for n in range(5, 11)},
    "sentences": "c4: too few sentences",
    "short": "fineweb: too many short lines",
    "ended": "fineweb: too few lines end in punctuation",
    "duplicates": "fineweb: repeated lines",
    "breaks": "fineweb: too many line feeds",
}
"""The rule that a kind is made for, by its reason; the others have no threshold."""


def made(
    count: int,
    seed: int,
    kinds: Mapping[str, Make] = MAKES,
    below: Collection[str] = BELOW,
    fits: Fits = lambda *_: True,
) -> Iterator[str]:
    """Yields `count` texts, in turn for each rule: of eight, seven on the side that is dropped, and seven near. The
    rules of the kinds in `below` drop what is below the threshold."""
    writer = Writer(seed)
    makes = list(kinds.items())
    for number in range(count):
        name, make = makes[number % len(makes)]
        turn = number // len(makes)
        near, dropped = turn % 8 != 4, turn % 8 < 7
        for tried in range(TRIES if near else 1):
            off = writer.random.uniform(0, 0.05) if near else writer.random.uniform(0.05, 0.9)
            if tried >= AT_FIRST:
                # What is measured is not what is aimed at: it may be so elsewhere.
                off = writer.random.uniform(-WIDE, WIDE)
            text = make(writer, 1 - off if dropped == (name in below) else 1 + off)
            if not near or fits(name, text, dropped):
                break
        yield text
