"""Writing, compaction, sorting and conversion keep the rows of columns of every type, in both format versions."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.changes.row_order import Order
from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.catalog import create_table
from nevermore.pipelines.iceberg.commit import RowDelta, upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.iceberg.row_shape import without_extensions
from nevermore.pipelines.iceberg.schema_evolution import evolve
from nevermore.pipelines.iceberg.table_writer import check_key, write_deletes, write_rows
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.scan_core.model.schema import NestedField, arrow_type, parse_type
from tests.pipelines.iceberg_tables import catalog_in, reloaded

PLAIN: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-(2**31), 0, 2**31 - 1, 7],
    "long": [-(2**63), 0, 2**63 - 1, 7],
    "float": [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1.5],
    "double": [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1.5],
    "decimal(9, 2)": [Decimal("-1.20"), Decimal("9999999.99"), Decimal("0.00")],
    "decimal(18, 0)": [Decimal(-(10**18) + 1), Decimal(7)],
    "decimal(38, 10)": [Decimal("-1.2000000000"), Decimal("9" * 28 + "." + "9" * 10)],
    "date": [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    "time": [time(0), time(23, 59, 59, 999999)],
    "timestamp": [datetime(1, 1, 1), datetime(2026, 1, 2, 3, 4, 5, 6)],  # noqa: DTZ001 - Iceberg's timestamp has no zone
    "timestamptz": [datetime(1969, 12, 31, 23, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)],
    "string": ["", "a", "é" * 40, "a\x00b", "😀"],
    "uuid": [bytes(16), bytes(range(16)), b"\xff" * 16],
    "fixed[5]": [b"\0\0\0\0\0", b"abcde"],
    "binary": [b"", b"\x00", b"\xff" * 30],
}
NANOS: dict[str, list[Any]] = {"timestamp_ns": [0, 1, 10**18 + 1], "timestamptz_ns": [0, 1, 10**18 + 1]}
"""Types of format version 3 alone, as counts, because Python's times have no nanoseconds."""
INEXACT = {"float", "double"}
"""Types that Iceberg forbids in keys."""


def _list(element: Any) -> dict[str, Any]:
    return {"type": "list", "element-id": 10, "element": element}


def _map(key: Any, value: Any, first: int = 20) -> dict[str, Any]:
    return {"type": "map", "key-id": first, "key": key, "value-id": first + 1, "value": value}


def _struct(**members: Any) -> dict[str, Any]:
    fields = [{"id": i, "name": name, "type": kind} for i, (name, kind) in enumerate(members.items(), start=30)]
    return {"type": "struct", "fields": fields}


NESTED: dict[str, tuple[Any, list[Any]]] = {
    "list": (_list("string"), [[], ["a", None], ["b"], ["c", "d", "e"]]),
    "list of uuids": (_list("uuid"), [[], [bytes(16), None]]),
    "map": (_map("string", "long"), [[], [("a", 1)], [("b", None), ("c", 3)]]),
    "map of uuids": (_map("uuid", "uuid"), [[], [(bytes(16), None)], [(bytes(range(16)), bytes(16))]]),
    "map of maps": (_map("int", _map("int", "double", 40)), [[], [(1, [(2, 2.5)]), (3, [])], [(4, None)]]),
    "map of lists": (_map("string", _list("date")), [[("a", [date(2026, 1, 1), None])], [("b", []), ("c", None)]]),
    "list of maps": (_list(_map("string", "int")), [[[("a", 1)], None, []], [], [[("b", 2), ("c", None)]]]),
    "struct": (_struct(a="uuid", b="decimal(9, 2)"), [{"a": bytes(16), "b": None}, {"a": None, "b": Decimal("1.00")}]),
    "struct of maps": (_struct(m=_map("string", "int"), d="date"), [{"m": [("a", 1)], "d": None}, {"m": None}]),
    "list of structs": (_list(_struct(m=_map("int", "string"))), [[{"m": [(1, "a")]}, None], [], [{"m": []}]]),
}


def _columns(version: int) -> Iterator[tuple[str, Any, list[Any]]]:
    for name, values in (PLAIN | (NANOS if version == 3 else {})).items():
        yield name, name, values
    for name, (kind, values) in NESTED.items():
        yield name, kind, values


CASES = [pytest.param(v, kind, values, id=f"v{v} {name}") for v in (2, 3) for name, kind, values in _columns(v)]
KEYS = [
    pytest.param(v, kind, values, id=f"v{v} {name}")
    for v in (2, 3)
    for name, kind, values in _columns(v)
    if name in (PLAIN | NANOS)
]


def _new_table(folder: Path, version: int, kind: Any) -> Any:
    catalog = catalog_in(folder)
    create_table(catalog, "shop.t", [NestedField(1, "id", parse_type("long"))])
    if version > 2:
        upgrade(reloaded(catalog), version)
    delta = RowDelta(reloaded(catalog))
    wanted = [NestedField(1, "id", parse_type("long")), NestedField(2, "v", parse_type(kind))]
    delta.evolve(evolve(delta.schema, wanted, 1).schema)
    delta.commit([], {})
    return catalog


def _rows(kind: Any, values: list[Any], count: int) -> pa.Table:
    given = list(islice(cycle([*values, None]), count))
    return pa.table({"id": pa.array(range(count), pa.int64()), "v": pa.array(given, arrow_type(parse_type(kind)))})


def _upsert(catalog: Any, rows: pa.Table, keys: pa.Table, key: str = "id") -> None:
    delta = RowDelta(reloaded(catalog))
    spec = delta.unpartitioned_spec()
    files = write_deletes(keys.select([key]), delta.target, spec, check_key(delta.schema, (key,)))
    delta.commit([*files, *write_rows(rows, delta.target, delta.default_spec)], {})


def _spelled(rows: pa.Table) -> list[str]:
    """Rows as text in order: NaN is not equal to itself, but its text is, and zeros keep their sign."""
    return sorted(repr(row) for row in without_extensions(rows).to_pylist())


def _live(catalog: Any) -> list[str]:
    """The rows, on which the reference and the engine agree."""
    table = reloaded(catalog)
    found = _spelled(live_rows(table.metadata_location.removeprefix("file://")))
    assert _spelled(scan_core.open_table(table).scan().to_table()) == found
    return found


@pytest.mark.each(54)
@pytest.mark.parametrize(("version", "kind", "values"), CASES)
def test_maintenance_keeps_the_values_of_every_type(tmp_path: Path, version: int, kind: Any, values: list[Any]) -> None:
    catalog = _new_table(tmp_path, version, kind)
    rows = _rows(kind, values, 57)
    for start in range(0, 50, 10):
        part = rows.slice(start, 17)  # a slice, as parts of larger batches are
        _upsert(catalog, part, part)
    _upsert(catalog, rows.slice(0, 0), rows.slice(3, 5))
    expected = _spelled(pa.concat_tables([rows.slice(0, 3), rows.slice(8)]))
    assert _live(catalog) == expected
    assert convert(reloaded(catalog)).snapshot_id
    assert _live(catalog) == expected
    _upsert(catalog, rows.slice(20, 2), rows.slice(20, 2))
    assert compact(reloaded(catalog), CompactSettings(rewrite_all=True)).has_changed
    assert _live(catalog) == expected
    _upsert(catalog, rows.slice(30, 7), rows.slice(30, 7))
    assert compact(reloaded(catalog), CompactSettings(rewrite_all=True, order=Order(("id",)))).has_changed
    assert _live(catalog) == expected


@pytest.mark.each(44)
@pytest.mark.parametrize(("version", "kind", "values"), KEYS)
def test_maintenance_applies_deletes_by_keys_of_every_type(
    tmp_path: Path, version: int, kind: Any, values: list[Any]
) -> None:
    catalog = _new_table(tmp_path, version, kind)
    rows = _rows(kind, values, len(values))
    if kind in INEXACT:
        with pytest.raises(SchemaConflictError, match="'v'"):
            _upsert(catalog, rows, rows, "v")
        return
    for _ in range(2):
        _upsert(catalog, rows, rows, "v")
    _upsert(catalog, rows.slice(0, 0), rows.slice(1, 1), "v")
    expected = _spelled(pa.concat_tables([rows.slice(0, 1), rows.slice(2)]))
    assert _live(catalog) == expected
    assert convert(reloaded(catalog)).snapshot_id
    assert _live(catalog) == expected
    _upsert(catalog, rows.slice(1), rows.slice(1), "v")
    _upsert(catalog, rows.slice(0, 0), rows.slice(0, 1), "v")
    assert compact(reloaded(catalog), CompactSettings(rewrite_all=True, order=Order(("v",)))).has_changed
    assert _live(catalog) == _spelled(rows.slice(1))


@pytest.mark.each(2)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", sorted(INEXACT))
def test_maintenance_applies_deletes_by_floats_of_others(tmp_path: Path, kind: str, version: int) -> None:
    """Iceberg forbids floats in identifiers, but not in equality deletes, where NaN is NaN and the zeros differ or not."""
    catalog = _new_table(tmp_path, version, kind)
    values = [*PLAIN[kind], None]
    rows = _rows(kind, values, 2 * len(values))
    _upsert(catalog, rows, rows.slice(0, 0))
    for place in (0, 1, 6):  # NaN, -0.0 and NULL
        delta = RowDelta(reloaded(catalog))
        keys = rows.slice(place, 1).select(["v"])
        delta.commit(write_deletes(keys, delta.target, delta.unpartitioned_spec(), (2,)), {})
    expected = _live(catalog)
    assert len(expected) < rows.num_rows
    assert not any("nan" in row or "None" in row for row in expected)
    assert convert(reloaded(catalog)).snapshot_id
    assert _live(catalog) == expected
    assert compact(reloaded(catalog), CompactSettings(rewrite_all=True)).has_changed
    assert _live(catalog) == expected
