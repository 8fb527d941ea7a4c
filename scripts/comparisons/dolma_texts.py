"""Texts that are made up for Dolma's rules, on either side of their thresholds; see texts.py."""

from __future__ import annotations

import math
import random

from .texts import MAKES, Make, Writer, _mixed, _said, _symbols

PHRASES = ("{", "lorem ipsum", "javascript")


def _middle(threshold: int, beyond: float) -> Make:
    """Words of a median length that is a threshold, or `beyond` it by half a letter; or, far from it, by a letter."""

    def make(writer: Writer, ratio: float) -> str:
        dropped, far = (ratio - 1) * beyond > 0, abs(1 - ratio) > 0.05
        median = threshold + (beyond * (1 + far) if dropped else -2 * beyond * far)
        low, high = math.floor(median), math.ceil(median)
        half = writer.random.randint(30, 80)
        sizes = [low, high]
        sizes += [writer.random.randint(max(1, low - 2), low) for _ in range(half)]
        sizes += [writer.random.randint(high, high + 2) for _ in range(half)]
        writer.random.shuffle(sizes)
        return " ".join("".join(writer.random.choices("abcdefghijklmnoprstuvw", k=size)) for size in sizes)

    return make


def _stop_words(writer: Writer, ratio: float) -> str:
    rare = [writer.random.choice(writer.vocabulary) for _ in range(writer.random.randint(60, 120))]
    word = writer.random.choice(["the", "be", "of", "and"])
    return " ".join([*(one for one in rare if len(one) > 4), *[word] * (1 if ratio < 1 else 2)])


def _recurring_lines(writer: Writer, ratio: float) -> str:
    total = writer.random.randint(60, 120)
    count = max(2, round(0.3 * ratio * total) + (ratio > 1))
    # Blank lines are lines that recur.
    line = writer.random.choice(["", writer.sentence(3)])
    lines = [writer.sentence(5) for _ in range(total - count)] + [line] * count
    writer.random.shuffle(lines)
    return "\n".join(lines)


def _recurring_line_chars(writer: Writer, ratio: float) -> str:
    lines = [writer.sentence() for _ in range(writer.random.randint(12, 30))]
    plain = sum(len(line.replace(" ", "")) for line in lines)
    # One long line twice: its blanks count, and are no part of the whole.
    wanted = min(0.3 * ratio, 0.9)
    words: list[str] = []
    while 2 * len(" ".join(words)) < wanted * (plain + 2 * len("".join(words))):
        words.append(writer.random.choice(writer.vocabulary))
    lines += [" ".join(words)] * 2
    writer.random.shuffle(lines)
    return "\n".join(lines)


def _often(size: int, share: float) -> Make:
    """One phrase several times: of all that is not white space, it has that share."""

    def make(writer: Writer, ratio: float) -> str:
        phrase = writer.random.choices(writer.vocabulary, k=size)
        count = writer.random.randint(3, 6)
        chars = len("".join(phrase)) * count * (1 / min(share * ratio, 0.8) - 1)
        words: list[str] = []
        while chars > 0:
            words.append(writer.random.choice(writer.vocabulary))
            chars -= len(words[-1])
        for _ in range(count):
            words.insert(writer.random.randint(0, len(words)), " ".join(phrase))
        return " ".join(words)

    return make


def _twice(size: int, share: float) -> Make:
    """One long phrase twice: of all n-grams of words, so many recur."""

    def make(writer: Writer, ratio: float) -> str:
        plain = writer.random.choices(writer.vocabulary, k=writer.random.randint(150, 300))
        wanted = min(share * ratio, 0.6)
        long = max(size, round((wanted * (len(plain) - size + 1) / 2 + size - 1) / (1 - wanted)))
        phrase = writer.random.choices(writer.vocabulary, k=long)
        at = writer.random.randint(1, len(plain))
        return " ".join([*phrase, *plain[:at], *phrase, *plain[at:]])

    return make


def _personal(writer: Writer, ratio: float) -> str:
    """Five or six of what counts, or fewer or more, and much that does not."""
    rng = writer.random
    count = (5 if ratio > 0.95 else rng.randint(0, 4)) if ratio < 1 else (6 if ratio < 1.05 else rng.randint(7, 12))
    words = writer.words(60)
    for _ in range(count):
        words.insert(rng.randint(1, len(words) - 1), _one(rng))
    for _ in range(rng.randint(0, 6)):
        odd = ["a@b", "@a.b", "12345", "1.2.3", "555-12-4567", "a@b..", "me@", "300.1.1.1", "(555", "555 1234", "x@y,z"]
        words.insert(rng.randint(1, len(words) - 1), rng.choice(odd))
    for at in range(7, len(words), 11):
        words[at] += "\n"
    return " ".join(words)


def _one(rng: random.Random) -> str:
    mail = f"{rng.choice(['john.doe', 'a', '#x', 'o_b+c', '.'])}@{rng.choice(['b.co', 'sub.a-b.org', 'x.y.z'])}"
    digits = [f"{rng.randint(0, 999):03}", f"{rng.randint(0, 999):03}", f"{rng.randint(0, 9999):04}"]
    phone = rng.choice(["{} {} {}", "({}) {}-{}", "{}-{}-{}", "{}{}{}", "{}. {}.{}"]).format(*digits)
    address = ".".join(str(rng.choice([0, 1, 10, 99, 127, 200, 255])) for _ in range(4))
    mark = rng.choice(["", "", ".", ",", ")", ";", "?"])
    return rng.choice([mail + mark, mail + mark, phone, "x " + phone + mark, address + mark, "(" + address])


def _again(writer: Writer, ratio: float) -> str:
    size = writer.random.randint(1, 13)
    phrase = [writer.random.choice(writer.vocabulary) for _ in range(size)]
    before, behind = writer.words(20), writer.words(20)
    return " ".join([*before, *phrase * round(100 * ratio), *phrase[: writer.random.randrange(size)], *behind])


def _lines(writer: Writer, ratio: float) -> str:
    """Lines that are removed, or look like it, between others."""
    kinds = [
        "Home",
        "No end of it",
        "Too few.",
        "",
        " \t",
        "A trailing blank. ",
        'She said: "It is here."',
        "Ends so.)",
    ]
    kinds += [
        "Wait for it...",
        "Wait for it…",
        "What is this?!",
        "One two three.",
        "One two.",
        "\u00a0Here it is.\u2003",
    ]
    lines = writer.prose(round(60 * ratio) + 20, 4).split("\n") + writer.random.sample(kinds, 6)
    writer.random.shuffle(lines)
    return "\n".join(lines) + writer.random.choice(["", "", "\n", "\nMore"])


DOLMA: dict[str, Make] = {
    **{name: MAKES[name] for name in ("min_words", "max_words", "letters")},
    "median_below": _middle(3, -0.5),
    "median_above": _middle(10, 0.5),
    "hashes": _symbols("#"),
    "ellipses": _symbols("so…"),
    "stop_words": _stop_words,
    "bullets": lambda writer, ratio: _mixed(
        writer,
        0.9 * ratio + (ratio > 1) / 120,
        120,
        lambda _: writer.random.choice("*-") + writer.sentence(3),
        lambda _: writer.random.choice(["", " - ", "• "]) + writer.sentence(3),
    ),
    "unfinished": lambda writer, ratio: _mixed(
        writer,
        0.3 * ratio + (ratio > 1) / 120,
        120,
        lambda _: writer.sentence(3) + "…",
        lambda _: writer.sentence(3) + writer.random.choice(["", "...", "… "]),
    ),
    "recurring_lines": _recurring_lines,
    "recurring_line_chars": _recurring_line_chars,
    **{f"top_{n}": _often(n, share) for n, share in ((2, 0.2), (3, 0.18), (4, 0.16))},
    **{
        f"recurring_{n}": _twice(n, share)
        for n, share in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))
    },
    **{phrase: _said(phrase.upper()) for phrase in PHRASES},
    "personal": _personal,
    "again": _again,
    "lines": _lines,
}
BELOW_IN_DOLMA = frozenset({"min_words", "median_below", "letters", "stop_words"})
REASONS_IN_DOLMA = {
    "min_words": "dolma: too few words",
    "max_words": "dolma: too many words",
    "letters": "dolma: too few words with a letter",
    "median_below": "dolma: words too short",
    "median_above": "dolma: words too long",
    "ellipses": "dolma: too many symbols",
    "stop_words": "dolma: too few stop words",
    "bullets": "dolma: too many bullet points",
    "unfinished": "dolma: too many lines end with an ellipsis",
    "recurring_lines": "dolma: too many recurring lines",
    "recurring_line_chars": "dolma: too much text in recurring lines",
    **{f"top_{n}": f"dolma: the most frequent {n} words" for n in (2, 3, 4)},
    **{f"recurring_{n}": f"dolma: recurring {n} words" for n in range(5, 11)},
    "personal": "dolma: too much personal data",
    "again": "dolma: the same again and again",
}
"""The rule that a kind is made for, by its reason; the others have no threshold."""


SPOKEN = (
    "the people of this town have always known that there would be a day when it comes to work again",
    "die leute in dieser stadt haben immer gewusst dass es einen tag geben wird an dem es wieder geht",
    "les gens de cette ville ont toujours su que le jour viendrait où tout recommencerait comme avant",
    "город люди всегда знали что этот день придёт когда всё будет снова хорошо и спокойно",
)
"""English, and others."""


def languages(count: int, seed: int) -> list[str]:
    """Returns texts of English and of other words, in shares of all sizes."""
    writer = random.Random(seed)
    english, *other = (line.split() for line in SPOKEN)
    found = []
    for _ in range(count):
        share, more = writer.uniform(0, 1), writer.choice(other)
        words = [writer.choice(english if writer.random() < share else more) for _ in range(writer.randint(10, 60))]
        found.append(" ".join(words).capitalize().replace(" there", ".\nThere"))
    return found
