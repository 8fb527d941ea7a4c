"""What names persons or opens doors: what is found, what is not, that the hint misses none, and that time is linear."""

from __future__ import annotations

import ipaddress
import itertools
import random
import re
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.texts.pii import KINDS, Found, find, iban, luhn, may_have, replaced
from tests.support.lines import lines_run

YES = {
    "email": [
        "a@b.de",
        "john.doe+x@sub.example.co.uk",
        "o'neil@a-b.org",
        "x@[192.0.2.1]",
        "t#u@exa.mp.le",
        "b-" + "0aF" * 99 + "@x.de",
        "user@münchen.de",
        "jürgen@mu\u0308nchen.de",
        "иван@почта.рф",
        "nguyễn@x.vn",
    ],
    "ip": ["8.8.8.8", "203.0.112.255", "2001:4860:4860::8888", "2A00:1450:4001:81b::200e"],
    "phone": ["+49 30 123456", "+14155552671", "(212) 555-0123", "212-555-0123", "+1 212 555 0123", "1-212-555-0123"],
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005"],
    "iban": ["GB82 WEST 1234 5698 7654 32", "DE89370400440532013000", "NO9386011117947"],
    "key": [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1" * 18,
        "hf_" + "aB" * 17,
        "sk-ant-" + "x9_" * 12,
        "xoxb-123456789012-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
        f"eyJhbGciOiJNTC1EU0EtNjUifQ.eyJzdWIi{'Oa0_-' * 9_000}.{'x-_9' * 1_100}",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----",
    ],
}
NO = [
    *(
        "a@b",
        "a @b.de",
        "@handle",
        "a@-b.de",
        "user@",
        "10.0.0.1",
        "192.168.1.1",
        "127.0.0.1",
        "256.8.8.8",
        "8.8.8.8.8",
    ),
    *(
        "v8.8.8.8",
        "::1",
        "fe80::1",
        "12:30:45",
        "10:20",
        "1.2.3",
        "2001:db8::1",
        "std::vector",
        "2024-01-02",
        "1,000,000",
    ),
    *("4111 1111 1111 1112", "0000 0000 0000 0000", "1234567890123", "DE88370400440532013000", "GB82 WEST 1234"),
    *(
        "AKIA",
        "sk-short",
        "eyJ",
        "12345678901234567890",
        "555-123-4567",
        "2125550123",
        "call 911",
        "ISBN 978-3-16-148410-0",
    ),
    # Code, ratios and words that are spelt as addresses and keys are.
    *(
        "Face::Bad(x)",
        "Ace::Add(1)",
        "Cafe::Babe;",
        "std ::Bad",
        "1:2:3:4:5:6:7:8",
        "4000::1",
        "::ffff:a00:1",
        "64:ff9b::10.0.0.1",
        "sk-toggleable__label-arrow-estimator",
        "xoxo-hugs-and-kisses",
        "github_pat_token_environment_variable",
        "pypi-how-to-publish-a-package-of-python-with-actions-and-more",
    ),
]


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in YES.items() for value in values])
@pytest.mark.parametrize("around", ["{}", "it is {}.", "({})", "<{}>, {}", '"{}"', "a {}\n{}"])
def test_what_is_found(kind: str, value: str, around: str) -> None:
    """Whole, wherever it stands, and nothing else."""
    text = around.format(value, value)
    found = find(text)
    assert [(one.kind, text[one.start : one.stop]) for one in found] == [(kind, value)] * around.count("{}")
    assert replaced(text, found, "[{}]".format) == around.format(f"[{kind}]", f"[{kind}]")
    assert may_have(pa.array([text])).to_pylist() == [True]


@pytest.mark.parametrize("value", NO)
def test_what_is_not(value: str) -> None:
    assert find(f"it is {value}, really") == []


BESIDE = {
    "card": ["123", "12/26", "2026", "CVV 123", "4111 1111 1111 1112"],
    "iban": ["BIC", "EUR 100", "AA12 3456", "USD", "1"],
    "ip": ["1.2.3", ":80", "10.0.0.1"],
}
WHOLE = {
    "card": ["4111 1111 1111 1111", "5500-0000-0000-0004", "378282246310005", "3782 822463 10005"],
    "iban": ["AT61 1904 3002 3457 3201", "ES91 2100 0418 4502 0005 1332", "BE68 5390 0754 7034", "NO93 8601 1117 947"],
    "ip": ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"],
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in WHOLE.items() for value in values])
def test_what_stands_beside_it_hides_nothing(kind: str, value: str) -> None:
    """Before it, behind it and on both sides, a blank between: what is no such number is not taken for a part of it."""
    for before, behind in itertools.product(["", *BESIDE[kind]], repeat=2):
        text = f"{before} {value} {behind}".strip()
        start = text.index(value)
        covered = [one for one in find(text, [kind]) if one.start <= start and start + len(value) <= one.stop]
        # Whole rows of digits pass the check of a card, too, and one in ten does.
        assert len(covered) == 1, text
        assert kind == "card" or covered == [Found(start, start + len(value), kind)], text


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in YES.items() for value in values])
def test_it_is_found_in_a_text_without_blanks(kind: str, value: str) -> None:
    """As in Chinese, Japanese and Thai: no letter that it cannot have is a part of it."""
    for before, behind in [("请联系", ""), ("", "です"), ("ที่", "ครับ")]:
        text = f"{before}{value}{behind}"
        assert find(text) == [Found(len(before), len(before) + len(value), kind)], text


LOCAL = r"[A-Za-z0-9é!#$%&'*+/=?^_`{|}~-]"
LABEL = r"[A-Za-z0-9é](?:[A-Za-z0-9é-]*[A-Za-z0-9é])?"
MAIL = re.compile(rf"(?=[A-Za-z0-9é_]){LOCAL}+(?:\.{LOCAL}+)*@(?:{LABEL}\.)+{LABEL}")
"""All that a mail address may be, without bounds. Some texts take it quadratic time."""


@given(
    st.lists(
        st.sampled_from(
            ["a", "9", "_", ".", "-", "+", "'", "@", "@b.de", " ", "é", "系", "x" * 70, "a." * 9, "a.b@c.de"]
        )
    ).map("".join)
)
def test_mail_addresses_are_whole_however_long(text: str) -> None:
    found = [(one.start, one.stop) for one in find(text, ["email"])]
    assert found == [match.span() for match in MAIL.finditer(text)]


@pytest.mark.parametrize("key", YES["key"])
def test_a_mail_address_behind_a_key_is_one_of_its_own(key: str) -> None:
    """In a URL, all characters between them are some that an address may have."""
    text = f"https://x.example/?token={key}&mail=a@b.de"
    assert replaced(text, find(text), "[{}]".format) == "https://x.example/?token=[key]&[email]"


@pytest.mark.parametrize("scheme", ["https", "postgresql+psycopg2", "redis"])
@pytest.mark.parametrize("host", ["db.example.com", "localhost", "10.0.0.1", "[::1]", "münchen.de"])
def test_a_name_and_password_in_a_url_are_a_key(scheme: str, host: str) -> None:
    """Whatever the host is called. A port is no password."""
    text = f"see {scheme}://me%40x:p4$s-W.rd!@{host}:5432/x, {scheme}://{host}:80 and ({scheme}://{host}:80/x@y)"
    assert replaced(text, find(text), "[{}]".format) == text.replace("me%40x:p4$s-W.rd!", "[key]")


@pytest.mark.parametrize("row", ["0 1 " * 50, "2019 2020 2021 2022 2023 2024 " * 5, "12 34 " * 30])
def test_a_row_of_short_numbers_has_no_card_behind_its_first(row: str) -> None:
    """Each place in it would be another one that one in ten passes the check of."""
    assert len(find(row, ["card"])) <= len(find(row[:37], ["card"]))


NAMES = ["PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "ED25519 PRIVATE KEY", "PGP PRIVATE KEY BLOCK"]
LINES = ["MIIEowIBAAKCAQEA+x/9" * 3] * 4
ENCRYPTED = ["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0F3A", "", *LINES]
ARMOURED = ["Version: GnuPG v1", "Comment: ---- me <a@b.de> ----", "", *LINES, "=Ab1+"]
LONG = ["A" * 64] * 200
STYLES = {
    "as in a file": "\n".join,
    "of Windows": "\r\n".join,
    "in one line": "".join,
    "in JSON, or in .env": "\\n".join,
    "in JSON in JSON": "\\\\n".join,
    "in a mail": "\n> ".join,
    "indented": "\n    ".join,
    "in a program": lambda lines: '\\n" +\n"'.join(lines),
    "on a page": "<br>\n".join,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lines", [LINES, ENCRYPTED, ARMOURED, LONG], ids=["plain", "encrypted", "armoured", "long"])
def test_nothing_of_a_private_key_is_left(name: str, lines: list[str]) -> None:
    """In whatever it is written. What surrounds it stays, and one behind another is one of its own."""
    for style, join in STYLES.items():
        key = join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----"])
        for before, behind in [("", ""), ("it is ", ", really"), ('{"k": "\\n', '\\n"}'), ("-----END X-----\\n", "鍵")]:
            text = f"{before}{key}{behind}{key}"
            found = find(text)
            assert replaced(text, found, "[{}]".format) == f"{before}[key]{behind}[key]", style


@pytest.mark.parametrize("style", [one for one in STYLES if one not in ("in a program", "on a page")])
def test_a_private_key_that_is_cut_off_goes_as_far_as_it_is_there(style: str) -> None:
    """At any character of it; what follows and is no character of a key stays."""
    key = STYLES[style](["-----BEGIN RSA PRIVATE KEY-----", *LINES, "-----END RSA PRIVATE KEY-----"])
    for stop in range(31, len(key) - 29):
        assert replaced(f"{key[:stop]}_…", find(f"{key[:stop]}_…"), "[{}]".format) == "[key]_…"


def test_an_address_within_an_address_is_judged_by_it() -> None:
    assert find("at ::ffff:10.0.0.1 and ::ffff:127.0.0.1") == []


@given(st.lists(st.sampled_from([":", "::", "1:", "ff:", "12:34:", "64:ff9b:", "2a00:"]), max_size=9).map("".join))
@example("12:34:56:")
def test_what_is_no_address_together_hides_none(before: str) -> None:
    """A time of day, or a colon too many, is no part of the address behind it."""
    text = f"{before}8.8.8.8"
    try:
        ipaddress.ip_address(text)
    except ValueError:
        assert find(text, ["ip"]) == [Found(len(before), len(text), "ip")]


PIECES = [
    *"٣٩²",
    "+4٩٩٩٩٩٩٩٩",
    "DE٨٩370400440532013000",
    *(value for values in YES.values() for value in values),
    *NO,
    " ",
    ".",
    ",",
    "@",
    "a",
    "1",
    "-",
    ":",
    "+",
    "\n",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.sets(st.sampled_from(KINDS), min_size=1))
def test_rules(text: str, kinds: set[str]) -> None:
    """The hint misses none; parts are in order and do not overlap; all else stays as it is."""
    found = find(text, sorted(kinds))
    assert not found or may_have(pa.array([text]), sorted(kinds)).to_pylist() == [True]
    assert {one.kind for one in found} <= kinds
    assert found == sorted(found)
    assert all(one.stop <= other.start for one, other in itertools.pairwise(found))
    rest, at = [], 0
    for one in found:
        rest.append(text[at : one.start])
        at = one.stop
    assert replaced(text, found, lambda _: "\0").split("\0") == [*rest, text[at:]]


def test_check_digits_against_the_definitions() -> None:
    """Of a valid number, each other last digit is invalid."""
    rng = random.Random(1)
    for _ in range(100):
        digits = "".join(rng.choices("0123456789", k=15))
        assert sum(luhn(digits + last) for last in "0123456789") == 1
        plain = "".join(rng.choices("0123456789", k=18))
        assert sum(iban(f"DE{check:02}{plain}") for check in range(2, 99)) == 1
    assert not iban("DE8937040044053201300")
    assert not iban("ZZ89370400440532013000")


HOSTILE = [
    "a-",
    "@",
    "a@",
    "a@b.",
    "a.",
    ".@b.de ",
    "1-",
    "1 ",
    "1.",
    "+1 ",
    "A1 ",
    "AB12 ",
    "eyJ",
    "eyJaaaaaaaaaaaa.",
    "-eyJ",
    "://a:",
    ":",
    "a:",
    "(2",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----a- ",
    "-----BEGIN ",
]


@pytest.mark.ci(6)
@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_pattern_takes_more_than_linear_time(hostile: str) -> None:
    """What is added to a text runs as many lines of Python, however long it was; what each does is bounded: see below.

    But for those at its end, where matches are shorter."""
    find(hostile * 100)  # what is imported or kept for the first such text is in no other
    once, twice, thrice = (lines_run(partial(find, hostile * size)) for size in (500, 1_000, 1_500))
    assert thrice - twice <= twice - once + 100


def test_patterns_repeat_within_bounds() -> None:
    """A pattern that repeats without bound tries each text from each of its characters to its end."""
    from curate.texts import pii

    patterns = [pii._DOMAIN, *(one.regex for one in pii._PATTERNS.values())]
    for one in patterns:
        # Without classes of characters, and what is escaped.
        plain = re.sub(r"\\.", "c", re.sub(r"\[\^?\]?(?:\\.|[^\]\\])*\]", "c", one.pattern))
        assert not {"*", "+"} & set(plain)


def test_a_part_is_a_value() -> None:
    assert Found(1, 2, "ip") == Found(1, 2, "ip") < Found(1, 3, "ip")
