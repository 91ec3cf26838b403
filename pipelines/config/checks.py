"""The section `checks` of mirrors and published tables: what must hold, and what happens if it does not.

Expectations are validated by their names and arguments in Great Expectations, without importing it. They are run in
`checks/`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from nevermore.pipelines.config.values import Bytes, Seconds, SecondsOrOff, Section, Severity, placed
from nevermore.pipelines.errors import ConfigError

DEFAULT_FRAME_BYTES = 256 * 1024**2
"""A pandas frame needs several times the size of its rows in Arrow."""
DEFAULT_MEMORY_BYTES = 512 * 1024**2
"""With what Python and its libraries take, a check then fits into 1 GiB."""
MIN_MEMORY_BYTES = 128 * 1024**2
"""DuckDB needs some for each thread."""
DEFAULT_EVERY_SECONDS = 3_600.0
"""Only the keys that changed are compared, but Python and its libraries are loaded each time."""
DEFAULT_MAX_QUARANTINE_SHARE = 0.01
"""A feed that is decoded rightly has hardly any."""
DEFAULT_VOLUME_DAYS = 14
"""Two weeks, so that every day of the week occurs twice."""
DEFAULT_VOLUME_FACTOR = 4.0
"""Weekends and campaigns stay within it; a feed that stops or is sent twice over does not."""
SHOWN_ARGUMENTS = 60

_RULES = """\
row   expect_column_pair_values_a_to_be_greater_than_b column_A:column column_B:column mostly?:share or_equal?:flag ignore_row_if?:both_values_are_missing|either_value_is_missing|neither
row   expect_column_pair_values_to_be_equal column_A:column column_B:column mostly?:share ignore_row_if?:both_values_are_missing|either_value_is_missing|neither
row   expect_column_pair_values_to_be_in_set column_A:column column_B:column mostly?:share value_pairs_set:values ignore_row_if?:both_values_are_missing|either_value_is_missing|neither
row   expect_column_value_lengths_to_be_between column:column mostly?:share min_value?:count max_value?:count strict_min?:flag strict_max?:flag
row   expect_column_value_lengths_to_equal column:column mostly?:share value:number
row   expect_column_values_to_be_between column:column mostly?:share min_value?:bound max_value?:bound strict_min?:flag strict_max?:flag
row   expect_column_values_to_be_dateutil_parseable column:column mostly?:share
row   expect_column_values_to_be_in_set column:column mostly?:share value_set:values
row   expect_column_values_to_be_json_parseable column:column mostly?:share
row   expect_column_values_to_be_null column:column mostly?:share
row   expect_column_values_to_match_json_schema column:column mostly?:share json_schema:mapping
row   expect_column_values_to_match_regex column:column mostly?:share regex:text
row   expect_column_values_to_match_regex_list column:column mostly?:share regex_list:texts match_on?:any|all
row   expect_column_values_to_match_strftime_format column:column mostly?:share strftime_format:text
row   expect_column_values_to_not_be_in_set column:column mostly?:share value_set:values
row   expect_column_values_to_not_be_null column:column mostly?:share
row   expect_column_values_to_not_match_regex column:column mostly?:share regex:text
row   expect_column_values_to_not_match_regex_list column:column mostly?:share regex_list:texts
row   expect_multicolumn_sum_to_equal column_list:columns mostly?:share sum_total:number ignore_row_if?:all_values_are_missing|any_value_is_missing|never
row   expect_multicolumn_values_to_be_equal column_list:columns mostly?:share ignore_row_if?:all_values_are_missing|any_value_is_missing|never
row   expect_select_column_values_to_be_unique_within_record column_list:columns mostly?:share ignore_row_if?:all_values_are_missing|any_value_is_missing|never
table expect_column_distinct_values_to_be_in_set column:column value_set:values
table expect_column_distinct_values_to_contain_set column:column value_set:values
table expect_column_distinct_values_to_equal_set column:column value_set:values
table expect_column_max_to_be_between column:column min_value?:bound max_value?:bound strict_min?:flag strict_max?:flag
table expect_column_mean_to_be_between column:column min_value?:number max_value?:number strict_min?:flag strict_max?:flag
table expect_column_median_to_be_between column:column min_value?:number max_value?:number strict_min?:flag strict_max?:flag
table expect_column_min_to_be_between column:column min_value?:bound max_value?:bound strict_min?:flag strict_max?:flag
table expect_column_most_common_value_to_be_in_set column:column value_set:values ties_okay?:flag
table expect_column_proportion_of_non_null_values_to_be_between column:column min_value?:number max_value?:number strict_min?:flag strict_max?:flag
table expect_column_proportion_of_unique_values_to_be_between column:column min_value?:number max_value?:number strict_min?:flag strict_max?:flag
table expect_column_quantile_values_to_be_between column:column quantile_ranges:mapping allow_relative_error?:flag
table expect_column_stdev_to_be_between column:column min_value?:number max_value?:number strict_min?:flag strict_max?:flag
table expect_column_sum_to_be_between column:column min_value?:number max_value?:number strict_min?:flag strict_max?:flag
table expect_column_to_exist column:column column_index?:count
table expect_column_type_to_be column:column type_:text
table expect_column_unique_value_count_to_be_between column:column min_value?:count max_value?:count strict_min?:flag strict_max?:flag
table expect_column_value_z_scores_to_be_less_than column:column mostly?:share threshold:number double_sided:flag
table expect_column_values_to_be_in_type_list column:column mostly?:share type_list:texts
table expect_column_values_to_be_of_type column:column mostly?:share type_:text
table expect_column_values_to_be_unique column:column mostly?:share
table expect_column_values_to_not_be_outliers column:column mostly?:share method?:iqr|std multiplier?:number
table expect_compound_columns_to_be_unique column_list:columns mostly?:share ignore_row_if?:all_values_are_missing|any_value_is_missing|never
table expect_table_column_count_to_be_between min_value?:count max_value?:count
table expect_table_column_count_to_equal value:count
table expect_table_columns_to_match_ordered_list column_list:columns
table expect_table_columns_to_match_set column_set:columns exact_match?:flag
table expect_table_row_count_to_be_between min_value?:count max_value?:count strict_min?:flag strict_max?:flag
table expect_table_row_count_to_equal value:count
"""
"""Expectations by name: whether they hold row by row or for a table, and `argument:kind`, `?` if it can be omitted."""
NOT_POSSIBLE = {
    "expect_column_kl_divergence_to_be_less_than": "it needs a partition object that only code can build",
    "expect_column_values_to_be_decreasing": "rows of a table have no order",
    "expect_column_values_to_be_increasing": "rows of a table have no order",
    "expect_column_values_to_match_like_pattern": "Great Expectations runs it in SQL databases only; use a regex",
    "expect_column_values_to_match_like_pattern_list": "Great Expectations runs it in SQL databases only; use a regex",
    "expect_column_values_to_not_match_like_pattern": "Great Expectations runs it in SQL databases only; use a regex",
    "expect_column_values_to_not_match_like_pattern_list": "Great Expectations runs it in SQL databases only; use a regex",
    "expect_multicolumn_values_to_be_unique": "Great Expectations has replaced it by expect_select_column_values_to_be_unique_within_record",
    "expect_query_results_to_match_comparison": "it needs a SQL database",
    "expect_table_row_count_to_equal_other_table": "it needs a SQL database",
    "unexpected_rows_expectation": "it needs a SQL database; use where with another expectation",
}
"""Expectations of the library that are refused, with the reason."""


@dataclass(frozen=True, slots=True)
class ExpectationRule:
    """What an expectation accepts.

    Attributes:
        is_row_wise: whether each row decides for itself, so that rows that did not change need not be checked again.
        arguments: kind of each argument.
        required: arguments that cannot be omitted.
    """

    is_row_wise: bool
    arguments: Mapping[str, str]
    required: frozenset[str]


@cache
def expectation_rules() -> Mapping[str, ExpectationRule]:
    """All expectations that can be declared, by their names in Great Expectations."""
    rules = {}
    for line in _RULES.splitlines():
        scope, name, *listed = line.split()
        pairs = [entry.split(":") for entry in listed]
        kinds = {argument.rstrip("?"): kind for argument, kind in pairs}
        required = frozenset(argument for argument, _ in pairs if not argument.endswith("?"))
        rules[name] = ExpectationRule(scope == "row", kinds, required)
    return rules


_WANTED = {
    "column": "the name of a column",
    "columns": "a list of columns: [a, b]",
    "share": "a number from 0 to 1",
    "number": "a number",
    "count": "a whole number of at least 0",
    "bound": "a number, a date or a time",
    "flag": "true or false",
    "text": "text",
    "texts": "a list of texts",
    "values": "a list of values",
    "mapping": "a mapping, with one `name: value` per line",
}


def _is_of_kind(value: Any, kind: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_list = isinstance(value, list | tuple)
    match kind:
        case "column" | "text":
            return isinstance(value, str) and value != ""
        case "columns" | "texts":
            return is_list and bool(value) and all(isinstance(entry, str) for entry in value)
        case "share":
            return is_number and 0 <= value <= 1
        case "number":
            return is_number
        case "count":
            return isinstance(value, int) and not isinstance(value, bool) and value >= 0
        case "bound":
            return is_number or isinstance(value, str | date)
        case "flag":
            return isinstance(value, bool)
        case "values":
            return is_list and bool(value)
        case "mapping":
            return isinstance(value, dict)
        case _:
            return value in kind.split("|")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an expectation, and the argument that is wrong; None if it is the name."""

    message: str
    argument: str | None = None


def fault_of_expectation(name: str, arguments: Mapping[str, Any]) -> Fault | None:
    """What is wrong with an expectation: an unknown name, or an argument that is unknown, missing or of another type."""
    if name in NOT_POSSIBLE:
        return Fault(f"{name} cannot be checked here: {NOT_POSSIBLE[name]}")
    rule = expectation_rules().get(name)
    if rule is None:
        near = get_close_matches(name, expectation_rules(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "'Your own checks' in the documentation names them"
        return Fault(f"unknown expectation {name!r}; {hint}")
    for argument, value in arguments.items():
        if argument not in rule.arguments:
            near = get_close_matches(argument, rule.arguments, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"its arguments are {', '.join(rule.arguments)}"
            return Fault(f"{name} has no argument {argument!r}; {hint}", argument)
        if not _is_of_kind(value, kind := rule.arguments[argument]):
            wanted = _WANTED.get(kind) or " or ".join(kind.split("|"))
            return Fault(f"{argument} of {name} must be {wanted}, not {value!r:.{SHOWN_ARGUMENTS}}", argument)
    if missing := sorted(rule.required - set(arguments)):
        return Fault(f"{name} requires the argument {missing[0]!r}")
    bounds = [a for a in ("min_value", "max_value") if a in rule.arguments]
    if bounds and not set(bounds) & set(arguments):
        return Fault(f"{name} requires min_value, max_value or both")
    return None


class ExpectationConfig(Section):
    """One expectation.

    Attributes:
        name: its name in Great Expectations, `expect_...`.
        arguments: its arguments.
        severity: `block`: nothing is published if it does not hold; `warn`: only reported.
        where: condition on rows, in SQL; other rows are not checked.
    """

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    severity: Literal["block", "warn"] = "block"
    where: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """`{expect_...: {argument: value}, severity: warn}` as the name and the arguments."""
        if isinstance(value, str):
            value = {value: {}}
        if not isinstance(value, Mapping) or "name" in value:
            return value
        options = {"severity", "where"}
        names = [name for name in value if name not in options]
        if len(names) != 1:
            what = "name one expectation per entry, with its arguments: `- expect_...: {column: id}`"
            raise placed(what if not names else f"{what}; found {', '.join(names)}", *names[1:2])
        name = names[0]
        arguments = {} if value[name] is None else value[name]
        if not isinstance(arguments, Mapping):
            raise _exact(f"arguments of {name} must be a mapping: {{column: id}}", name)
        fault = fault_of_expectation(name, arguments)
        if fault is not None:
            raise _exact(fault.message, name, *([] if fault.argument is None else [fault.argument]))
        return {"name": name, "arguments": dict(arguments), **{o: value[o] for o in options if o in value}}

    @model_validator(mode="after")
    def _has_valid_condition(self) -> Self:
        if self.where is not None:
            from nevermore.scan_core import ScanError
            from nevermore.scan_core.parts import texts_in

            try:
                tuple(texts_in(self.where))  # parses it
            except ScanError as error:
                raise placed(str(error), "where") from error
        return self

    def __str__(self) -> str:
        arguments = ", ".join(f"{k}={v!r:.{SHOWN_ARGUMENTS}}" for k, v in self.arguments.items())
        return f"{self.name}({arguments})" + (f" where {self.where}" if self.where else "")

    @property
    def is_row_wise(self) -> bool:
        """Whether rows that have met it, and have not changed, need not be checked again."""
        return expectation_rules()[self.name].is_row_wise and self.arguments.get("mostly", 1) == 1


def _exact(message: str, *place: str) -> PydanticCustomError:
    """An error that also names the column in the line."""
    return PydanticCustomError("placed", "{message}", {"message": message, "place": place, "with_column": True})


class FreshnessConfig(Section):
    """How old the newest snapshot of a table may be.

    Attributes:
        max_age: maximum age.
        severity: `block`, `warn` or `off`.
    """

    max_age: Seconds
    severity: Severity = "warn"


class VolumeConfig(Section):
    """Changes per day, in UTC, of the last complete day compared with the days before it.

    Attributes:
        days: number of earlier days whose median is the usual volume; with fewer than three of them nothing is compared.
        factor: the last day may have up to this many times the usual volume, and no less than the usual volume divided by it.
        severity: `block`, `warn` or `off`.
    """

    days: int = Field(default=DEFAULT_VOLUME_DAYS, ge=3)
    factor: float = Field(default=DEFAULT_VOLUME_FACTOR, gt=1)
    severity: Severity = "warn"


class QuarantineConfig(Section):
    """The share of all events that may be in quarantine.

    Attributes:
        max_share: maximum share.
        severity: `block`, `warn` or `off`.
    """

    max_share: float = Field(default=DEFAULT_MAX_QUARANTINE_SHARE, ge=0, le=1)
    severity: Severity = "warn"


class TableChecksConfig(Section):
    """Checks that the config adds to a mirror or a published table.

    Attributes:
        expectations: expectations by their names in Great Expectations, with arguments, `severity: block | warn` and `where`.
        suite: a suite of Great Expectations in a JSON file; its severity `critical` blocks, others warn.
        from_schema: expectations that follow from the schema: columns and types, required columns, unique keys: `block`, `warn` or `off`; by default `block` if there is a suite or expectations.
        freshness: how old the newest snapshot may be: `{max_age: 1h, severity: warn}`.
        frame_bytes: rows of up to this size are checked in memory by pandas, more of them by Spark.
        memory_bytes: memory for the comparison with the reference, beside that of an idle process; what does not fit is kept on disk meanwhile.
    """

    expectations: tuple[ExpectationConfig, ...] = ()
    suite: str | None = None
    from_schema: Severity | None = None
    freshness: FreshnessConfig | None = None
    frame_bytes: Bytes = DEFAULT_FRAME_BYTES
    memory_bytes: Annotated[Bytes, Field(ge=MIN_MEMORY_BYTES)] = DEFAULT_MEMORY_BYTES

    @property
    def schema_severity(self) -> Literal["block", "warn", "off"]:
        """What a table that does not have the shape of its schema means."""
        if self.is_schema_default:
            return "warn" if isinstance(self, ChecksConfig) else "off"
        return self.from_schema or "block"

    @property
    def is_schema_default(self) -> bool:
        """Whether nothing is said about expectations."""
        return not (self.from_schema or self.suite or self.expectations)

    @property
    def has_expectations(self) -> bool:
        """Whether Great Expectations has anything to check."""
        return bool(self.expectations) or self.schema_severity != "off"

    def with_suite(self, folder: Path) -> Self:
        """The same checks, with the expectations of the suite, whose path is relative to a folder.

        Raises:
            ConfigError: the suite cannot be read, or has an unknown expectation or wrong arguments.
        """
        if self.suite is None:
            return self
        path = folder / Path(self.suite).expanduser()
        return self.model_copy(update={"expectations": (*self.expectations, *read_suite(path)), "suite": str(path)})


class PublishedChecksConfig(TableChecksConfig):
    """Checks of a published table, in addition to those that always run.

    Attributes:
        expectations: expectations by their names in Great Expectations, with arguments, `severity: block | warn` and `where`.
        suite: a suite of Great Expectations in a JSON file; its severity `critical` blocks, others warn.
        from_schema: expectations that follow from the schema: columns and types, required columns, unique keys: `block`, `warn` or `off`; by default `block` if there is a suite or expectations.
        freshness: how old the newest snapshot may be: `{max_age: 1h, severity: warn}`.
        frame_bytes: rows of up to this size are checked in memory by pandas, more of them by Spark.
        memory_bytes: memory for the comparison with the reference, beside that of an idle process; what does not fit is kept on disk meanwhile.
        published_equals_duckdb: whether rows that differ from those that DuckDB computes stop a publication: `block`, `warn` or `off`.
    """

    published_equals_duckdb: Severity = "block"


class ChecksConfig(TableChecksConfig):
    """Checks of a mirror, in addition to those that always run.

    Attributes:
        expectations: expectations by their names in Great Expectations, with arguments, `severity: block | warn` and `where`.
        suite: a suite of Great Expectations in a JSON file; its severity `critical` blocks, others warn.
        from_schema: expectations that follow from the schema: columns and types, required columns, unique keys: `block`, `warn` or `off`; by default `block` if there is a suite or expectations, else `warn` without the unique key, which another check proves.
        freshness: how old the newest snapshot may be: `{max_age: 1h, severity: warn}`.
        frame_bytes: rows of up to this size are checked in memory by pandas, more of them by Spark.
        memory_bytes: memory for the comparison with the reference, beside that of an idle process; larger tables are compared in buckets of their keys, which are kept on disk meanwhile.
        every: how often `nevermore run` checks the mirror after new events, in a separate process; `off` disables this.
        volume: how far the changes of a day may be from those of the days before: `{days: 14, factor: 4, severity: warn}`.
        schema_matches: whether columns and types of the mirror are those of its change log: `block`, `warn` or `off`.
        no_key_is_stale: whether a key whose newest change is in quarantine fails: `block`, `warn` or `off`.
        quarantine_is_small: the share of events that may be in quarantine: `{max_share: 0.01, severity: warn}`.
        scans_are_fast: whether scans lose more of their time than `maintenance: max_debt` allows: `block`, `warn` or `off`.
        mirror_equals_source: whether rows that differ from those of the database fail `nevermore check --source` (`block`), or only warn; Dagster has no such check with `off`.
        max_rows_per_second: maximum number of rows that `nevermore check --source` reads from the database in a second.
    """

    every: SecondsOrOff = DEFAULT_EVERY_SECONDS
    volume: VolumeConfig | None = None
    schema_matches: Severity = "warn"
    no_key_is_stale: Severity = "block"
    quarantine_is_small: QuarantineConfig = QuarantineConfig()
    scans_are_fast: Severity = "warn"
    mirror_equals_source: Severity = "warn"
    max_rows_per_second: Annotated[int, Field(gt=0)] | None = None


def read_suite(path: Path) -> tuple[ExpectationConfig, ...]:
    """The expectations of a suite that Great Expectations has written as JSON.

    Raises:
        ConfigError: no such file, not a suite, or an expectation that cannot be checked; names the entry.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        listed = document["expectations"]
        entries = [(e.get("type") or e["expectation_type"], dict(e.get("kwargs") or {}), e) for e in listed]
    except OSError as error:
        raise ConfigError(f"the suite {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a suite of Great Expectations: {error}") from error
    found = []
    for number, (name, kwargs, entry) in enumerate(entries, start=1):
        if kwargs.pop("row_condition", None) is not None:
            raise ConfigError(f"{path}: expectation {number}: row_condition is not supported; declare it with where")
        for ignored in ("batch_id", "condition_parser", "result_format", "catch_exceptions", "severity"):
            kwargs.pop(ignored, None)
        arguments = {key: value for key, value in kwargs.items() if value is not None}
        fault = fault_of_expectation(name, arguments)
        if fault is not None:
            raise ConfigError(f"{path}: expectation {number}: {fault.message}")
        warns = str(entry.get("severity")) in {"warning", "info"}
        found.append(ExpectationConfig(name=name, arguments=arguments, severity="warn" if warns else "block"))
    return tuple(found)
