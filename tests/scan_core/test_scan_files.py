"""Files that differ from the table's schema, or are damaged or missing."""

import datetime as dt
import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import (
    MalformedTableError,
    UnsupportedError,
)
from tests.scan_core.small_scans import COLUMNS, rows, rows_of, scan_of
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.table_builder import TableBuilder


def test_uuids_are_arrow_uuids_at_every_depth(tmp_path: Path) -> None:
    value = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    columns = (Column(1, "u", "uuid"), Column(2, "f", "fixed[16]"), Column(3, "s", struct(Column(4, "x", "uuid"))))
    table = TableBuilder(tmp_path, columns)
    stored = pa.table(
        {
            "u": pa.array([value.bytes], pa.binary(16)),
            "f": pa.array([value.bytes], pa.binary(16)),
            "s": pa.array([{"x": value.bytes}], pa.struct([("x", pa.binary(16))])),
        }
    )
    table.commit(table.data(stored))
    scan = scan_of(table)
    assert scan.to_table().to_pylist() == [{"u": value, "f": value.bytes, "s": {"x": value}}]
    assert scan.arrow_schema.field("u").type == pa.uuid()
    assert scan.to_table().schema == scan.arrow_schema


@pytest.mark.parametrize("kind", ["geometry", "geography"])
def test_unsupported_types_are_named_and_other_columns_readable(tmp_path: Path, kind: str) -> None:
    table = TableBuilder(tmp_path, [Column(1, "id", "long")], version=3)
    table.commit(table.data({"id": [1, 2]}))
    document = table.document()
    document["schemas"][0]["fields"].append({"id": 2, "name": "odd", "type": kind, "required": False})
    table.metadata_path.write_text(__import__("json").dumps(document))
    scan = scan_of(table)
    with pytest.raises(UnsupportedError, match=rf"column 'odd': type {kind} is not supported; select others \(id\)"):
        scan.to_table()
    assert rows_of(scan.select("id")) == [(1,), (2,)]
    assert scan.select("id").count() == 2


def test_name_mapping_reads_files_without_ids(tmp_path: Path) -> None:
    mapping = '[{"field-id": 1, "names": ["old_id"]}, {"field-id": 2, "names": ["name"]}]'
    table = TableBuilder(tmp_path, COLUMNS, properties={"schema.name-mapping.default": mapping})
    stored = pa.table({"old_id": [1, 2], "name": ["a", "b"]})
    named = (Column(1, "old_id", "long"), Column(2, "name", "string"))
    table.commit(table.data(stored, columns=named, field_ids=False))
    table.commit(table.equality_delete({"id": [1]}, ids=[1]))
    assert rows_of(scan_of(table)) == [(2, "b", None)]


def test_rule_16_migrated_partition_column_and_defaults(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3, partitions=[Partition("qty", 3)])
    table.commit(table.data({"id": [1], "name": ["a"]}, partition={"qty": 7}))
    table.evolve(*COLUMNS, Column(4, "added", "string", required=True, initial_default="x"))
    assert rows_of(scan_of(table)) == [(1, "a", 7, "x")]
    assert scan_of(table).where("qty = 7 and added = 'x'").count() == 1
    assert scan_of(table).where("qty = 8").count() == 0


def test_deletes_by_a_key_that_a_file_lacks_use_its_constant(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data({"id": [1, 2], "name": ["a", "b"]}))
    table.commit(table.equality_delete({"qty": [None]}, ids=[3]))
    assert scan_of(table).count() == 0


def test_rule_13_keys_and_predicates_of_promoted_columns(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "id", "int"), Column(2, "day", "date")], version=3)
    table.commit(table.data({"id": [1, 2], "day": [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]}))
    promoted = (Column(1, "id", "long"), Column(2, "day", "timestamp"))
    table.evolve(*promoted)
    table.commit(table.equality_delete({"id": [2**32 + 1, 2]}, ids=[1]))
    assert rows_of(scan_of(table)) == [(1, dt.datetime(2020, 1, 1))]  # noqa: DTZ001
    assert scan_of(table).where("day >= timestamp_ntz '2020-01-01 00:00:00' and id = 1").count() == 1


def test_missing_required_column_and_truncated_files_name_the_file(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "a", COLUMNS)
    table.commit(table.data({"id": [1]}))
    table.evolve(*COLUMNS[:2], Column(9, "must", "string", required=True))
    with pytest.raises(MalformedTableError, match=r"00001-data\.parquet: lacks the required column 'must'"):
        scan_of(table).to_table()
    other = TableBuilder(tmp_path / "b", COLUMNS)
    file = other.data(rows(range(100)))
    other.commit(file)
    file.local.write_bytes(file.local.read_bytes()[:-20])
    with pytest.raises(MalformedTableError, match=r"data\.parquet"):
        scan_of(other).count()


def test_missing_data_file_is_named_and_stops_all_threads(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    files = [table.data(rows(range(100 * i, 100 * i + 100))) for i in range(6)]
    table.commit(*files)
    files[3].local.unlink()
    with pytest.raises(scan_core.MissingFileError, match=files[3].local.name):
        scan_of(table, parallelism=4, split_bytes=1).to_table()
    assert not [t for t in threading.enumerate() if t.name.startswith("scan-")]
