"""The checks of published tables: those that a publication asks for, and those of a whole table.

A publication asks for the checks of the snapshots of mirrors that it reads and of the rows that it staged.
"""

from collections.abc import Iterator, Mapping, Sequence

from checks.kept_results import KeptResults
from checks.manifest_facts import NAME as MANIFESTS
from checks.manifest_facts import compare_manifests
from checks.mirror_checks import snapshot_results
from checks.published_equality import NAME as EQUALS_DUCKDB
from checks.published_equality import published_equals_duckdb, staged_rows_equal_duckdb
from checks.result import CheckResult
from checks.staged_rows import rows_are_complete, staged_manifests_match_files
from pipelines.catalog import find_table, has_catalog, open_catalog
from pipelines.config import Config
from pipelines.errors import ConfigError
from pipelines.published.audit import StagedRows, Verdict
from scan_core.scan import Scan
from scan_core.table import open_table


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
        """Whether exactly the rows that tasks wrote are staged, as manifests say, and whether DuckDB computes the same ones."""
        results = (
            rows_are_complete(staged),
            staged_manifests_match_files(staged),
            staged_rows_equal_duckdb(config, staged),
        )
        return [_verdict(staged.name, result) for result in results]


def check_published(config: Config, name: str) -> Iterator[CheckResult]:
    """The checks of a published table as it is now. An entry that cannot be made fails its own check, and no other's.

    Raises:
        MissingFileError: a file of the table is gone.
        MalformedTableError: a file of the table cannot be read.
    """
    try:
        yield published_equals_duckdb(config, name)
    except ConfigError as error:
        yield CheckResult(EQUALS_DUCKDB, passed=False, details=[str(error)])
    found = find_table(open_catalog(config), name) if has_catalog(config) else None
    if found is None:
        yield CheckResult(MANIFESTS, passed=True, details=[f"not compared: {name} does not exist yet"])
        return
    table = open_table(found)
    yield compare_manifests(table, table.metadata.current_snapshot)


def _how(kept: KeptResults) -> str:
    return "" if kept.since is None else f"since snapshot {kept.since}: "


def _verdict(table: str, result: CheckResult, how: str = "") -> Verdict:
    return Verdict(
        table, result.name, result.passed, how + result.summary(), result.compared, tuple(result.offending_keys)
    )
