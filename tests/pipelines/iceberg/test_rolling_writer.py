"""Files of tasks: of the size asked for, complete in their statistics, and gone if the task fails."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from xxhash import xxh64_intdigest

from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.iceberg.table_writer import MAX_OPEN_FILES, FileLayout, RollingWriter, WriteTarget
from nevermore.pipelines.publish.refresh import _remove_files
from nevermore.pipelines.publish.task import PublishTask, total_report
from nevermore.scan_core import ContentFile
from nevermore.scan_core.files.parquet.bloom import block_bits, parse_bloom_filter
from nevermore.scan_core.metadata import partition_value
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema
from nevermore.scan_core.model.snapshot import PartitionField, PartitionSpec

SCHEMA = Schema(
    0,
    tuple(
        NestedField(i, name, PrimitiveType(kind), required=False)
        for i, (name, kind) in enumerate([("id", "long"), ("x", "double"), ("s", "string"), ("b", "boolean")], 1)
    ),
)
WHOLE = PartitionSpec(0, ())


def target(folder: Path) -> WriteTarget:
    return WriteTarget(SCHEMA, str(folder), Storage())


def layout(**changes: object) -> FileLayout:
    defaults = {
        "target_file_bytes": 1 << 30,
        "row_group_bytes": 1 << 30,
        "row_group_rows": 1_000,
        "page_rows": 100,
        "compression": "zstd",
    }
    return FileLayout(**{**defaults, **changes})  # type: ignore[arg-type] # of a test's own making


def batches(num_rows: int = 10_000, size: int = 500) -> Iterator[pa.RecordBatch]:
    generator = np.random.default_rng(7)
    for start in range(0, num_rows, size):
        ids = np.arange(start, start + size)
        x = generator.random(size)
        x[::10] = math.nan
        yield pa.RecordBatch.from_pydict({"id": ids, "x": x, "s": [f"s{i}" if i % 4 else None for i in ids]})


def write(folder: Path, spec: PartitionSpec = WHOLE, **changes: object) -> list[ContentFile]:
    with RollingWriter(target(folder), spec, layout(**changes), "run") as writer:
        writer.write(batches())
    return writer.files


def test_a_file_is_finished_when_it_has_reached_its_size(tmp_path: Path) -> None:
    files = write(tmp_path, target_file_bytes=40_000)
    assert len(files) > 2
    assert all(40_000 <= file.file_size_bytes < 60_000 for file in files[:-1])
    assert all(file.file_size_bytes == Path(file.path).stat().st_size for file in files)
    read = pa.concat_tables(pq.read_table(file.path) for file in files)
    assert read["id"].to_pylist() == list(range(10_000))


def test_rows_are_gathered_to_row_groups_of_either_size(tmp_path: Path) -> None:
    (by_rows,) = write(tmp_path)
    assert [pq.read_metadata(by_rows.path).row_group(i).num_rows for i in range(10)] == [1_000] * 10
    (by_bytes,) = write(tmp_path, row_group_bytes=1, row_group_rows=10_000)
    assert pq.read_metadata(by_bytes.path).num_row_groups == 20


def test_statistics_are_complete_over_all_row_groups(tmp_path: Path) -> None:
    (file,) = write(tmp_path)
    assert file.record_count == 10_000
    assert file.nan_value_counts == {2: 1_000}
    assert file.null_value_counts == {1: 0, 2: 0, 3: 2_500, 4: 10_000}
    assert file.value_counts == dict.fromkeys((1, 2, 3, 4), 10_000)
    assert file.lower_bounds[1] == (0).to_bytes(8, "little")
    assert file.upper_bounds[1] == (9_999).to_bytes(8, "little")
    assert len(file.split_offsets) == 10


def test_pages_bloom_filters_and_codec_are_those_of_the_layout(tmp_path: Path) -> None:
    (file,) = write(tmp_path, bloom_filters=("id", "s", "b"), compression="snappy")
    group = pq.read_metadata(file.path).row_group(0)
    assert all(group.column(i).has_offset_index and group.column(i).has_column_index for i in range(3))
    assert group.column(0).compression == "SNAPPY"
    plain = write(tmp_path, compression="snappy")[0]
    assert file.file_size_bytes > plain.file_size_bytes + 10 * 2 * 1_000  # ten bits a value, in ten groups


def test_partitions_have_files_of_their_own_and_few_are_open_at_a_time(tmp_path: Path) -> None:
    spec = PartitionSpec(3, (PartitionField(1000, 1, "id_bucket", "bucket[50]"),))
    files = write(tmp_path, spec, row_group_rows=500)
    assert {file.partition for file in files} == {(i,) for i in range(50)}
    assert len(files) > 50 > MAX_OPEN_FILES
    assert sum(file.record_count for file in files) == 10_000
    assert {file.spec_id for file in files} == {3}


@pytest.mark.each(2)
@pytest.mark.parametrize("shares", [(0.99, 0.01), (0.01, 0.99), (0.01, 0.3, 0.02, 0.9), (0.5, 0.5)])
def test_bloom_filters_are_as_large_as_the_rows_of_a_partition_need_however_they_come(
    shares: tuple[float, ...], tmp_path: Path
) -> None:
    """Of every 20,000 rows some part is of one of two partitions."""
    spec = PartitionSpec(3, (PartitionField(1000, 3, "s", "identity"),))
    absent = np.array([xxh64_intdigest(n.to_bytes(8, "little")) for n in range(10**6, 10**6 + 20_000)], np.uint64)
    with RollingWriter(target(tmp_path), spec, layout(bloom_filters=("id",), row_group_rows=20_000), "run") as writer:
        for number, share in enumerate(shares):
            ids = np.arange(number * 20_000, (number + 1) * 20_000)
            names = pa.array(["a"] * round(share * 20_000) + ["b"] * round((1 - share) * 20_000))
            writer.write([pa.table({"id": ids, "x": ids / 7, "s": names})])
    assert sum(file.record_count for file in writer.files) == 20_000 * len(shares)
    stored = wanted = 0
    for file in writer.files:
        content, footer = Path(file.path).read_bytes(), pq.read_metadata(file.path)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            found = parse_bloom_filter(content[group.column(0).bloom_filter_offset :])
            assert found is not None
            places, bits = block_bits(absent, len(found.blocks))
            assert ((found.blocks[places] & bits) == bits).all(axis=1).mean() < 0.01
            stored += found.blocks.nbytes
            wanted += group.num_rows * 4
    assert stored < 2 * wanted
    assert len(writer.files) <= 2 + len(shares)


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(5_000)
        raise ValueError("the query failed")

    task = PublishTask(target=target(tmp_path), spec=WHOLE, layout=layout(target_file_bytes=30_000), run="run")
    with pytest.raises(ValueError, match="the query failed"):
        next(task(failing()))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_task_reports_its_files_and_a_task_without_rows_none(tmp_path: Path) -> None:
    task = PublishTask(target=target(tmp_path), spec=WHOLE, layout=layout(), run="run")
    reports = [batch.column(0)[0].as_py() for rows in (batches(), iter(())) for batch in task(rows)]
    report = total_report(reports)
    assert [file.record_count for file in report.files] == [10_000]
    assert Path(report.files[0].path).name.startswith("run-")


@pytest.mark.parametrize("ids", [[1, 2, 2, 3], [1, 2, 3, 3], [None, None, 1, 2]])
def test_rows_with_the_same_key_are_refused_within_and_across_batches(ids: list[int | None], tmp_path: Path) -> None:
    task = PublishTask(target=target(tmp_path), spec=WHOLE, layout=layout(), run="run", key=("id", "s"), is_by_key=True)
    rows = pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "s": pa.nulls(4, pa.string())})
    pieces = [rows.slice(0, 2), rows.slice(2, 0), rows.slice(2, 1), rows.slice(3)]
    with pytest.raises(PublishError, match=r"several rows of the result have the same key \(id, s\): \(.*None\)"):
        next(task(iter(pieces)))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_only_files_of_the_run_are_removed(tmp_path: Path) -> None:
    for name in ("run-1.parquet", "run-2.parquet", "other-1.parquet", "runner-1.parquet"):
        (tmp_path / name).touch()
    assert _remove_files(Storage(), map(str, tmp_path.iterdir()), "run") == 2
    assert {p.name for p in tmp_path.iterdir()} == {"other-1.parquet", "runner-1.parquet"}


def test_partitions_of_floats_are_told_apart_by_their_bits_however_many_batches_there_are(tmp_path: Path) -> None:
    """Rule 5: -0.0 and 0.0 are two partitions, to which scoped deletes apply, and all NaN are one."""
    spec = PartitionSpec(1, (PartitionField(1000, 2, "x", "identity"),))
    with RollingWriter(target(tmp_path), spec, layout(row_group_rows=1), "run") as writer:
        writer.write(pa.RecordBatch.from_pydict({"x": [value]}) for value in [0.0, -0.0, math.nan, None] * 3)
    found = {
        str(partition_value(f.partition[0], PrimitiveType("double"))): pq.ParquetFile(f.path).read()["x"].to_pylist()
        for f in writer.files
    }
    assert len(writer.files) == 4
    assert {name: list(map(str, values)) for name, values in found.items()} == {
        name: [name] * 3 for name in ("0.0", "-0.0", "nan", "None")
    }
