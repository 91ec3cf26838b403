"""Expectations of users on a table's rows, by Great Expectations: declared in config, or derived from the schema.

Declared as `not_null: [id]`, `unique: [[id]]`, `between: {qty: [0, 1000]}`, `in_set: {status: [new, paid]}`,
`matches: {email: ".+@.+"}`, `row_count: [1, null]`, or by Great Expectations' own names under `expectations:`. Its
import costs seconds and much memory: it happens inside the function that needs it.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from checks.comparison import MOST_OFFENDING_KEYS, CheckResult, canonical, sample
from scan_core import Schema


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation by the name that Great Expectations has for it, and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.arguments.items())})"


def expectations_of_schema(schema: Schema, key: Sequence[str] = ()) -> list[Expectation]:
    """What the schema itself promises: required columns are never NULL, the key is unique."""
    found = [
        Expectation("expect_column_values_to_not_be_null", {"column": f.name}) for f in schema.fields if f.required
    ]
    return found + (_unique([list(key)]) if key else [])


def declared_expectations(declared: Mapping[str, Any]) -> list[Expectation]:
    """The expectations under `checks:` of a table in the config.

    Raises:
        ValueError: an unknown kind of expectation.
    """
    found: list[Expectation] = []
    for kind, value in declared.items():
        if kind not in _KINDS:
            raise ValueError(f"unknown expectation {kind!r}; valid are {', '.join(sorted(_KINDS))}")
        found += _KINDS[kind](value)
    return found


def meets_expectations(rows: pa.Table, expectations: Sequence[Expectation], key: Sequence[str] = ()) -> CheckResult:
    """All expectations hold for `rows`; `key` names the columns by which rows that do not are shown."""
    compared = {"rows": rows.num_rows, "expectations": len(expectations)}
    if not expectations:
        return CheckResult("meets_expectations", passed=True, compared=compared)
    details, places = [], set[int]()
    for expectation, result in zip(expectations, _validate(rows, expectations), strict=True):
        if not result.success:
            details.append(_statement(expectation, result))
            places.update(_row_numbers(result))
    shown = rows.select(list(key) or rows.column_names).take(pa.array(sorted(places)[:MOST_OFFENDING_KEYS], pa.int64()))
    return CheckResult("meets_expectations", not details, compared, sample(shown), details)


def _validate(rows: pa.Table, expectations: Sequence[Expectation]) -> list[Any]:
    with warnings.catch_warnings():
        os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
        warnings.simplefilter("ignore")  # deprecations inside Great Expectations are not the user's
        import great_expectations as gx
        from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

        in_memory = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
        project = DataContextConfig(store_backend_defaults=in_memory, analytics_enabled=False)
        context = gx.get_context(mode="ephemeral", project_config=project)
        context.variables.progress_bars = gx.data_context.types.base.ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
        frame = canonical(rows).to_pandas(integer_object_nulls=True)
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
        made = [getattr(gx.expectations, _class_name(e.name))(**e.arguments) for e in expectations]
        return [batch.validate(m, result_format="COMPLETE") for m in made]


def _class_name(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _statement(expectation: Expectation, result: Any) -> str:
    raised = [info["exception_message"] for info in _exceptions(result) if info.get("raised_exception")]
    if raised:
        return f"{expectation}: {raised[0]}"
    details = result.result or {}
    if "unexpected_count" in details:
        return f"{expectation}: {details['unexpected_count']:,} of {details['element_count']:,} rows do not"
    return f"{expectation}: observed {details.get('observed_value')!r}"


def _exceptions(result: Any) -> list[Mapping[str, Any]]:
    info = result.exception_info or {}
    return [info] if "raised_exception" in info else [v for v in info.values() if isinstance(v, Mapping)]


def _row_numbers(result: Any) -> list[int]:
    return [int(i) for i in (result.result or {}).get("unexpected_index_list") or [] if isinstance(i, int)]


def _unique(keys: Sequence[Sequence[str]]) -> list[Expectation]:
    return [
        Expectation("expect_column_values_to_be_unique", {"column": columns[0]})
        if len(columns) == 1
        else Expectation("expect_compound_columns_to_be_unique", {"column_list": list(columns)})
        for columns in keys
    ]


def _by_column(name: str, *arguments: str) -> Any:
    def make(value: Mapping[str, Any]) -> list[Expectation]:
        return [
            Expectation(
                name,
                {"column": c, **(dict(zip(arguments, v, strict=True)) if len(arguments) > 1 else {arguments[0]: v})},
            )
            for c, v in value.items()
        ]

    return make


_KINDS: Mapping[str, Any] = {
    "not_null": lambda columns: [Expectation("expect_column_values_to_not_be_null", {"column": c}) for c in columns],
    "unique": lambda keys: _unique([[k] if isinstance(k, str) else k for k in keys]),
    "between": _by_column("expect_column_values_to_be_between", "min_value", "max_value"),
    "in_set": _by_column("expect_column_values_to_be_in_set", "value_set"),
    "matches": _by_column("expect_column_values_to_match_regex", "regex"),
    "row_count": lambda limits: [
        Expectation("expect_table_row_count_to_be_between", {"min_value": limits[0], "max_value": limits[1]})
    ],
    "expectations": lambda listed: [Expectation(name, args) for entry in listed for name, args in entry.items()],
}
