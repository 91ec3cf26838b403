"""What a check found: passed or not, what it compared, and the keys that offend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

MOST_OFFENDING_KEYS = 20
"""Enough to see a pattern, few enough to read."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: of the check.
        passed: whether the table is as it should be.
        compared: what was counted, by a short name, e.g. `rows in mirror`.
        offending_keys: up to 20 keys or rows that are wrong, as Python values by column.
        details: what is wrong, one statement each; empty when passed.
    """

    name: str
    passed: bool
    compared: Mapping[str, int] = field(default_factory=dict)
    offending_keys: Sequence[Mapping[str, Any]] = ()
    details: Sequence[str] = ()

    def summary(self) -> str:
        """One line for people: the counts, then what is wrong."""
        counts = ", ".join(f"{name} {count:,}" for name, count in self.compared.items())
        return "; ".join([counts, *self.details] if counts else list(self.details)) or "nothing to compare"


def sample(table: pa.Table) -> list[dict[str, Any]]:
    """The first rows of a table, as `offending_keys` holds them."""
    rows: list[dict[str, Any]] = table.slice(0, MOST_OFFENDING_KEYS).to_pylist()
    return rows
