import datetime as dt
import errno
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from xxhash import xxh64_intdigest

from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.iceberg.table_writer import WriterOptions, WriteTarget, check_key, write_deletes, write_rows
from nevermore.scan_core import ContentFile, DeleteFile
from nevermore.scan_core.files.parquet.bloom import block_bits, parse_bloom_filter
from nevermore.scan_core.model.schema import NestedField, Schema, parse_type
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec

UNPARTITIONED = PartitionSpec(0, ())
COLUMNS = {"id": "long", "sku": "string", "day": "date", "price": "decimal(9,2)", "f": "double"}


def target_in(folder: Path, columns: dict[str, str] = COLUMNS, **options: Any) -> WriteTarget:
    fields = tuple(NestedField(i, n, parse_type(t)) for i, (n, t) in enumerate(columns.items(), start=1))
    return WriteTarget(Schema(0, fields), f"file://{folder}/data", Storage(), WriterOptions(**options))


def local(file: ContentFile) -> str:
    return file.path.removeprefix("file://")


def rows(count: int) -> pa.Table:
    days = [dt.date(2026, 1, 1 + i % 3) for i in range(count)]
    return pa.table({"day": days, "id": list(range(count, 0, -1)), "sku": [f"s{i:03}" for i in range(count)]})


def test_rows_are_written_with_field_ids_page_index_and_missing_columns_as_null(tmp_path: Path) -> None:
    (file,) = write_rows(rows(10), target_in(tmp_path, page_rows=4), UNPARTITIONED)
    footer = pq.read_metadata(local(file))
    arrow = footer.schema.to_arrow_schema()
    assert [int(f.metadata[b"PARQUET:field_id"]) for f in arrow] == [1, 2, 3, 4, 5]
    assert footer.row_group(0).column(0).has_column_index
    assert (file.record_count, file.file_size_bytes) == (10, Path(local(file)).stat().st_size)
    assert duckdb.sql(f"select count(*), count(price), sum(id) from '{local(file)}'").fetchall() == [(10, 0, 55)]


def test_rows_are_split_by_partition_in_order(tmp_path: Path) -> None:
    spec = PartitionSpec(3, (PartitionField(1000, 3, "day", "day"), PartitionField(1001, 1, "b", "bucket[2]")))
    files = write_rows(rows(30), target_in(tmp_path), spec)
    assert {f.spec_id for f in files} == {3}
    assert sum(f.record_count for f in files) == 30
    assert len({f.partition for f in files}) == len(files) == 6
    for file in files:
        found = pq.read_table(local(file))
        assert {(d - dt.date(1970, 1, 1)).days for d in found["day"].to_pylist()} == {file.partition[0]}
        assert found["id"].to_pylist() == sorted(found["id"].to_pylist(), reverse=True)


def test_large_partition_becomes_several_files(tmp_path: Path) -> None:
    files = write_rows(rows(1000), target_in(tmp_path, file_bytes=4096), UNPARTITIONED)
    assert len(files) > 3
    assert sum(f.record_count for f in files) == 1000


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert write_rows(rows(0), target_in(tmp_path), UNPARTITIONED) == []
    assert write_deletes(pa.table({"id": pa.array([], pa.int64())}), target_in(tmp_path), UNPARTITIONED, (1,)) == []


def test_rule_25_delete_file_holds_only_sorted_keys_with_bounds_and_counts(tmp_path: Path) -> None:
    keys = pa.table({"id": [5, 3, None, 9], "sku": ["b", "a", "c", None], "extra": [0, 0, 0, 0]})
    (file,) = write_deletes(keys, target_in(tmp_path), UNPARTITIONED, (2, 1))
    assert isinstance(file, DeleteFile)
    assert file.equality_ids == (1, 2)
    written = pq.read_table(local(file))
    assert written.column_names == ["id", "sku"]
    assert written["id"].to_pylist() == [3, 5, 9, None]
    assert file.null_value_counts == {1: 1, 2: 1}
    assert file.lower_bounds[1] == (3).to_bytes(8, "little")
    assert file.upper_bounds[2] == b"c"
    encodings = pq.read_metadata(local(file)).row_group(0).column(0).encodings
    assert "DELTA_BINARY_PACKED" in encodings
    assert not any("DICTIONARY" in e for e in encodings)


def test_rule_27_scoped_deletes_go_to_the_partition_of_their_key(tmp_path: Path) -> None:
    spec = PartitionSpec(0, (PartitionField(1000, 3, "day", "identity"),))
    keys = pa.table({"id": [1, 2, 3], "day": [dt.date(2026, 1, d) for d in (1, 2, 1)]})
    files = write_deletes(keys, target_in(tmp_path), spec, (1,))
    assert {(f.partition, f.record_count) for f in files} == {((20454,), 2), ((20455,), 1)}
    assert all(pq.read_schema(local(f)).names == ["id"] for f in files)


@pytest.mark.parametrize("kind", ["float", "double", {"type": "list", "element-id": 9, "element": "int"}])
def test_rule_25_illegal_key_types_are_refused(kind: Any) -> None:
    schema = Schema(0, (NestedField(1, "k", parse_type(kind)),))
    with pytest.raises(SchemaConflictError, match="cannot be keys"):
        check_key(schema, ["k"])


def test_unknown_key_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaConflictError, match="'ident'"):
        check_key(target_in(tmp_path).schema, ["ident"])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("boolean", [True, False, None]),
        ("int", [1, None]),
        ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        ("time", [dt.time(1, 2, 3, 4)]),
        ("timestamp", [dt.datetime(1, 1, 1), None]),  # noqa: DTZ001 - wall time
        ("timestamptz", [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
        ("string", ["", "\U0001f600", None]),
        ("binary", [b"", b"\x00\xff"]),
        ("fixed[3]", [b"abc", None]),
        ("uuid", [b"\x01" * 16]),
        ("decimal(38,10)", ["1.5", None]),
    ],
)
def test_deletes_of_every_legal_key_type_are_read_back(kind: str, values: Sequence[Any], tmp_path: Path) -> None:
    from nevermore.scan_core.model.schema import arrow_type

    arrow = arrow_type(parse_type(kind))
    array = pa.array(values).cast(arrow) if kind.startswith("decimal") else pa.array(values, arrow)
    (file,) = write_deletes(pa.table({"k": array}), target_in(tmp_path, {"k": kind}), UNPARTITIONED, (1,))
    found = pq.read_table(local(file))["k"].combine_chunks()
    storage = found.storage if isinstance(found, pa.ExtensionArray) else found
    assert sorted(storage.cast(arrow).to_pylist(), key=repr) == sorted(array.to_pylist(), key=repr)


def test_bloom_filters_of_keys_are_written_when_asked(tmp_path: Path) -> None:
    plain, with_filter = (
        write_rows(rows(5000), target_in(tmp_path, bloom_filters=wanted), UNPARTITIONED, key_ids=(1,))[0]
        for wanted in (False, True)
    )
    assert with_filter.file_size_bytes > plain.file_size_bytes + 4000


def test_bloom_filters_are_as_large_as_a_row_group_needs_and_hardly_ever_err(tmp_path: Path) -> None:
    """A row group of 50,000 rows, for which filters of one error in a hundred are the smallest."""
    absent = np.array([xxh64_intdigest(n.to_bytes(8, "little")) for n in range(10**6, 10**6 + 20_000)], np.uint64)
    target = target_in(tmp_path, bloom_filters=True, row_group_rows=50_000)
    (file,) = write_rows(rows(100_000), target, UNPARTITIONED, key_ids=(1,))
    stored = Path(local(file)).read_bytes()
    for group in range(2):
        chunk = pq.read_metadata(local(file)).row_group(group).column(0)
        found = parse_bloom_filter(stored[chunk.bloom_filter_offset :])
        assert found is not None
        assert found.blocks.nbytes == 128 * 1024
        places, bits = block_bits(absent, len(found.blocks))
        assert ((found.blocks[places] & bits) == bits).all(axis=1).mean() < 0.001


class Full(Storage):
    """The files of a disk that takes no byte more."""

    def open_output(self, _path: str) -> pa.NativeFile:
        return pa.OSFile("/dev/full", "wb")


def test_a_full_disk_is_named_with_the_file(tmp_path: Path) -> None:
    target = replace(target_in(tmp_path), storage=Full())
    actions: list[tuple[Callable[[], object], str]] = [
        (lambda: Full().write("/there/metadata.json", b"{}"), "/there/metadata.json"),
        (lambda: write_rows(rows(10), target, UNPARTITIONED), f"{target.data_location}/"),
        (lambda: write_deletes(pa.table({"id": [1]}), target, UNPARTITIONED, (1,)), f"{target.data_location}/"),
    ]
    for act, place in actions:
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as error:
            act()
        assert error.value.errno == errno.ENOSPC
        assert str(error.value.filename).startswith(place)


def test_deletes_without_a_key_column_are_refused(tmp_path: Path) -> None:
    """A missing column is NULL in data files; in a delete file it would remove all rows that have NULL there."""
    with pytest.raises(KeyError, match="keys of deletes lack the column sku; they have id"):
        write_deletes(pa.table({"id": [1]}), target_in(tmp_path), UNPARTITIONED, [1, 2])
    assert not list(tmp_path.rglob("*.parquet"))


def test_what_a_task_writes_arrives_whole_and_what_it_reads_is_sent_without_statistics(tmp_path: Path) -> None:
    (file,) = write_rows(rows(3), target_in(tmp_path), UNPARTITIONED)
    arrived = pickle.loads(pickle.dumps(file))  # noqa: S301 - of this test
    assert [getattr(arrived, f.name) for f in fields(file)] == [getattr(file, f.name) for f in fields(file)]
    assert file.lower_bounds
    sent = pickle.dumps(replace(file, data_sequence_number=1))
    assert not pickle.loads(sent).lower_bounds  # noqa: S301
