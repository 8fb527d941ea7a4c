"""Where texts name persons, or open doors: mail and IP addresses, phone, card and account numbers, keys.

Every pattern has bounds on what it repeats, so that each takes linear time on any text. What has a checksum, or an
address that no other network can reach, is verified, as most long numbers are neither. Only ASCII goes on with what
is found: there are languages without blanks around it. But mail addresses have letters of those that do have blanks.
"""

from __future__ import annotations

import ipaddress
import re
import string
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from curate.dataclass import dataclass

EMAIL, IP, PHONE, CARD, IBAN, KEY = "email", "ip", "phone", "card", "iban", "key"
KINDS = (KEY, EMAIL, IBAN, CARD, IP, PHONE)
"""In the order in which they are looked for: what is found is not looked at again."""


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A part of a text, from character `start` to before `stop`."""

    start: int
    stop: int
    kind: str


@dataclass(frozen=True, slots=True)
class _Pattern:
    hint: str
    """What a text has that has any, for RE2, which is fast and knows less."""
    regex: re.Pattern[str]
    valid: Callable[[str], bool] = lambda _: True
    part: re.Pattern[str] | None = None
    """What part of a match, from blank to blank, is looked at where the whole is not valid: numbers stand in rows."""

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields where what is valid begins and ends; what is not hides nothing that begins or ends within it."""
        at = 0
        while match := self.regex.search(text, at):
            start, at = match.span()
            stop = at if self.valid(match[0]) else self._shorter(text, start, at)
            if stop > start:
                yield start, stop
                at = stop
            elif self.part is not None and (blank := text.find(" ", start, at)) > 0:
                at = blank

    def _shorter(self, text: str, start: int, stop: int) -> int:
        """Returns where the longest valid part that begins at `start` ends; -1 for none."""
        while self.part is not None and (stop := text.rfind(" ", start, stop)) > 0:
            if self.part.fullmatch(text, start, stop) and self.valid(text[start:stop]):
                return stop
        return -1


_ABROAD = "".join(
    one
    for one in map(chr, [*range(0xC0, 0x530), *range(0x1E00, 0x2000)])
    if one.isalpha() or "\u0300" <= one <= "\u036f"
)
"""Letters of languages with blanks between words, beyond ASCII: Latin, Greek and Cyrillic ones, and marks over them."""
_WORD = string.ascii_letters + string.digits + "_" + _ABROAD
_MARKS = "!#$%&'*+/=?^`{|}~-"
"""What a mail address has before its @ beside letters, digits and dots; it begins with none of these."""
_LETTER = f"A-Za-z0-9{_ABROAD}"
_LABEL = rf"[{_LETTER}](?:[{_LETTER}-]{{0,252}}[{_LETTER}])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_GROUP = "[0-9A-Fa-f]{1,4}"
_BEFORE_V4 = "|".join(
    [rf"(?:{_GROUP}:){{6}}", rf"::(?:{_GROUP}:){{0,5}}"]
    + [rf"{_GROUP}(?::{_GROUP}){{{n}}}::(?:{_GROUP}:){{0,{4 - n}}}" for n in range(5)]
)
"""What an IPv6 address has before one of IPv4: six groups, or fewer and `::`. A time of day is nothing of the kind."""
_DOMAIN = re.compile(rf"(?:{_LABEL}\.){{1,126}}{_LABEL}|\[{_OCTET}(?:\.{_OCTET}){{3}}\]")
"""What is behind an @. Names have at most 253 characters (RFC 1035)."""


def _mails(text: str, taken: Sequence[Found]) -> Iterator[tuple[int, int]]:
    """Yields where mail addresses begin and end. From each @ they are followed to the left, but not over another @ or
    what is taken: from each character on, to the right, it would take quadratic time."""
    first, at = 0, text.find("@")
    while at >= 0:
        stop = at + 1
        if domain := _DOMAIN.match(text, stop):
            before = bisect_left(taken, Found(at, at, EMAIL))
            if name := _mailbox(text[max(first, taken[before - 1].stop if before else 0) : at]):
                stop = domain.end()
                yield at - len(name), stop
        first, at = stop, text.find("@", stop)


def _mailbox(text: str) -> str:
    """Returns with what a text ends that a mail address may have before its @, however long; "" for nothing."""
    run = text[len(text.rstrip(_WORD + _MARKS + ".")) :].rpartition("..")[2]
    return "" if run.endswith(".") else run.lstrip(_MARKS + ".")


_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses that networks were given. Code and ratios spell others: `Face::Bad`, `1:2:3:4:5:6:7:8`."""
_OF_V4 = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv6 addresses that end with one of IPv4, which says where they lead: RFC 4291 and 6052."""


def _is_public(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if any(found in one for one in _OF_V4):
        found = ipaddress.IPv4Address(found.packed[-4:])
    return found.is_global and (found.version == 4 or found in _UNICAST)


def luhn(number: str) -> bool:
    """Returns whether the digits of `number` pass the check of ISO/IEC 7812, annex B.

    >>> luhn("4111 1111 1111 1111"), luhn("4111 1111 1111 1112")
    (True, False)
    """
    digits = [int(one) for one in number if one.isdigit()]
    doubled = [2 * one - 9 * (one > 4) for one in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_card(number: str) -> bool:
    digits = re.sub(r"\D", "", number)
    # First digits 2 to 6 are those of banks and of travel, and no card has one digit alone.
    return 13 <= len(digits) <= 19 and digits[0] in "23456" and len(set(digits)) > 1 and luhn(digits)


_CARD_PART = re.compile(
    r"(?=[3-6]|2[2-7])(?:[0-9]{13,19}"
    r"|[0-9]{4}(?:[ -][0-9]{4}){3}(?:[ -][0-9]{3})?"
    r"|[0-9]{4}[ -][0-9]{6}[ -][0-9]{4,5})"
)
"""A card as it is printed, and no row of years: of other parts of a row of digits, one in ten passes the check."""
_IBAN_LENGTHS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 "
    "EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 "
    "KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 "
    "PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 "
    "VA22 VG24 XK20 YE30"
)
_IBANS = {one[:2]: int(one[2:]) for one in _IBAN_LENGTHS.split()}
"""By country, how long its numbers are: the registry of ISO 13616."""


def iban(number: str) -> bool:
    """Returns whether `number` is an account number of ISO 13616: its country, its length, its check digits.

    >>> iban("GB82 WEST 1234 5698 7654 32"), iban("GB82 WEST 1234 5698 7654 33")
    (True, False)
    """
    plain = number.replace(" ", "")
    if _IBANS.get(plain[:2]) != len(plain):
        return False
    return int("".join(str(int(one, 36)) for one in plain[4:] + plain[:4])) % 97 == 1


_PRIVATE = r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_PEM = (
    # Whatever is before END is the key: beside its characters headers, `\n` of JSON and `> ` of mails stand in it. Five
    # dashes do not, so what follows one BEGIN is looked at once.
    rf"-----BEGIN {_PRIVATE}(?:(?:[^-]|-(?!----)){{0,65536}}-----END {_PRIVATE}"
    # A key that is cut off ends where its characters do.
    r"|[0-9A-Za-z+/=\s\\>]{0,65536})"
)
"""A private key of PEM or PGP. The longest, with signatures in it, have some tens of thousands of characters."""


def _mixed(marks: str, least: int) -> str:
    """Returns a pattern of letters, digits and some marks. A digit is among them: words that marks join have none."""
    return rf"(?=[A-Za-z{marks}]{{0,254}}[0-9])[0-9A-Za-z{marks}]{{{least},255}}"


_USERINFO = r"[0-9A-Za-z._~%!$&*+=-]"
"""What names and passwords before the host of a URL have, but for what ends a URL in a sentence or in code."""
_KEYS = (
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    r"AIza[0-9A-Za-z_-]{35}",
    r"gh[opsur]_[0-9A-Za-z]{36,255}",
    rf"github_pat_{_mixed('_', 22)}",
    r"glpat-[0-9A-Za-z_-]{20,64}",
    r"hf_[0-9A-Za-z]{30,64}",
    r"npm_[0-9A-Za-z]{36}",
    rf"pypi-{_mixed('_-', 50)}",
    rf"xox[abeoprs]-{_mixed('-', 10)}",
    rf"sk-(?:ant-|proj-)?{_mixed('_-', 20)}",
    r"[rs]k_(?:live|test)_[0-9A-Za-z]{16,255}",
    # What a token says may be long, and so are signatures that last.
    r"eyJ[0-9A-Za-z_-]{10,2000}\.eyJ[0-9A-Za-z_-]{10,65535}\.[0-9A-Za-z_-]{10,8191}",
    rf"(?<=://){_USERINFO}{{1,255}}:{_USERINFO}{{1,255}}(?=@)",
)
_PATTERNS = {
    KEY: _Pattern(
        "AKIA|ASIA|AIza|gh[opsur]_|github_pat_|glpat-|hf_|npm_|pypi-|xox[abeoprs]-|sk-|k_live_|k_test_|eyJ|PRIVATE KEY"
        rf"|://{_USERINFO}+:{_USERINFO}+@",
        re.compile(rf"{_PEM}|(?<![0-9A-Za-z_])(?:{'|'.join(_KEYS)})(?![0-9A-Za-z_])"),
    ),
    IBAN: _Pattern(
        r"[A-Z][A-Z]\d\d[ A-Z0-9]",
        re.compile(
            r"(?<![0-9A-Za-z])[A-Z]{2}[0-9]{2}"
            r"(?:[0-9A-Z]{11,29}|(?: [0-9A-Z]{4}){2,7}(?: [0-9A-Z]{1,3})?)(?![0-9A-Za-z])"
        ),
        iban,
        re.compile(r"[0-9A-Z ]{15,42}"),
    ),
    CARD: _Pattern(
        r"\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d",
        re.compile(r"(?<![\d.-])[0-9](?:[ -]?[0-9]){12,18}(?![\d-])"),
        _is_card,
        _CARD_PART,
    ),
    IP: _Pattern(
        r"\d\.\d+\.\d+\.\d|:[0-9A-Fa-f]*:",
        re.compile(
            rf"(?<![0-9A-Za-z_.])(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)"
            rf"|(?<![0-9A-Za-z_.:])(?:{_BEFORE_V4})"
            rf"(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)"
            r"|(?<![0-9A-Za-z_.:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Za-z_:]|\.\d)"
        ),
        _is_public,
    ),
    PHONE: _Pattern(
        r"\d[\d() ./-]{6}",
        re.compile(
            r"(?<![0-9A-Za-z_+.-])(?:\+[1-9](?:[ ./()-]{0,2}[0-9]){7,14}"
            r"|(?:\+?1[ .-]?)?(?:\([2-9][0-9]{2}\)[ .-]?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4})"
            r"(?![0-9A-Za-z_-]|\.\d)"
        ),
    ),
}


def find(text: str, kinds: Sequence[str] = KINDS) -> list[Found]:
    """Returns what of these `kinds` there is in a text, in order; no two overlap.

    >>> find("write to a.b@c.example, or call +49 30 123456")
    [Found(start=9, stop=22, kind='email'), Found(start=32, stop=45, kind='phone')]
    """
    found: list[Found] = []
    for kind in KINDS:
        if kind not in kinds:
            continue
        taken = sorted(found)
        for start, stop in _mails(text, taken) if kind == EMAIL else _PATTERNS[kind].spans(text):
            if not _overlaps(taken, one := Found(start, stop, kind)):
                found.append(one)
    return sorted(found)


def _overlaps(taken: Sequence[Found], one: Found) -> bool:
    at = bisect_left(taken, one)
    return (at < len(taken) and taken[at].start < one.stop) or (at > 0 and taken[at - 1].stop > one.start)


def may_have(texts: pa.Array, kinds: Sequence[str] = KINDS) -> pa.Array:
    """Returns which texts may have any of these `kinds`: those without are most of them, and are told fast."""
    hints = ["@" if kind == EMAIL else _PATTERNS[kind].hint for kind in kinds]
    return pc.match_substring_regex(texts, "|".join(hints))


def replaced(text: str, found: Sequence[Found], by: Callable[[str], str]) -> str:
    """Returns a text with what was found replaced, by its kind, and nothing else changed.

    >>> replaced("call 1", [Found(5, 6, "phone")], "[{}]".format)
    'call [phone]'
    """
    parts, at = [], 0
    for one in found:
        parts += [text[at : one.start], by(one.kind)]
        at = one.stop
    return "".join([*parts, text[at:]])
