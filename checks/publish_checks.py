"""The checks that a publication asks for: of the snapshots of the mirrors that it reads, and of the rows that it staged."""

from collections.abc import Mapping, Sequence

from checks.kept_results import KeptResults
from checks.mirror_checks import snapshot_results
from checks.published_equality import staged_rows_equal_duckdb
from checks.result import CheckResult
from checks.staged_rows import rows_are_complete
from pipelines.config import Config
from pipelines.published.audit import StagedRows, Verdict
from scan_core.scan import Scan


class ProjectAuditor:
    """Answers for the tables of a project. Results for mirrors are kept beside them, and found out once per snapshot."""

    def mirrors(self, config: Config, scans: Mapping[str, Scan]) -> Sequence[Verdict]:
        """The results of the checks of the snapshots that scans read, by mirror."""
        found: list[Verdict] = []
        for table, scan in scans.items():
            kept = snapshot_results(config, table, scan.table.metadata_path)
            found += [_verdict(table, result, _how(kept)) for result in kept.results.values()]
        return found

    def rows(self, config: Config, staged: StagedRows) -> Sequence[Verdict]:
        """Whether exactly the rows that tasks wrote are staged, and whether DuckDB computes the same ones."""
        results = (rows_are_complete(staged), staged_rows_equal_duckdb(config, staged))
        return [_verdict(staged.name, result) for result in results]


def _how(kept: KeptResults) -> str:
    return "" if kept.since is None else f"since snapshot {kept.since}: "


def _verdict(table: str, result: CheckResult, how: str = "") -> Verdict:
    return Verdict(
        table, result.name, result.passed, how + result.summary(), result.compared, tuple(result.offending_keys)
    )
