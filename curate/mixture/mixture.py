"""What a mixture is: sources with weights, and a budget. Frozen values, checked when they are made."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from curate.dataclass import dataclass
from curate.errors import ConfigError, refuse_other
from curate.units import LARGEST_SEED, is_finite, keep_whole, whole

DOCUMENTS, CHARACTERS, TOKENS = "documents", "characters", "tokens"
UNITS = (DOCUMENTS, CHARACTERS, TOKENS)
_LARGEST = 2**62 - 1
MAX_EPOCHS = 4
"""How often a row may be there, unless it is said: up to four times, what is read again is worth nearly as much as what
is new (Muennighoff et al. 2023, "Scaling data-constrained language models", figure 1)."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a mixture."""

    name: str
    """Its value in the column of sources."""
    weight: float
    """Its share of the budget, in proportion to the weights of the others."""
    max_epochs: int = MAX_EPOCHS
    """How often a row of it may be there."""
    files: tuple[str, ...] = ()
    """Patterns of the files that are of it, by their paths below the input, without ending; none: a column says it."""

    def __post_init__(self) -> None:
        _check_number(f"weight of {self.name!r}", self.weight)
        epochs = whole(f"mixture: max_epochs of {self.name!r}", self.max_epochs, 1, _LARGEST)
        object.__setattr__(self, "max_epochs", epochs)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sources with weights, and how much there is to be of all of them."""

    sources: tuple[Source, ...]
    """In order of their names, so that the order in which they are given changes nothing."""
    budget: int
    """In units."""
    unit: str = DOCUMENTS
    seed: int = 0
    """Of the hashes by which rows are drawn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(sorted(self.sources, key=lambda one: one.name)))
        keep_whole(self, "mixture: ", {"budget": 1}, _LARGEST)
        refuse_other("mixture: unit", self.unit, UNITS)
        keep_whole(self, "", {"seed": 0}, LARGEST_SEED)
        if not self.sources:
            raise ConfigError("mixture: there are no sources; give at least one, with its weight")
        if 0 < sum(bool(one.files) for one in self.sources) < len(self.sources):
            without = next(one.name for one in self.sources if not one.files)
            raise ConfigError(
                f"mixture: source {without!r} has no files, but others have; give files to all sources, or to none if "
                "a column says which source a row is of"
            )

    @property
    def by_files(self) -> bool:
        """Whether the file of a row says which source it is of; else a column does."""
        return bool(self.sources[0].files)

    @property
    def names(self) -> list[str]:
        """The names of the sources, in order."""
        return [one.name for one in self.sources]

    @property
    def weights(self) -> list[Fraction]:
        """The weights as they are written: 0.1 is a tenth."""
        return [Fraction(repr(float(one.weight))) for one in self.sources]

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as JSON values: what decides which rows are drawn."""
        sources = {
            one.name: {
                "weight": float(one.weight),
                "max_epochs": one.max_epochs,
                **({"files": list(one.files)} if one.files else {}),
            }
            for one in self.sources
        }
        return {"budget": self.budget, "unit": self.unit, "seed": self.seed, "sources": sources}

    def parameters(self) -> dict[str, Any]:
        """Returns the same by names without levels, as differences are told: `sources.web.weight`."""
        told = self.as_dict()
        sources = told.pop("sources")
        own = {f"sources.{name}.{key}": value for name, one in sources.items() for key, value in one.items()}
        return {**told, **own}


def _check_number(what: str, value: Any) -> None:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not is_finite(value) or value <= 0:
        zero = "; to use none of it, remove the source" if number and value == 0 else ""
        raise ConfigError(f"mixture: {what} is {value!r}, expected a number above 0{zero}")
