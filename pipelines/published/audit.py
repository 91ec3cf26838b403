"""What a publication asks for before rows become current: whether the mirrors are right that it reads, and what it made.

Who answers is handed in, for checks lie above the pipelines. What was answered is told by the snapshot and by the report.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipelines.config import Config
from pipelines.errors import PublishError
from scan_core.scan import Scan

CHECKS = "nevermore.checks"
"""Of a summary: the checks that the mirrors read and the rows have passed, as JSON; or `unchecked`."""
UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check said.

    Attributes:
        table: that it looked at.
        check: its name.
        passed: whether the table is as it should be.
        text: what was compared, and what is wrong.
        compared: what was counted, by a short name.
        offending_keys: some keys or rows that are wrong.
    """

    table: str
    check: str
    passed: bool
    text: str
    compared: Mapping[str, int] = field(default_factory=dict)
    offending_keys: Sequence[Mapping[str, Any]] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "table": self.table,
            "check": self.check,
            "passed": self.passed,
            "text": self.text,
            "compared": dict(self.compared),
            "offending_keys": list(self.offending_keys),
        }


class Auditor(Protocol):
    """Answers what a publication asks."""

    def mirrors(self, config: Config, scans: Mapping[str, Scan]) -> Sequence[Verdict]:
        """The checks of the snapshots that are read, by mirror: known results, else found out now."""


class CheckFailedError(PublishError):
    """A check failed, so that nothing was published. `verdicts` has all of them."""

    def __init__(self, message: str, verdicts: Sequence[Verdict]) -> None:
        super().__init__(message)
        self.verdicts = tuple(verdicts)


def require_green_mirrors(name: str, verdicts: Sequence[Verdict]) -> None:
    """Refuse to read what is known to be wrong.

    Raises:
        CheckFailedError: names the mirrors, what is wrong with them and what to do.
    """
    failed = [verdict for verdict in verdicts if not verdict.passed]
    if not failed:
        return
    wrong = "; ".join(f"{verdict.table} fails {verdict.check}: {verdict.text}" for verdict in failed)
    tables = " ".join(dict.fromkeys(verdict.table for verdict in failed))
    raise CheckFailedError(
        f"published {name} reads what is wrong, so nothing is published: {wrong}. `nevermore check {tables}` shows the "
        f"rows, `nevermore resync` makes a mirror anew from its log; --unchecked publishes all the same",
        verdicts,
    )


def told_checks(verdicts: Sequence[Verdict] | None) -> dict[str, str]:
    """What a snapshot tells of its checks; None for none."""
    if verdicts is None:
        return {CHECKS: UNCHECKED}
    by_table: dict[str, dict[str, str]] = {}
    for verdict in verdicts:
        by_table.setdefault(verdict.table, {})[verdict.check] = verdict.text
    return {CHECKS: json.dumps(by_table, sort_keys=True)}
