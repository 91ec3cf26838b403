"""The checks of mirrors and published tables as Dagster asset checks: blocking or warning, with offending keys.

The checks of new rows of a published table run in the step that makes them: see `assets/published.py`.
What a check computes is in `mirror_checks.py`, `configured.py` and `published_equality.py`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from nevermore.checks.comparison import CheckResult
from nevermore.checks.configured import DESCRIPTIONS, configured, published_results, severity_of
from nevermore.checks.mirror_checks import all_checks_of, run_checks
from nevermore.checks.published_equality import partitions_text
from nevermore.pipelines.config.project import Config
from nevermore.pipelines.publish.audit import Verdict

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
    "log_is_complete": "The change log has every change that it numbered, once.",
    **DESCRIPTIONS,
}


def mirror_asset_checks(table: str, key: dg.AssetKey, config: Config) -> dg.AssetChecksDefinition:
    """The checks of one mirror, whose asset is `key`: one step, so that tables are read once for all of them."""
    names, settings = all_checks_of(config, table), config.tables[table]

    @dg.multi_asset_check(
        name="check_" + "_".join(key.path),
        specs=[
            dg.AssetCheckSpec(n, asset=key, blocking=severity_of(settings, n) == "block", description=_DESCRIPTIONS[n])
            for n in names
        ],
        required_resource_keys={PROJECT},
        can_subset=True,
    )
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected = {check_key.name for check_key in context.selected_asset_check_keys}
        results = run_checks(context.resources.project.config(), table, [n for n in names if n in selected])
        yield from _reported(context, results, key, table)

    return check


def published_asset_checks(name: str, key: dg.AssetKey, config: Config) -> dg.AssetChecksDefinition | None:
    """The checks that the config adds to a published table as it is now; None if there are none.

    New rows are checked before they become visible, in the step that makes them.
    """
    added = configured(config.published[name])
    if not added:
        return None

    @dg.multi_asset_check(
        name="check_" + "_".join(key.path),
        specs=[
            dg.AssetCheckSpec(n, asset=key, blocking=severity == "block", description=_DESCRIPTIONS[n])
            for n, severity in added.items()
        ],
        required_resource_keys={PROJECT},
        can_subset=True,
    )
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected = {check_key.name for check_key in context.selected_asset_check_keys}
        yield from _reported(context, published_results(context.resources.project.config(), name, selected), key, name)

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


def check_result(found: CheckResult, key: dg.AssetKey) -> dg.AssetCheckResult:
    """A check's outcome for Dagster: what was compared, what is wrong, up to 20 offending keys.

    The description, which tables and messages show, has the first statements; the metadata all of them.
    """
    metadata = check_metadata(found.compared, found.offending_keys, found.reproduce)
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
    verdicts: Sequence[Verdict] = (),
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
        nothing = Verdict(spec.name, spec.name, passed=True, text="nothing was made")
        table = ".".join(spec.asset_key.path[1:])
        verdict = next((v for v in verdicts if (v.check, v.table) == (spec.name, table)), nothing)
        if spec.partitions_def is None:
            yield dg.AssetCheckResult(**_row_outcome(spec, verdict))
            continue
        # a result of a step of several partitions would belong to none of them
        for key in context.partition_keys:
            outcome = _row_outcome(spec, nothing)
            if key in made:
                is_wrong = not verdict.passed and (not verdict.partitions or key in verdict.partitions)
                outcome = _row_outcome(spec, verdict if is_wrong else replace(verdict, passed=True, offending_keys=()))
                outcome["description"] = f"of {partitions_text(made)}: {outcome['description']}"
                outcome["metadata"] |= {"partitions": dg.TextMetadataValue(", ".join(made))}
            yield dg.AssetCheckEvaluation(partition=key, **outcome)
        yield dg.Output(None, spec.get_python_identifier())


def _row_outcome(spec: dg.AssetCheckSpec, verdict: Verdict) -> dict[str, Any]:
    return {
        "asset_key": spec.asset_key,
        "check_name": spec.name,
        "passed": verdict.passed,
        "severity": SEVERITIES[verdict.severity],
        "description": verdict.text,
        "metadata": check_metadata(verdict.compared, verdict.offending_keys),
    }


def evaluation_of(result: dg.AssetCheckResult, partition: str | None = None) -> dg.AssetCheckEvaluation:
    """A result as an event that belongs to no run."""
    fields = ("asset_key", "check_name", "passed", "metadata", "severity", "description")
    return dg.AssetCheckEvaluation(partition=partition, **{field: getattr(result, field) for field in fields})
