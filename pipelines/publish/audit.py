"""Checks that a publication requires: that the mirrors it reads are right, and the rows it made.

The auditor is passed in, as checks lie above the pipelines. Its verdicts are recorded in the snapshot and in the
report.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.publish.publish_commit import STAGED_KEPT_SECONDS, StagedSnapshot
from nevermore.scan_core import DataFile, Scan, open_table

CHECKS = "nevermore.checks"
"""Key in a snapshot's summary: the checks that the mirrors and the rows have passed, as JSON; or `unchecked`."""
UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: name of the check.
        passed: whether the table is as it should be.
        compared: counts, by a short name, e.g. `rows in mirror`.
        offending_keys: up to 20 keys or rows that are wrong, as Python values by column.
        details: what is wrong, one statement each; notes when passed.
        severity: whether a failure stops what is published from the table, or is only reported.
        reproduce: commands that show what became of some of the keys.
        partitions: keys of the partitions that have what is wrong; empty if that is not known.
        table: the table that was checked; empty where it is known.
        scope: which rows were checked if not all were, before the summary: `since snapshot 1: `.
    """

    name: str
    passed: bool
    compared: Mapping[str, int] = field(default_factory=dict)
    offending_keys: Sequence[Mapping[str, Any]] = ()
    details: Sequence[str] = ()
    severity: Literal["block", "warn"] = "block"
    reproduce: Sequence[str] = ()
    partitions: Sequence[str] = ()
    table: str = ""
    scope: str = ""

    @property
    def blocks(self) -> bool:
        """Whether nothing may be published because of this result."""
        return not self.passed and self.severity == "block"

    def counts(self) -> str:
        """What was compared: `1 row in table, 2,000 changes in log`."""
        plural = re.compile(r"s\b")
        return ", ".join(
            f"{count:,} {plural.sub('', what, count=1) if count == 1 else what}"
            for what, count in self.compared.items()
        )

    def summary(self) -> str:
        """One line for people, in Dagster, alerts and snapshots: the words of `nevermore check`, then what is wrong."""
        return self.scope + ("; ".join(filter(None, [self.counts(), *self.details])) or "nothing to compare")

    def lines(self) -> list[str]:
        """What a person reads below the outcome: what is wrong, with which keys, and the commands that show more."""
        keys = (f"key {dict(key)}" for key in self.offending_keys)
        return [*self.details, *keys, *(f"to see more: {command}" for command in self.reproduce)]

    def as_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        document = asdict(self)
        del document["scope"]
        return {"table": document.pop("table"), "check": document.pop("name"), "text": self.summary(), **document}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRows:
    """Rows that a run has staged on a branch of the published table.

    Attributes:
        name: the published table.
        mode: what happens to existing rows.
        staged: the snapshot on the branch.
        keys: keys of the partitions that were made; None for the whole table.
        values: the same partitions as values of the Iceberg partition field.
        by_key: whether single keys of these partitions were made; all of their rows are checked then.
        query: hash of the SQL and of every setting that affects its result.
        sources: the snapshots of the mirrors that were read.
    """

    name: str
    mode: Literal["replace", "append", "upsert"]
    staged: StagedSnapshot
    keys: tuple[str, ...] | None
    values: frozenset[Any] | None
    query: str
    sources: Mapping[str, int]
    by_key: bool = False

    @property
    def paths(self) -> frozenset[str]:
        """Data files that were staged."""
        return frozenset(file.path for file in self.staged.files if isinstance(file, DataFile))

    @property
    def num_rows(self) -> int:
        """Rows that the tasks have written."""
        return sum(file.record_count for file in self.staged.files if isinstance(file, DataFile))


class Auditor(Protocol):
    """Runs the checks that a publication requires."""

    def rows(self, config: Config, staged: StagedRows) -> Sequence[CheckResult]:
        """Check exactly the rows that a run has staged."""

    def mirrors(self, config: Config, scans: Mapping[str, Scan]) -> Sequence[CheckResult]:
        """Verdicts on the snapshots that are read, by mirror; a mirror without known results is checked now."""


class CheckFailedError(PublishError):
    """A check failed, so nothing was published. `verdicts` holds all results."""

    def __init__(self, message: str, verdicts: Sequence[CheckResult]) -> None:
        super().__init__(message)
        self.verdicts = tuple(verdicts)


def require_green_mirrors(name: str, verdicts: Sequence[CheckResult]) -> None:
    """Refuse to read mirrors that are known to be wrong.

    Raises:
        CheckFailedError: a mirror is wrong; names the mirrors, what is wrong with them and what to do.
    """
    failed = [verdict for verdict in verdicts if verdict.blocks]
    if not failed:
        return
    wrong = _listed((f"{verdict.table} fails {verdict.name}", verdict) for verdict in failed)
    tables = " ".join(dict.fromkeys(verdict.table for verdict in failed))
    raise CheckFailedError(
        f"published {name} reads a mirror that is wrong, so nothing is published:{wrong}\n`nevermore check {tables}` shows the "
        f"rows, `nevermore resync` rebuilds a mirror from its log; --unchecked publishes anyway",
        verdicts,
    )


def require_green_rows(staged: StagedRows, verdicts: Sequence[CheckResult]) -> None:
    """Refuse to publish rows that failed a check.

    Raises:
        CheckFailedError: the rows are wrong; says what is wrong and where the rows are.
    """
    failed = [verdict for verdict in verdicts if verdict.blocks]
    if not failed:
        return
    wrong = _listed((verdict.name, verdict) for verdict in failed)
    snapshot_id, branch = staged.staged.committed.snapshot_id, staged.staged.branch
    days = round(STAGED_KEPT_SECONDS / 24 / 3600)
    raise CheckFailedError(
        f"published {staged.name}: the new rows fail their checks, so nothing is published:{wrong}\nFor {days} "
        f"days they are on branch {branch} of the table: `nevermore scan {staged.name} --snapshot {snapshot_id}`; "
        "--unchecked publishes anyway",
        verdicts,
    )


def _listed(failed: Iterable[tuple[str, CheckResult]]) -> str:
    """What is wrong, below a heading for each check."""
    lines = [line for what, verdict in failed for line in (what, *(f"  {text}" for text in verdict.details))]
    return "".join(f"\n  {line}" for line in lines)


def summarize_checks(verdicts: Sequence[CheckResult] | None) -> dict[str, str]:
    """Summarize the checks for a snapshot's summary; None if none were run."""
    if verdicts is None:
        return {CHECKS: UNCHECKED}
    by_table: dict[str, dict[str, str]] = {}
    for verdict in verdicts:
        by_table.setdefault(verdict.table, {})[verdict.name] = verdict.summary()
    return {CHECKS: json.dumps(by_table, sort_keys=True)}


def was_audited(config: Config, name: str) -> bool:
    """Whether the rows of the newest snapshot of a published table passed their checks before it became visible."""
    table = find_table(open_catalog(config), name)
    snapshot = None if table is None else open_table(table).metadata.current_snapshot
    return snapshot is not None and snapshot.summary.get(CHECKS, UNCHECKED) != UNCHECKED
