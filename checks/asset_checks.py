"""The checks of mirrors and published tables as Dagster asset checks: blocking or warning, with offending keys.

The checks of new rows of a published table run in the step that makes them: see `assets/published.py`.
What a check computes is in `mirror_checks.py`, `configured.py` and `published_equality.py`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from nevermore.checks.configured import DESCRIPTIONS, Severity, configured, published_results, severity_of
from nevermore.checks.mirror_checks import all_checks_of, run_checks
from nevermore.checks.published_equality import partitions_text
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.config.sources import MysqlSource, PostgresSource
from nevermore.pipelines.publish.audit import CheckResult

PROJECT = "project"
"""Name of the resource that provides the config, see `assets/project.py`."""

MAX_SHOWN = 2
"""Statements of a check that its description has."""
MAX_EXACT = 2**53 - 1
"""Largest whole number that browsers show as it is; ids of snapshots and keys are larger."""
SEVERITIES: Mapping[str, dg.AssetCheckSeverity] = {
    "block": dg.AssetCheckSeverity.ERROR,
    "warn": dg.AssetCheckSeverity.WARN,
}
_DESCRIPTIONS = {
    "no_deleted_row_reappears": "No key that the change log deleted is in the mirror.",
    "mirror_equals_reference": "The engine's rows are those of DuckDB over the mirror's files and over the change log.",
    "key_is_unique": "No two live rows have the same key.",
    "removals_find_rows": "Every delete and update found the old row that it names.",
    "manifests_match_files": "Partition values, bounds and counts in manifests are those of the files.",
    "nothing_was_rolled_back": "Mirror and change log hold every change that they have held before.",
    "mirror_equals_source": "The rows of the mirror are those of its table in the database.",
    "log_is_complete": "The change log has every change that it numbered, once.",
    **DESCRIPTIONS,
}


def mirror_asset_checks(table: str, key: dg.AssetKey, config: Config) -> dg.AssetChecksDefinition:
    """The checks of one mirror, whose asset is `key`."""
    names, settings = all_checks_of(config, table), config.tables[table]
    return _asset_checks(table, key, {name: severity_of(settings, name) for name in names}, run_checks)


def source_asset_checks(table: str, key: dg.AssetKey, config: Config) -> list[dg.AssetChecksDefinition]:
    """The comparison of a mirror with its database, unless it is not read from one, or the check is off."""
    settings = config.tables[table]
    if not isinstance(settings.source, PostgresSource | MysqlSource) or settings.checks.mirror_equals_source == "off":
        return []

    def run(config: Config, table: str, _: Sequence[str]) -> list[CheckResult]:
        from nevermore.checks.source_equality import mirror_equals_source  # with all that reads a database

        return [mirror_equals_source(config, table)]

    return [_asset_checks(table, key, {"mirror_equals_source": "warn"}, run, "compare_")]


def published_asset_checks(name: str, key: dg.AssetKey, config: Config) -> dg.AssetChecksDefinition | None:
    """The checks that the config adds to a published table as it is now; None if there are none.

    New rows are checked before they become visible, in the step that makes them.
    """
    added = configured(config.published[name])
    return _asset_checks(name, key, added, published_results) if added else None


def _asset_checks(
    table: str,
    key: dg.AssetKey,
    severities: Mapping[str, Severity],
    run: Callable[[Config, str, Sequence[str]], Iterable[CheckResult]],
    prefix: str = "check_",
) -> dg.AssetChecksDefinition:
    """Checks of one table: one step, so that it is read once for all of them."""

    @dg.multi_asset_check(
        name=prefix + "_".join(key.path),
        specs=[
            dg.AssetCheckSpec(n, asset=key, blocking=severity == "block", description=_DESCRIPTIONS[n])
            for n, severity in severities.items()
        ],
        required_resource_keys={PROJECT},
        can_subset=True,
    )
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected = {check_key.name for check_key in context.selected_asset_check_keys}
        names = [name for name in severities if name in selected]
        yield from _reported(context, run(context.resources.project.config(), table, names), key, table)

    return check


def _reported(
    context: dg.AssetCheckExecutionContext, results: Iterable[CheckResult], key: dg.AssetKey, table: str
) -> Iterator[dg.AssetCheckResult]:
    """The results for Dagster; after all of them, those that block fail the step."""
    blocking = []
    for found in results:
        blocking += [found] if found.blocks else []
        yield check_result(found, key)
    if blocking:
        names = ", ".join(found.name for found in blocking)
        commands = dict.fromkeys(command for found in blocking for command in found.reproduce)
        fail(context, "\n".join([f"{table} fails {names}", *(f"to see more: {command}" for command in commands)]))


class StepFailedError(DagsterUserCodeProcessError):
    """A failure that its message explains: runs show it without the frames of the code that found it."""

    def __init__(self, message: str) -> None:
        shown = SerializableErrorInfo(f"{message}\n", stack=[], cls_name=type(self).__name__)
        super().__init__(message, user_code_process_error_infos=[shown])  # type: ignore[no-untyped-call]


def fail(context: dg.AssetCheckExecutionContext | dg.OpExecutionContext, message: str) -> NoReturn:
    """Fail the step for good: its run is not tried again either, as nothing would be another way.

    Raises:
        StepFailedError: always, with the message.
    """
    leave_run_failed(context)
    raise StepFailedError(message) from None


def leave_run_failed(context: dg.AssetCheckExecutionContext | dg.OpExecutionContext) -> None:
    """Keep the run from being tried again once it fails: retries of runs look at this tag."""
    context.instance.add_run_tags(context.run.run_id, {"dagster/max_retries": "0"})


def check_result(found: CheckResult, key: dg.AssetKey, partitions: Sequence[str] = ()) -> dg.AssetCheckResult:
    """A check's outcome for Dagster: what was compared, in which partitions, what is wrong, up to 20 offending keys.

    The description, which tables and messages show, has the first statements; the metadata all of them.
    """
    metadata = check_metadata(found.compared, found.offending_keys, found.reproduce)
    if partitions:
        metadata["partitions"] = dg.TextMetadataValue(", ".join(partitions))
        found = replace(found, scope=f"of {partitions_text(partitions)}: ")
    shown = found
    if (left := len(found.details) - MAX_SHOWN) > 0:
        metadata["details"] = dg.MarkdownMetadataValue("\n".join(f"- {text}" for text in found.details))
        shown = replace(found, details=[*found.details[:MAX_SHOWN], f"{left} more in the details"])
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=found.name,
        passed=found.passed,
        severity=SEVERITIES[found.severity],
        description=shown.summary(),
        metadata=metadata,
    )


def check_metadata(
    compared: Mapping[str, int], offending_keys: Sequence[Mapping[str, Any]], reproduce: Sequence[str] = ()
) -> dict[str, dg.MetadataValue]:
    """Counts of a check, the keys that are wrong, and the commands that show more."""
    metadata: dict[str, dg.MetadataValue] = {name: dg.IntMetadataValue(count) for name, count in compared.items()}
    if offending_keys:
        metadata["offending keys"] = dg.JsonMetadataValue(shown_as_json([dict(row) for row in offending_keys]))
    if reproduce:
        metadata["to see more"] = dg.MarkdownMetadataValue("```bash\n" + "\n".join(reproduce) + "\n```")
    return metadata


def shown_as_json(value: object) -> Any:
    """A value for a page of JSON: as text where JSON has no such type, or where a browser would show another number."""
    match value:
        case dict():
            return {str(name): shown_as_json(inner) for name, inner in value.items()}
        case list() | tuple():
            return [shown_as_json(inner) for inner in value]
        case None | str() | bool():
            return value
        case int():
            return value if abs(value) <= MAX_EXACT else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case _:
            return str(value)


def row_check_results(
    context: dg.OpExecutionContext,
    specs: Iterable[dg.AssetCheckSpec],
    verdicts: Sequence[CheckResult] = (),
    made: Sequence[str] = (),
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation | dg.Output[None]]:
    """Report the checks of a published table's rows: for each partition of the run, or once without partitions.

    If nothing was built, they all pass. Where a check knows which partitions are wrong, it passes for the others of the run;
    none of their rows is published either.

    Args:
        context: the step.
        specs: the checks.
        verdicts: what the run has found.
        made: the keys of the partitions that the run made, and the checks therefore looked at.
    """
    for spec in specs:
        nothing = CheckResult(spec.name, passed=True, details=["nothing was made"])
        table = ".".join(spec.asset_key.path[1:])
        verdict = next((v for v in verdicts if (v.name, v.table) == (spec.name, table)), nothing)
        if spec.partitions_def is None:
            yield check_result(verdict, spec.asset_key)
            continue
        # a result of a step of several partitions would belong to none of them
        for key in context.partition_keys:
            result = check_result(nothing, spec.asset_key)
            if key in made:
                is_wrong = not verdict.passed and (not verdict.partitions or key in verdict.partitions)
                shown = verdict if is_wrong else replace(verdict, passed=True, offending_keys=())
                result = check_result(shown, spec.asset_key, made)
            yield evaluation_of(result, key)
        yield dg.Output(None, spec.get_python_identifier())


def evaluation_of(result: dg.AssetCheckResult, partition: str | None = None) -> dg.AssetCheckEvaluation:
    """A result as an event that belongs to no run."""
    fields = ("asset_key", "check_name", "passed", "metadata", "severity", "description")
    return dg.AssetCheckEvaluation(partition=partition, **{field: getattr(result, field) for field in fields})
