"""Expectations on a table's rows, checked by Great Expectations: declared by users, or derived from the schema.

Declared as `not_null: [id]`, `unique: [[id]]`, `between: {qty: [0, 1000]}`, `in_set: {status: [new, paid]}`,
`matches: {email: ".+@.+"}`, `row_count: [1, null]`, or under `expectations:` by their names in Great Expectations. The
library is imported only in the function that needs it, because the import takes seconds and much memory.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from checks.comparison import MAX_OFFENDING_KEYS, CheckResult, canonical, sample
from scan_core import Schema


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation by its name in Great Expectations, and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.arguments.items())})"


def expectations_of_schema(schema: Schema, key: Sequence[str] = ()) -> list[Expectation]:
    """The expectations that follow from the schema: required columns are never NULL, the key is unique."""
    required = [Expectation(_NOT_NULL, {"column": f.name}) for f in schema.fields if f.required]
    return [*required, _unique(key)] if key else required


def declared_expectations(declared: Mapping[str, Any]) -> list[Expectation]:
    """The expectations under `checks:` of a table in the config.

    Raises:
        ValueError: an unknown kind of expectation.
    """
    found: list[Expectation] = []
    for kind, value in declared.items():
        if kind not in _KINDS:
            raise ValueError(f"unknown expectation {kind!r}; valid expectations are {', '.join(sorted(_KINDS))}")
        found += _KINDS[kind](value)
    return found


def meets_expectations(rows: pa.Table, expectations: Sequence[Expectation], key: Sequence[str] = ()) -> CheckResult:
    """All expectations hold for `rows`; other rows are shown by the columns of `key`."""
    compared = {"rows": rows.num_rows, "expectations": len(expectations)}
    if not expectations:
        return CheckResult("meets_expectations", passed=True, compared=compared)
    details, places = [], set[int]()
    for expectation, result in zip(expectations, _validate(rows, expectations), strict=True):
        if not result.success:
            details.append(_statement(expectation, result))
            places.update(i for i in (result.result or {}).get("unexpected_index_list") or [] if isinstance(i, int))
    shown = rows.select(list(key) or rows.column_names).take(pa.array(sorted(places)[:MAX_OFFENDING_KEYS], pa.int64()))
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
        classes = [getattr(gx.expectations, "".join(map(str.capitalize, e.name.split("_")))) for e in expectations]
        made = [one(**e.arguments) for one, e in zip(classes, expectations, strict=True)]
        return [batch.validate(m, result_format="COMPLETE") for m in made]


def _statement(expectation: Expectation, result: Any) -> str:
    info = result.exception_info or {}
    for one in [info] if "raised_exception" in info else info.values():
        if isinstance(one, Mapping) and one.get("raised_exception"):
            return f"{expectation}: {one['exception_message']}"
    details = result.result or {}
    if "unexpected_count" in details:
        return f"{expectation}: {details['unexpected_count']:,} of {details['element_count']:,} rows do not"
    return f"{expectation}: observed {details.get('observed_value')!r}"


def _unique(columns: str | Sequence[str]) -> Expectation:
    names = [columns] if isinstance(columns, str) else list(columns)
    if len(names) == 1:
        return Expectation("expect_column_values_to_be_unique", {"column": names[0]})
    return Expectation("expect_compound_columns_to_be_unique", {"column_list": names})


def _by_column(name: str, *arguments: str) -> "_Kind":
    """A kind that is declared as a value, or a list of values for several arguments, for each column."""

    def make(declared: Mapping[str, Any]) -> list[Expectation]:
        values = {column: value if len(arguments) > 1 else [value] for column, value in declared.items()}
        return [Expectation(name, {"column": c, **dict(zip(arguments, v, strict=True))}) for c, v in values.items()]

    return make


_Kind = Callable[[Any], list[Expectation]]
_NOT_NULL = "expect_column_values_to_not_be_null"
_KINDS: Mapping[str, _Kind] = {
    "not_null": lambda columns: [Expectation(_NOT_NULL, {"column": c}) for c in columns],
    "unique": lambda keys: [_unique(key) for key in keys],
    "between": _by_column("expect_column_values_to_be_between", "min_value", "max_value"),
    "in_set": _by_column("expect_column_values_to_be_in_set", "value_set"),
    "matches": _by_column("expect_column_values_to_match_regex", "regex"),
    "row_count": lambda limits: [
        Expectation("expect_table_row_count_to_be_between", dict(zip(("min_value", "max_value"), limits, strict=True)))
    ],
    "expectations": lambda listed: [Expectation(name, args) for entry in listed for name, args in entry.items()],
}
