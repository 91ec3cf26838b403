"""Expectations of the config: accepted and refused, checked on the right rows, and what follows from the results."""

import datetime as dt
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.checks import expectations
from nevermore.checks.configured import KIND
from nevermore.checks.expectations import (
    MUST,
    SHOULD,
    Found,
    RowsToCheck,
    _with_typed_bounds,
    expectations_of,
    validate,
)
from nevermore.checks.mirror_checks import all_checks_of, run_checks
from nevermore.pipelines.config.checks import (
    NOT_POSSIBLE,
    ExpectationConfig,
    PublishedChecksConfig,
    expectation_rules,
)
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.scan_core import NestedField, PrimitiveType, Schema, open_table
from tests.support.iceberg_json import Column
from tests.support.shop_project import ShopProject, event, order
from tests.support.spark_session import SPARK_TEST
from tests.support.table_builder import TableBuilder

ORDERS = "shop.orders"
CONFIG = """
tables:
  shop.orders:
    source: {path: orders.jsonl}
    checks:
      expectations:
"""
COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "price", "decimal(9, 2)")]
ROWS = {"id": [1, 2, 2, None], "name": ["a", "b", None, "zz"], "price": ["1.50", "2.50", None, "3.50"]}


def rows_of(folder: Path, key: tuple[str, ...] = ("id",)) -> RowsToCheck:
    table = TableBuilder(folder / "t", COLUMNS)
    table.commit(table.data(ROWS | {"price": pa.array(ROWS["price"]).cast(pa.decimal128(9, 2)).to_pylist()}))
    scan = open_table(str(table.metadata_path)).scan()
    return RowsToCheck("t", scan, key, None, lambda: pytest.fail("no Spark for four rows"))


@pytest.mark.each(3)
@pytest.mark.parametrize(
    ("name", "arguments", "where", "offending"),
    [
        ("expect_column_values_to_not_be_null", {"column": "id"}, None, [None]),
        ("expect_column_values_to_not_be_null", {"column": "id"}, "name <> 'zz'", None),
        ("expect_column_values_to_be_unique", {"column": "id"}, None, [2, 2]),
        ("expect_column_values_to_be_unique", {"column": "id"}, "name is not null", None),
        ("expect_column_values_to_be_between", {"column": "id", "min_value": 2}, None, [1]),
        ("expect_column_values_to_be_between", {"column": "price", "min_value": 2}, None, [1]),
        ("expect_column_values_to_be_in_set", {"column": "name", "value_set": ["a", "b", "zz"]}, None, None),
        ("expect_column_values_to_match_regex", {"column": "name", "regex": "^.$"}, None, [None]),
        ("expect_column_values_to_be_null", {"column": "name", "mostly": 0.2}, None, None),
        ("expect_compound_columns_to_be_unique", {"column_list": ["id", "name"]}, None, None),
        ("expect_table_row_count_to_equal", {"value": 4}, None, None),
        ("expect_table_row_count_to_equal", {"value": 5}, None, []),
        ("expect_column_mean_to_be_between", {"column": "price", "min_value": 2.4, "max_value": 2.6}, None, None),
        ("expect_column_max_to_be_between", {"column": "price", "max_value": 3}, None, []),
        ("expect_column_max_to_be_between", {"column": "id", "max_value": 1}, None, []),
        ("expect_column_distinct_values_to_be_in_set", {"column": "name", "value_set": ["a", "b"]}, None, []),
        (
            "expect_column_quantile_values_to_be_between",
            {"column": "price", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[9, 10]]}},
            None,
            [],
        ),
        ("expect_column_values_to_be_null", {"column": "nme"}, None, []),
    ],
    ids=str,
)
def test_expectation_decides_and_names_offending_keys(
    name: str, arguments: dict[str, Any], where: str | None, offending: list[int | None] | None, tmp_path: Path
) -> None:
    expectation = ExpectationConfig(name=name, arguments=arguments, where=where)
    results = validate(rows_of(tmp_path), [expectation], 2**20).results()
    result = results[MUST]
    assert results.keys() == {MUST}
    assert result.passed is (offending is None)
    assert [
        None if row["id"] is None or row["id"] != row["id"] else int(row["id"]) for row in result.offending_keys
    ] == (offending or [])
    assert bool(result.details) is not result.passed
    assert not any("np." in line for line in result.details)
    if arguments.get("column") == "nme":
        assert "has no column 'nme'; did you mean name?" in result.details[0]


COMPARED = {
    "expect_column_values_to_not_be_null": [{"column": "id"}, {"column": "ratio"}],
    "expect_column_values_to_be_unique": [{"column": "id"}],
    "expect_compound_columns_to_be_unique": [{"column_list": ["id", "name"]}],
    "expect_column_values_to_be_between": [
        {"column": "price", "min_value": 2}, {"column": "day", "max_value": "2026-01-15"}, {"column": "ratio", "max_value": 1}
    ],
    "expect_column_values_to_be_in_set": [{"column": "name", "value_set": ["a", "zz"]}],
    "expect_column_values_to_match_regex": [{"column": "name", "regex": "^.$"}],
    "expect_column_max_to_be_between": [{"column": "day", "max_value": "2026-01-15"}, {"column": "price", "max_value": 4}],
    "expect_column_mean_to_be_between": [{"column": "ratio", "min_value": 1, "max_value": 2}],
    "expect_column_stdev_to_be_between": [{"column": "ratio", "min_value": 0.5, "max_value": 0.6}],
    "expect_column_distinct_values_to_be_in_set": [{"column": "name", "value_set": ["a"]}],
    "expect_table_row_count_to_equal": [{"value": 5}],
}  # fmt: skip


@pytest.mark.slow
@SPARK_TEST[0]
def test_verdicts_counts_and_rows_are_the_same_in_pandas_and_in_spark(tmp_path: Path, spark: Any) -> None:
    table = TableBuilder(tmp_path / "t", [*COLUMNS, Column(4, "day", "date"), Column(5, "ratio", "double")])
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 1), None, dt.date(2026, 2, 1)]
    price = pa.array(ROWS["price"]).cast(pa.decimal128(9, 2)).to_pylist()
    rows = ROWS | {"price": price, "day": days, "ratio": [1.0, float("nan"), None, 2.0]}
    table.commit(table.data(rows))
    table.commit(table.data({name: values[:1] for name, values in rows.items()}))
    given = RowsToCheck("t", open_table(str(table.metadata_path)).scan(), ("id",), None, lambda: spark)
    asked = [ExpectationConfig(name=n, arguments=a) for n, some in COMPARED.items() for a in some]
    small, large = (validate(given, asked, size) for size in (2**20, 1))

    def told(found: Found) -> tuple[str, bool, str, list[Any]]:
        counts = found.statement.partition(" do not")[0]  # the values that follow are in no certain order
        return (
            str(found.expectation),
            found.passed,
            counts.partition("observed")[0],
            sorted(str(r["id"]) for r in found.rows),
        )

    assert [told(found) for found in large.found] == [told(found) for found in small.found]
    assert 0 < sum(found.passed for found in small.found) < len(asked)


def test_rules_are_those_of_the_library(tmp_path: Path) -> None:
    library = importlib.import_module("great_expectations.expectations")
    base = importlib.import_module("great_expectations.expectations.expectation")
    ours_alone = {"row_condition", "condition_parser", "library_metadata", *base.BatchExpectation.__fields__}
    known = {
        base.camel_to_snake(name): made
        for name in dir(library)
        if isinstance(made := getattr(library, name), type)
        and issubclass(made, base.Expectation)
        and name != "Expectation"
    }
    assert known.keys() == expectation_rules().keys() | NOT_POSSIBLE.keys()
    for name, rule in expectation_rules().items():
        fields = {n: f for n, f in known[name].__fields__.items() if n not in ours_alone}
        assert rule.arguments.keys() == fields.keys(), name
        assert rule.required >= {n for n, f in fields.items() if f.required}, name


def test_schema_promises_columns_types_and_the_key(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    asked = expectations_of(PublishedChecksConfig(from_schema="warn"), rows.scan.schema, ("id",))
    result = validate(rows, asked, 2**20).results()[SHOULD]
    assert result.severity == "warn"
    assert not result.blocks
    assert [text.partition("(")[0] for text in result.details] == [
        "expect_column_values_to_not_be_null",
        "expect_column_values_to_be_unique",
    ]
    assert result.compared["expectations"] == 6


def test_rows_in_several_frames_have_one_result_with_their_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    for first in (1, 3, 5):
        table.commit(table.data({"id": [first, None], "name": ["a", "b"], "price": [None, None]}))
    scan = open_table(str(table.metadata_path)).scan()
    monkeypatch.setattr(expectations, "_PIECE_BYTES", 1)
    given = RowsToCheck("t", scan, ("id",), None, lambda: pytest.fail("no Spark for what holds row by row"))
    asked = ExpectationConfig(name="expect_column_values_to_not_be_null", arguments={"column": "id"})
    found = validate(given, [asked], 1)
    assert "3 of 6 rows do not" in found.found[0].statement
    ((document,), (one,)) = (found.documents, found.documents[0]["results"])
    assert (one["success"], one["result"]["element_count"], one["result"]["unexpected_percent"]) == (False, 6, 50.0)
    assert document["meta"]["great_expectations_version"]


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_schema_of_a_mirror_is_checked_without_being_asked_for(
    *, is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ShopProject(tmp_path)
    made.land_orders()
    run_once(made.config, tables=[ORDERS])
    if not is_installed:
        monkeypatch.setitem(sys.modules, "great_expectations", None)
    assert SHOULD in all_checks_of(made.config, ORDERS)
    (result,) = run_checks(made.config, ORDERS, [SHOULD])
    assert (result.passed, result.blocks) == (True, False)
    if is_installed:
        assert result.compared == {
            "expectations": 5,
            "rows": 6,
        }  # columns, three types, no NULL; another check has the key
    else:
        assert "not checked: " in result.details[0]
        assert "pip install 'nevermore-iceberg[checks]'" in result.details[0]
    made.path.write_text(
        made.path.read_text().replace("shop.orders:", "shop.orders:\n    checks: {from_schema: off}", 1)
    )
    assert not {MUST, SHOULD} & {*all_checks_of(made.config, ORDERS)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expect_column_values_to_be_betwen: {column: qty, min_value: 0}", "nevermore.yaml:7:11: .*did you mean 'expect_column_values_to_be_between'"),
        ("expect_column_values_to_be_null: {colum: qty}", "nevermore.yaml:7:45: .*no argument 'colum'; did you mean 'column'"),
        ("expect_column_values_to_be_null: {}", "nevermore.yaml:7:11: .*requires the argument 'column'"),
        ("expect_column_values_to_be_null: {column: a, mostly: 2}", "nevermore.yaml:7:56: .*from 0 to 1, not 2"),
        ("expect_column_values_to_be_between: {column: a}", "requires min_value, max_value or both"),
        ("expect_column_values_to_be_in_set: {column: a, value_set: x}", "value_set .*must be a list of values, not 'x'"),
        ("expect_multicolumn_sum_to_equal: {column_list: [a], sum_total: 1, ignore_row_if: no}", "all_values_are_missing or"),
        ("expect_column_values_to_match_like_pattern: {column: a, like_pattern: b}", "SQL databases only; use a regex"),
        ("{severity: warn}", "name one expectation per entry"),
        ("{expect_column_values_to_be_null: {column: a}, severity: of}", "severity: must be 'block' or 'warn', not 'of'"),
        ("{expect_column_values_to_be_null: {column: a}, where: 'a >'}", "nevermore.yaml:7: .*syntax error in the filter"),
    ],
)  # fmt: skip
def test_wrong_expectation_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        parse(f"{CONFIG}        - {text}\n")


def test_config_with_expectations_loads_without_the_library() -> None:
    text = f"{CONFIG}        - expect_column_values_to_be_null: {{column: a}}\n"
    code = f"import sys; from nevermore.pipelines.config.project import parse; parse({text!r}); print('great_expectations' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "orders.json cannot be read: No such file"),
        ("[]", "is not a suite of Great Expectations"),
        ('{"expectations": [{"type": "expect_nothing"}]}', "expectation 1: unknown expectation 'expect_nothing'"),
        (
            '{"expectations": [{"type": "expect_column_values_to_be_null", "kwargs": {"column": "a", "row_condition": "b>1"}}]}',
            "row_condition is not supported; declare it with where",
        ),
    ],
)
def test_suite_that_cannot_be_checked_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "orders.json").write_text(content)
    text = "tables:\n  shop.orders:\n    source: {path: x}\n    checks:\n      suite: orders.json\n"
    with pytest.raises(ConfigError, match=f"nevermore.yaml:5: .*{message}"):
        parse(text, tmp_path / "nevermore.yaml")


def test_suite_of_the_library_is_read_with_its_severities(tmp_path: Path) -> None:
    gx = importlib.import_module("great_expectations")
    kinds = gx.expectations
    suite = gx.ExpectationSuite(name="orders", expectations=[
        kinds.ExpectColumnValuesToBeBetween(column="amount", min_value=1, strict_min=True),
        kinds.ExpectColumnValuesToNotBeNull(column="day", severity="warning", mostly=0.9),
    ])  # fmt: skip
    (tmp_path / "orders.json").write_text(json.dumps(suite.to_json_dict()))
    text = "tables:\n  shop.orders:\n    source: {path: x}\n    checks: {suite: orders.json}\n"
    first, second = parse(text, tmp_path / "nevermore.yaml").tables[ORDERS].checks.expectations
    assert (str(first), first.severity) == (
        "expect_column_values_to_be_between(column='amount', min_value=1.0, strict_min=True)", "block"
    )  # fmt: skip
    assert (second.severity, second.is_row_wise, first.is_row_wise) == ("warn", False, True)


CHECKED = """types: {amount: double, day: date}
    checks:
      expectations:
        - expect_column_values_to_be_between: {column: amount, min_value: 20, max_value: 100}
        - expect_column_max_to_be_between: {column: day, max_value: 2026-02-01}
"""


@pytest.fixture
def project(tmp_path: Path) -> ShopProject:
    made = ShopProject(tmp_path)
    made.path.write_text(made.path.read_text().replace("types: {amount: double, day: date}", CHECKED))
    made.land_orders()
    run_once(made.config, tables=[ORDERS])
    return made


def expected(project: ShopProject, *, full: bool = False) -> Any:
    names = [name for name in all_checks_of(project.config, ORDERS) if name == MUST]
    (result,) = run_checks(project.config, ORDERS, names, full=full)
    return result


def test_only_rows_that_changed_since_the_last_good_snapshot_are_checked(project: ShopProject) -> None:
    first = expected(project)
    assert first.passed
    assert first.compared["rows"] == 6
    assert "changed rows" not in first.compared
    project.land("orders", "3.jsonl", [event("c", "orders", after=order(8, 7.0, 2))])
    run_once(project.config, tables=[ORDERS])
    second = expected(project)
    assert not second.passed
    assert second.compared == {"expectations": 8, "changed rows": 1, "rows": 7}
    assert second.offending_keys == [{"id": 8, "amount": 7.0}]
    assert "of the rows that changed since snapshot" in second.details[0]
    # the snapshot with the wrong row is no start for the next one, which must not be believed to be right
    project.land("orders", "4.jsonl", [event("c", "orders", after=order(9, 50.0, 2))])
    run_once(project.config, tables=[ORDERS])
    third = expected(project)
    assert third.compared["changed rows"] == 2
    assert [row["id"] for row in third.offending_keys] == [8]
    assert "changed rows" not in expected(project, full=True).compared


def test_results_are_kept_for_the_snapshot_and_for_these_expectations_only(project: ShopProject) -> None:
    assert expected(project).passed
    kept = list(project.folder.rglob(f"{KIND}*"))
    assert len(kept) == 1
    assert expected(project) == expected(project)
    assert [*project.folder.rglob(f"{KIND}*")] == kept
    project.path.write_text(project.path.read_text().replace("max_value: 100", "max_value: 50"))
    assert [row["id"] for row in expected(project).offending_keys] == [6, 7]


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("timestamptz", "2026-01-31 12:00:00", dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)),
        ("timestamptz", dt.date(2026, 1, 31), dt.datetime(2026, 1, 31, tzinfo=dt.UTC)),
        ("timestamp", dt.date(2026, 1, 31), dt.datetime(2026, 1, 31)),  # noqa: DTZ001 - a column without a zone
        ("date", "2026-01-31 12:00:00", dt.date(2026, 1, 31)),
        ("date", "no date", "no date"),
    ],
)
def test_bounds_without_a_zone_are_in_utc_wherever_the_check_runs(kind: str, given: Any, expected: Any) -> None:
    schema = Schema(0, (NestedField(1, "at", PrimitiveType(kind)),))
    arguments = {"column": "at", "min_value": given}
    asked = ExpectationConfig(name="expect_column_values_to_be_between", arguments=arguments, severity="block")
    assert _with_typed_bounds(asked, schema, "all").arguments["min_value"] == expected
