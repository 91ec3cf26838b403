"""A table as a LazyFrame: the same rows as Polars finds in memory, less read."""

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nevermore.scan_core import EvaluationError, MissingFileError, Scan, open_table
from nevermore.scan_core.foreign.pushdown import Translation
from nevermore.scan_core.polars import conjuncts, translate
from tests.scan_core.foreign.typed_table import NAN, VALUES, typed_scan
from tests.scan_core.small_scans import COLUMNS, rows, scan_of, with_deletes
from tests.support.table_builder import TableBuilder

pl = pytest.importorskip("polars")
pytest.importorskip("cloudpickle")
col = pl.col

from nevermore.scan_core.polars import scan_iceberg  # noqa: E402  # it needs Polars

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
OPERATORS["eq_missing"] = lambda left, right: left.eq_missing(right)
OPERATORS["ne_missing"] = lambda left, right: left.ne_missing(right)


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> Scan:
    return typed_scan(tmp_path_factory.mktemp("typed") / "t")


@pytest.fixture(scope="module")
def frame(scan: Scan) -> Any:
    return scan.to_polars()


@pytest.fixture(scope="module")
def lazy(scan: Scan) -> Any:
    return scan_iceberg(scan)


def agree(lazy: Any, frame: Any, expression: Any) -> None:
    found = lazy.filter(expression).select("n").collect()["n"].to_list()
    assert found == frame.filter(expression)["n"].to_list(), str(expression)


def pushed(scan: Scan, lazy: Any, expression: Any) -> list[str] | None:
    """The conditions that a scan takes over, once Polars has brought them to one type; None if some are left."""
    seen: list[Any] = []

    def source(_columns: Any, predicate: Any, *_: Any) -> Any:
        seen.append(predicate)
        return iter([pl.DataFrame(schema=lazy.collect_schema())])

    pl.io.plugins.register_io_source(source, schema=lazy.collect_schema()).filter(expression).collect()
    narrowed = Translation(scan, conjuncts(seen[0].meta.serialize(format="json")), translate)
    return None if narrowed.left else [str(predicate) for predicate in narrowed.scan.predicates]


@pytest.mark.parametrize("name", sorted(set(VALUES) - {"st"}))
def test_comparisons_find_the_rows_that_polars_finds(lazy: Any, frame: Any, name: str) -> None:
    for value in VALUES[name]:
        for compare in OPERATORS.values():
            condition = compare(col(name), value)
            agree(lazy, frame, condition)
            agree(lazy, frame, ~condition)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_null_tests_sets_and_ranges_find_the_rows_that_polars_finds(lazy: Any, frame: Any, name: str) -> None:
    column = col(name)
    conditions = [column.is_null(), column.is_not_null()]
    if name in {"f", "d"}:
        conditions += [column.is_nan(), column.is_not_nan(), column.is_infinite()]
    if name != "st":
        low, high = VALUES[name][0], VALUES[name][1]
        for members in ([low, high], [low, None], [None], []):
            series = pl.Series(members, dtype=frame.schema[name])
            conditions += [column.is_in(series), column.is_in(series, nulls_equal=True)]
    if name not in {"st", "b"}:
        conditions += [
            column.is_between(pl.lit(low), pl.lit(high), closed=c) for c in ("both", "left", "right", "none")
        ]
    for condition in conditions:
        agree(lazy, frame, condition)
        agree(lazy, frame, ~condition)


@pytest.mark.parametrize(
    ("expression", "where"),
    [
        ((col("i") > 1) & (col("s") == "a"), ["i > 1", "s = 'a'"]),
        ((col("i") > 1) | ~(col("s") == "a"), ["i > 1 or s <> 'a'"]),
        (pl.lit(5) < col("l"), ["l > 5"]),
        (col("d") >= 2.5, ["d >= 2.5D"]),
        (col("f") > 0.1, ["f > 0.10000000149011612D"]),
        (col("d").is_nan(), ["d = double('nan')"]),
        (col("b"), ["b"]),
        (~col("b"), ["not b"]),
        (col("st").struct.field("a") > 1, ["st.a > 1"]),
        (col("a.b") == 2, ["`a.b` = 2"]),
        (col("s").str.starts_with("a'"), ["startswith(s, 'a\\'')"]),
        (col("s").is_in(["a", "b"]), ["s in ('a', 'b')"]),
        (col("i").is_between(1, 3, closed="left"), ["i >= 1 and i < 3"]),
        (col("dec") > 1, ["dec > 1.00"]),
        (col("s").eq_missing("a"), ["s <=> 'a'"]),
        (col("d") > NAN, None),
        (col("i") > 1.5, None),
        (col("i") % 2 == 0, None),
        (col("l") > col("i"), None),
        (col("s").str.contains("b"), None),
        (col("s").is_in(["a", None]), None),
        (col("b") ^ (col("i") > 1), None),
        (col("s").cast(pl.Categorical) == "a", None),
    ],
    ids=str,
)
def test_conditions_are_pushed_down_or_left_to_polars(
    scan: Scan, lazy: Any, frame: Any, expression: Any, where: list[str] | None
) -> None:
    found = pushed(scan, lazy, expression)
    assert found == where
    agree(lazy, frame, expression)
    agree(lazy, frame, expression & (col("n") > 60))


@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_functions_in_python_are_left_to_polars(lazy: Any, frame: Any) -> None:
    agree(lazy, frame, col("n").map_elements(lambda n: n % 2 == 0, return_dtype=pl.Boolean) & (col("i") > 0))


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize(
    "query",
    [
        lambda t: t.head(3),
        lambda t: t.head(7).filter(col("i") > 0),
        lambda t: t.filter(col("i") > 0).head(7),
        lambda t: t.filter(col("i") % 2 == 0).head(7),
        lambda t: t.slice(5, 7).filter(col("s") == "a"),
        lambda t: t.tail(3).select("n"),
        lambda t: t.select(pl.len()),
        lambda t: t.filter(col("s") == "a").select(pl.len()),
        lambda t: t.select(col("i") + 1, "st"),
        lambda t: t.filter(col("i") > 0).group_by("s", maintain_order=True).agg(col("dec").sum()),
        lambda t: t.join(t.filter(col("n") < 20).select("s", other="n"), on="s").sort("n", "other"),
        lambda t: t.filter(col("n").is_in(t.filter(col("i") == 2).select("l").collect()["l"].to_list())),
        lambda t: t.sort("d", "n", descending=True, nulls_last=True).head(5),
    ],
)
def test_queries_answer_as_over_the_rows_in_memory(
    lazy: Any, frame: Any, query: Callable[[Any], Any], engine: str
) -> None:
    found = query(lazy).collect(engine=engine)
    assert found.equals(query(frame.lazy()).collect(engine=engine))


def test_files_without_matching_rows_are_not_opened(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    low, high = table.data(rows(range(10))), table.data(rows(range(10, 20)))
    table.commit(low, high)
    (tmp_path / "t" / "data" / Path(high.record["file_path"]).name).unlink()
    lazy = scan_iceberg(table.metadata_path)
    assert lazy.filter(col("id") < 5).select("name").collect().height == 5
    assert lazy.head(3).collect().height == 3
    with pytest.raises(MissingFileError, match="cannot open"):
        lazy.collect()


def test_the_snapshot_is_fixed_and_options_are_passed_on(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    table.ref("audit", 1001)
    lazy = scan_iceberg(scan_of(table).at_ref("audit").select("id"))
    assert lazy.collect().height == 10
    assert lazy.collect_schema() == {"id": pl.Int64}
    opened = open_table(table.metadata_path)
    assert scan_iceberg(opened).collect().height == scan_iceberg(str(table.metadata_path), relocate={}).collect().height
    assert "scan_iceberg" in lazy.explain()
    assert str(tmp_path) in lazy.explain()


def test_a_failing_scan_fails_the_query_with_its_message(scan: Scan) -> None:
    with pytest.raises(EvaluationError, match="division by zero"):
        scan_iceberg(scan.where("1 / (n - 7) > 5")).collect()
    with pytest.raises(EvaluationError, match="division by zero"):
        scan.where("1 / (n - 7) > 5").to_polars()
