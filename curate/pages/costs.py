"""What a job has cost: the hours that its shards held slots, its storage calls, and their price where one is given.

Prices are in `$CURATE_HOME/prices.toml`, all of them optional:

    currency = "USD"
    slot_hour = 0.04
    [per_1000_requests]
    list = 0.005
    get = 0.0004
    put = 0.005
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from curate.dataclass import dataclass, field
from curate.errors import ConfigError, ObjectNotFound
from curate.observe.registry import home
from curate.pages.model import Costs
from curate.storage.protocol import Calls
from curate.stores.open import open_store
from curate.units import is_finite

PRICES = "prices.toml"
KINDS = tuple(Calls().as_dict())
"""Kinds of storage calls."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What things cost; None or missing: not given."""

    currency: str = "USD"
    slot_hour: float | None = None
    per_1000: Mapping[str, float] = field(default_factory=dict)
    """Of a thousand storage calls, by kind."""


def read_prices() -> Prices | None:
    """Returns the prices under $CURATE_HOME; None if there are none. Raises ConfigError for what is no price."""
    uri = f"{home()}/{PRICES}"
    try:
        data = open_store(uri).read(uri)
    except ObjectNotFound:
        return None
    try:
        return parse_prices(tomllib.loads(data.decode("utf-8-sig")))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{uri}: {error}; no prices are shown") from error


def parse_prices(told: Mapping[str, Any]) -> Prices:
    """Returns the prices in a TOML document. Raises ConfigError.

    >>> parse_prices({"slot_hour": 0.04, "per_1000_requests": {"put": 0.005}})
    Prices(currency='USD', slot_hour=0.04, per_1000={'put': 0.005})
    """
    requests = told.get("per_1000_requests", {})
    unknown = [*(told.keys() - {"currency", "slot_hour", "per_1000_requests"})]
    if not isinstance(requests, Mapping):
        raise ConfigError("per_1000_requests is not a table")
    unknown += requests.keys() - set(KINDS)
    if unknown:
        raise ConfigError(
            f"unknown name {min(unknown)!r}; expected currency, slot_hour, per_1000_requests ({', '.join(KINDS)})"
        )
    numbers = {**requests, **({"slot_hour": told["slot_hour"]} if "slot_hour" in told else {})}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_finite(value) or value < 0:
            raise ConfigError(f"{name} is {value!r}, expected a number that is not negative")
    currency = told.get("currency", "USD")
    if not isinstance(currency, str) or not 0 < len(currency) <= 8:
        raise ConfigError(f"currency is {currency!r:.40}, expected a short text such as 'USD'")
    return Prices(currency, told.get("slot_hour"), dict(requests))


def costs(
    slot_s: float | None, calls: Iterable[Mapping[str, int]], prices: Prices | None, remarks: Iterable[str]
) -> Costs:
    """Returns what a job has cost, from the seconds that its shards held slots, None if these are not known, and the
    storage calls of its runs.

    >>> costs(7200.0, [{"put": 500}, {"put": 1500}], Prices("EUR", 0.5, {"put": 0.01}), ()).money
    1.02
    """
    known = prices or Prices()
    requests = dict.fromkeys(KINDS, 0)
    for of_run in calls:
        for kind in KINDS:
            requests[kind] += of_run.get(kind, 0)
    hours = (slot_s or 0.0) / 3600
    held = "slot-hours not known" if slot_s is None else slots(hours)
    priced: list[tuple[str, str, float | None]] = [
        ("slots", held, None if known.slot_hour is None or slot_s is None else hours * known.slot_hour)
    ]
    for kind, number in requests.items():
        price = known.per_1000.get(kind)
        priced.append((f"{kind} requests", f"{number:,}", None if price is None else number * price / 1000))
    paid = [money for *_, money in priced if money is not None]
    return Costs(
        round(hours, 6),
        held,
        requests,
        round(sum(paid), 6) if paid else None,
        known.currency,
        tuple((what, much, "" if money is None else _money(money, known.currency)) for what, much, money in priced),
        tuple(remarks),
    )


def slots(hours: float) -> str:
    """Returns time of slots.

    >>> slots(0.001), slots(7.25)
    ('3.6 slot-seconds', '7.25 slot-hours')
    """
    return f"{hours:,.2f} slot-hours" if hours >= 0.1 else f"{3600 * hours:.1f} slot-seconds"


def _money(amount: float, currency: str) -> str:
    return f"{amount:,.2f} {currency}" if amount >= 1 or not amount else f"{amount:.2g} {currency}"
