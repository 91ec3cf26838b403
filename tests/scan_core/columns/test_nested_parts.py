"""Parts of lists, maps and structs: only their leaf columns are read, with the values of the whole column."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.model.errors import ColumnNotFoundError, EvaluationError
from tests.support.iceberg_json import Column, list_of, map_of, struct
from tests.support.table_builder import TableBuilder

COLUMNS = [
    Column(1, "id", "long"),
    Column(2, "l", list_of(3, struct(Column(4, "a", "int"), Column(5, "b", "string")))),
    Column(6, "m", map_of(7, "string", 8, struct(Column(9, "p", "int"), Column(10, "q", "string")))),
    Column(11, "s", struct(Column(12, "x", "string"), Column(13, "y", "int"), Column(14, "w", list_of(15, "string")))),
]
ELEMENTS: list[Any] = [None, {"a": None, "b": "none"}, {"a": 1, "b": None}, {"a": 2, "b": "two"}]
LISTS = st.none() | st.lists(st.sampled_from(ELEMENTS), max_size=3)
VALUES = st.none() | st.fixed_dictionaries({"p": st.none() | st.integers(0, 2), "q": st.none() | st.just("q")})
MAPS = st.none() | st.dictionaries(st.sampled_from("kz"), VALUES).map(lambda d: list(d.items()))
STRUCTS = st.none() | st.fixed_dictionaries(
    {
        "x": st.none() | st.just("x"),
        "y": st.none() | st.integers(0, 2),
        "w": st.none() | st.lists(st.none() | st.just("w"), max_size=2),
    }
)


def element(row: Any, at: int = 0) -> Any:
    return row["l"][at] if row["l"] and at < len(row["l"]) else None


def value(row: Any) -> Any:
    return dict(row["m"] or []).get("k")


def member(of: Any, name: str) -> Any:
    return None if of is None else of[name]


FILTERS: dict[str, Any] = {
    "size(l) > 1": lambda r: len(r["l"] or []) > 1,
    "l is null": lambda r: r["l"] is None,
    "get(l, 0) is null and size(l) = 1": lambda r: r["l"] is not None and len(r["l"]) == 1 and element(r) is None,
    "try_element_at(l, 1).a = 1": lambda r: member(element(r), "a") == 1,
    "get(l, 0).a = 1 or get(l, 1).b = 'two'": lambda r: (
        member(element(r), "a") == 1 or member(element(r, 1), "b") == "two"
    ),
    "get(l, 0).a = 1 and size(l) = 1": lambda r: member(element(r), "a") == 1 and len(r["l"]) == 1,
    "array_contains(l.b, 'two')": lambda r: any(member(e, "b") == "two" for e in r["l"] or []),
    "size(l.a) = 2": lambda r: len(r["l"] or []) == 2,
    "m['k'].p = 1": lambda r: member(value(r), "p") == 1,
    "m['k'] is null": lambda r: value(r) is None,
    "m['k'].p is null and m is not null": lambda r: r["m"] is not None and member(value(r), "p") is None,
    "map_contains_key(m, 'k') and size(m) = 1": lambda r: [k for k, _ in r["m"] or []] == ["k"],
    "m is null or m['k'].q = 'q'": lambda r: r["m"] is None or member(value(r), "q") == "q",
    "s is null": lambda r: r["s"] is None,
    "s is null or s.y = 1": lambda r: r["s"] is None or r["s"]["y"] == 1,
    "s.w is null": lambda r: member(r["s"], "w") is None,
    "size(s.w) = 1 and s.x is null": lambda r: (
        r["s"] is not None and r["s"]["x"] is None and len(r["s"]["w"] or []) == 1
    ),
}
PARTS: dict[str, Any] = {
    "l.a": lambda r: None if r["l"] is None else [member(e, "a") for e in r["l"]],
    "l.b": lambda r: None if r["l"] is None else [member(e, "b") for e in r["l"]],
    "get(l, 0)": element,
    "get(l, 0).a": lambda r: member(element(r), "a"),
    "get(l, 1).a": lambda r: member(element(r, 1), "a"),
    "m['k']": value,
    "m['k'].p": lambda r: member(value(r), "p"),
    "m['k'].q": lambda r: member(value(r), "q"),
    "m.z.p": lambda r: member(dict(r["m"] or []).get("z"), "p"),
    "get(s.w, 0)": lambda r: (member(r["s"], "w") or [None])[0],
}


def rows_as_columns(rows: list[Any]) -> dict[str, Any]:
    return {"id": range(len(rows)), **{name: [row[name] for row in rows] for name in "lms"}}


@pytest.mark.each(3)
@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.fixed_dictionaries({"l": LISTS, "m": MAPS, "s": STRUCTS}), min_size=1, max_size=12),
    where=st.sampled_from(sorted(FILTERS)),
    also=st.sampled_from(sorted(FILTERS)),
    parts=st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4, unique=True),
    whole=st.sets(st.sampled_from("lms")),
)
def test_parts_are_those_of_the_whole_column(
    tmp_path_factory: pytest.TempPathFactory,
    file_format: str,
    rows: list[Any],
    where: str,
    also: str,
    parts: list[str],
    whole: set[str],
) -> None:
    if file_format == "orc":
        # Below a struct that is NULL, pyarrow's ORC writer shifts the values of its members (Spark reads them so, too).
        rows = [
            {
                "l": row["l"] and [e or {"a": None, "b": None} for e in row["l"]],
                "m": row["m"] and [(k, v or {"p": None, "q": None}) for k, v in row["m"]],
                "s": row["s"] or {"x": None, "y": None, "w": None},
            }
            for row in rows
        ]
    table = TableBuilder(tmp_path_factory.mktemp("t") / "t", COLUMNS)
    options = {"row_group_size": 5, "max_rows_per_page": 2} if file_format == "parquet" else {}
    table.commit(table.data(rows_as_columns(rows), file_format=file_format, **options))
    chosen = ["id", *parts, *sorted(whole)]
    kept = [i for i, row in enumerate(rows) if FILTERS[where](row) and FILTERS[also](row)]
    expected = {
        name: [i if name == "id" else PARTS.get(name, lambda r, n=name: r[n])(rows[i]) for i in kept] for name in chosen
    }
    scan = scan_core.open_table(table.metadata_path).scan().select(*chosen).where(where).where(also)
    for switches in (
        ScanOptions(),
        ScanOptions.without_optimisations(),
    ):
        assert scan.with_options(switches).to_table().to_pydict() == expected, switches


BIG = [
    {
        "l": [{"a": i % 7, "b": "b" * 50 + str(i)}] * (i % 3),
        "m": [("k", {"p": i % 3, "q": "q" * 50 + str(i)})][: i % 2],
        "s": None if i % 5 == 0 else {"x": "x" * 50 + str(i), "y": i % 4, "w": [f"word {i}"]},
    }
    for i in range(5000)
]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> TableBuilder:
    table = TableBuilder(tmp_path_factory.mktemp("big") / "t", COLUMNS)
    table.commit(table.data(rows_as_columns(BIG)))
    return table


def sizes(table: TableBuilder) -> dict[str, int]:
    data = pq.ParquetFile(next(Path(table.location, "data").glob("*.parquet")))
    chunks = [data.metadata.row_group(0).column(i) for i in range(data.metadata.num_columns)]
    return {re.sub(r"\.(list|key_value)\b", "", c.path_in_schema): c.total_compressed_size for c in chunks}


@pytest.mark.parametrize(
    ("where", "leaves"),
    [
        ("try_element_at(l, 1).a = 1", ["l.element.a"]),
        ("size(l) > 1", ["l.element.a"]),
        ("l is null", ["l.element.a"]),
        ("s is null", ["s.y"]),
        ("s is not null and s.y is null", ["s.y"]),
        ("m['k'].p = 1", ["m.key", "m.value.p"]),
        ("m['k'] is null", ["m.key", "m.value.p"]),
        ("size(m) = 1", ["m.key"]),
        ("array_contains(l.a, 3)", ["l.element.a"]),
        ("get(l, 0).b like '%7' and size(l) = 1", ["l.element.a", "l.element.b"]),
    ],
)
def test_filter_reads_the_leaves_it_needs(big: TableBuilder, where: str, leaves: list[str]) -> None:
    size = sizes(big)
    assert size["m.key"] < size["m.value.p"], "the cheapest leaf of the map is its key"
    scan = scan_core.open_table(big.metadata_path).scan().where(where)
    count = scan.count()
    read = scan.metrics.bytes_read
    # a struct that must be there and its member are separate columns, each read once
    assert sum(size[leaf] for leaf in leaves) <= read <= 2 * sum(size[leaf] for leaf in leaves)
    assert scan.with_options(ScanOptions.without_optimisations()).count() == count


@pytest.mark.parametrize(
    ("part", "leaves"),
    [
        ("l.a", ["l.element.a"]),
        ("get(l, 0).a", ["l.element.a"]),
        ("m['k'].p", ["m.key", "m.value.p"]),
        ("m['k']", ["m.key", "m.value.p", "m.value.q"]),
    ],
)
def test_selected_part_reads_the_leaves_it_needs(big: TableBuilder, part: str, leaves: list[str]) -> None:
    size = sizes(big)
    scan = scan_core.open_table(big.metadata_path).scan().select(part)
    table = scan.to_table()
    assert table.column(part).to_pylist() == list(map(PARTS[part], BIG))
    assert scan.metrics.bytes_read == sum(size[leaf] for leaf in leaves)


def test_mistakes_are_named(big: TableBuilder) -> None:
    scan = scan_core.open_table(big.metadata_path).scan()
    with pytest.raises(ColumnNotFoundError, match="no member 'c' of the elements; they have a, b"):
        scan.select("l.c")
    with pytest.raises(ColumnNotFoundError, match=r"no column 'size\(l\)'"):
        scan.select("size(l)")
    with pytest.raises(ColumnNotFoundError, match="selected twice"):
        scan.select("l.a", "l.a")
    with pytest.raises(EvaluationError, match=r"a position outside the list in: l\[0\]; .*get\(\) give NULL"):
        scan.select("l[0]").to_table()


def test_part_of_a_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS[:1])
    table.commit(table.data({"id": [1, 2]}))
    table.evolve(*COLUMNS)
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.select("l.a", "m['k'].p").to_table().to_pylist() == [{"l.a": None, "m['k'].p": None}] * 2
    assert scan.where("get(l, 0).a is null").count() == 2


def test_dropped_members_are_not_read(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(table.data(rows_as_columns(BIG)))
    table.evolve(COLUMNS[0], Column(2, "l", list_of(3, struct(Column(4, "a", "int")))))
    scan = scan_core.open_table(table.metadata_path).scan().select("l")
    expected = pa.array([[{"a": e["a"]} for e in row["l"]] for row in BIG])
    assert scan.to_table().column("l").to_pylist() == expected.to_pylist()
    assert scan.metrics.bytes_read == sizes(table)["l.element.a"]
