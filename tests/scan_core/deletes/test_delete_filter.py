from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.deletes.filter import open_delete_filter
from nevermore.scan_core.deletes.indexes import DELETE_CACHE
from nevermore.scan_core.model.errors import MalformedTableError, UnsupportedError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.model.snapshot import DeleteContent, DeleteFile, FileFormat
from nevermore.scan_core.model.statistics import ColumnStatistics
from nevermore.scan_core.prune.verdicts import Match
from nevermore.scan_core.rows.selection import All, to_indices
from tests.scan_core.deletes.files import (
    context_for,
    data_file,
    delete_file,
    equality_file,
    position_file,
    task_for,
)
from tests.support.iceberg_json import Column
from tests.support.table_files import vector_blob, write_puffin


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    DELETE_CACHE.clear()


def kept(task: Any, *keys: list[Any], options: ScanOptions | None = None) -> list[list[bool]]:
    deletes = open_delete_filter(task, context_for(options=options), ScanMetrics())
    return [f.keep([pa.array(k) for k in keys]).tolist() for f in deletes.equality]


def stay(task: Any, num_rows: int = 10, first_row: int = 0) -> list[int]:
    deletes = open_delete_filter(task, context_for(), ScanMetrics())
    return to_indices(deletes.position_selection(first_row, num_rows)).tolist()


def test_rule_01_only_deletes_with_a_higher_sequence_number_apply(tmp_path: Path) -> None:
    old = equality_file(tmp_path / "old.parquet", {"id": [1]}, [1], number=3)
    new = equality_file(tmp_path / "new.orc", {"id": [2]}, [1], number=5)
    assert kept(task_for(old, new, data=data_file(number=2)), [1, 2, 3]) == [[False, False, True]]
    assert kept(task_for(old, new, data=data_file(number=3)), [1, 2, 3]) == [[True, False, True]]
    assert kept(task_for(old, new, data=data_file(number=5)), [1, 2, 3]) == []


def test_delete_file_is_opened_once_per_process_and_snapshot(tmp_path: Path) -> None:
    file = equality_file(tmp_path / "d.avro", {"id": [1]}, [1])
    metrics = ScanMetrics()
    for number in range(5):
        open_delete_filter(task_for(file, data=data_file(f"{number}.parquet")), context_for(), metrics)
    assert (metrics.delete_files_opened, metrics.delete_indexes_built, metrics.delete_index_hits) == (1, 1, 4)


def test_rule_14_cached_keys_are_not_used_for_another_key_type(tmp_path: Path) -> None:
    file = equality_file(tmp_path / "d.parquet", {"id": [5]}, [1], columns=(Column(1, "id", "int"),))
    metrics = ScanMetrics()
    for kind, low_bits_collide in (("int", 6), ("long", (1 << 32) + 5)):
        context = context_for((Column(1, "id", kind),))
        (deletes,) = open_delete_filter(task_for(file), context, metrics).equality
        assert deletes.keep([pa.array([5, low_bits_collide])]).tolist() == [False, True]
    assert metrics.delete_indexes_built == 2


def test_file_rewritten_under_the_same_name_is_read_again(tmp_path: Path) -> None:
    for key in (1, 2):
        file = equality_file(tmp_path / "d.parquet", {"id": [key]}, [1])
        assert kept(task_for(file), [1, 2]) == [[key != 1, key != 2]]


def test_bounds_tell_row_groups_that_no_delete_or_every_delete_touches(tmp_path: Path) -> None:
    file = equality_file(tmp_path / "d.parquet", {"id": [*range(100, 200), 500]}, [1])
    (deletes,) = open_delete_filter(task_for(file), context_for(), ScanMetrics()).equality

    def verdict(lower: int | None, upper: int | None, nulls: int | None = 0) -> Match:
        return deletes.may_touch(lambda _: ColumnStatistics(lower, upper, nulls, None, 10))

    assert verdict(0, 99) is Match.NEVER
    assert verdict(0, 99, None) is Match.NEVER
    assert verdict(0, 100) is Match.MAYBE
    assert verdict(300, 400) is Match.NEVER
    assert verdict(120, 130) is Match.ALWAYS
    assert verdict(120, 130, 1) is Match.MAYBE
    assert verdict(120, 130, None) is Match.MAYBE
    assert verdict(190, 200) is Match.MAYBE
    assert deletes.may_touch(lambda _: None) is Match.MAYBE


def test_group_is_pruned_when_one_key_column_is_out_of_range(tmp_path: Path) -> None:
    file = equality_file(tmp_path / "d.parquet", {"id": [1], "name": ["m"]}, [1, 2])
    (deletes,) = open_delete_filter(task_for(file, key_ids=(1, 2)), context_for(), ScanMetrics()).equality
    known = {1: ColumnStatistics(0, 9, 0, None, 5), 2: ColumnStatistics("n", "z", 0, None, 5)}
    assert deletes.may_touch(known.get) is Match.NEVER
    assert deletes.may_touch({1: known[1]}.get) is Match.MAYBE


@pytest.mark.parametrize("suffix", ["parquet", "orc", "avro"])
def test_position_deletes_of_several_files_in_one(tmp_path: Path, suffix: str) -> None:
    rows = [("a.parquet", 3), ("a.parquet", 1), ("b.parquet", 0), ("a.parquet", 3)]
    file = position_file(tmp_path / f"p.{suffix}", rows)
    assert stay(task_for(positions=(file,), data=data_file("a.parquet"))) == [0, 2, 4, 5, 6, 7, 8, 9]
    assert stay(task_for(positions=(file,), data=data_file("a.parquet")), 3, 3) == [1, 2]
    assert stay(task_for(positions=(file,), data=data_file("b.parquet")), 3) == [1, 2]
    assert stay(task_for(positions=(file,), data=data_file("c.parquet")), 3) == [0, 1, 2]


def test_several_position_delete_files_add_up(tmp_path: Path) -> None:
    files = tuple(position_file(tmp_path / f"{i}.parquet", [("a", i), ("a", 5)]) for i in range(3))
    assert stay(task_for(positions=files, data=data_file("a"))) == [3, 4, 6, 7, 8, 9]


def test_rule_07_paths_are_compared_after_relocation_on_both_sides(tmp_path: Path) -> None:
    file = position_file(tmp_path / "p.parquet", [("hdfs://host/warehouse/a", 1), ("s3://bucket/x", 2)])
    metrics = ScanMetrics()
    task = task_for(positions=(file,), data=data_file("/warehouse/a"))
    deletes = open_delete_filter(task, context_for(), metrics)
    assert to_indices(deletes.position_selection(0, 4)).tolist() == [0, 2, 3]
    assert metrics.relocated_position_matches == 1
    relocated = context_for(relocate=(("s3://bucket/", "file:///warehouse/"),))
    deletes = open_delete_filter(task_for(positions=(file,), data=data_file("s3a://bucket/x")), relocated, metrics)
    assert to_indices(deletes.position_selection(0, 4)).tolist() == [0, 1, 3]
    assert stay(task_for(positions=(file,), data=data_file("s3://other/x")), 4) == [0, 1, 2, 3]


def test_rule_07_rows_of_other_files_than_the_referenced_one_are_refused(tmp_path: Path) -> None:
    file = position_file(tmp_path / "p.parquet", [("a", 1), ("b", 1)], referenced_data_file="a")
    with pytest.raises(MalformedTableError, match="referenced_data_file"):
        stay(task_for(positions=(file,), data=data_file("a")))


def test_position_delete_with_null_or_negative_position_is_refused(tmp_path: Path) -> None:
    for number, position in enumerate((None, -1)):
        file = position_file(tmp_path / f"{number}.parquet", [("a", position)])  # type: ignore[list-item]
        with pytest.raises(MalformedTableError, match=r"\.parquet"):
            stay(task_for(positions=(file,), data=data_file("a")))


def test_position_delete_without_its_columns_is_refused(tmp_path: Path) -> None:
    file = replace(equality_file(tmp_path / "p.parquet", {"id": [1]}, []), content=DeleteContent.POSITION)
    with pytest.raises(MalformedTableError, match="file_path"):
        stay(task_for(positions=(file,)))


def vectors(tmp_path: Path, *positions: list[int]) -> list[DeleteFile]:
    path = tmp_path / "v.puffin"
    blobs = [(f"{i}.parquet", vector_blob(p), len(p)) for i, p in enumerate(positions)]
    offsets = write_puffin(path, blobs)
    return [
        delete_file(
            path,
            FileFormat.PUFFIN,
            content=DeleteContent.POSITION,
            record_count=count,
            referenced_data_file=name,
            content_offset=offset,
            content_size_bytes=len(blob),
        )
        for (name, blob, count), offset in zip(blobs, offsets, strict=True)
    ]


def test_rule_06_several_vectors_in_one_puffin_file(tmp_path: Path) -> None:
    first, second = vectors(tmp_path, [0, 2], [1, 70_000])
    assert stay(task_for(vector=first), 4) == [1, 3]
    assert stay(task_for(vector=second), 4) == [0, 2, 3]
    assert stay(task_for(vector=second), 4, 69_998) == [0, 1, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"content_offset": None}, "without content_offset"),
        ({"content_size_bytes": 5}, "cannot hold"),
        ({"content_offset": 10**9}, "not inside"),
        ({"content_size_bytes": 10**4}, "not inside"),
        ({"content_size_bytes": 10**12}, "positions .* can take"),
        ({"record_count": 7}, "record_count is 7"),
    ],
    ids=["no offset", "tiny", "offset outside", "size outside", "size beyond count", "count"],
)
def test_rule_06_vector_with_wrong_facts_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (vector,) = vectors(tmp_path, [0, 2])
    with pytest.raises(MalformedTableError, match=message) as caught:
        stay(task_for(vector=replace(vector, **change)))
    assert "v.puffin" in str(caught.value)


@pytest.mark.parametrize(("place", "message"), [(0, "length"), (4, "magic"), (9, "CRC"), (-1, "CRC")])
def test_rule_06_vector_with_a_flipped_bit_is_refused(tmp_path: Path, place: int, message: str) -> None:
    (vector,) = vectors(tmp_path, [0, 2])
    path = Path(vector.path)
    data = bytearray(path.read_bytes())
    assert vector.content_offset is not None
    assert vector.content_size_bytes is not None
    start = vector.content_offset
    data[start + place if place >= 0 else start + vector.content_size_bytes + place] ^= 1
    path.write_bytes(data)
    with pytest.raises(MalformedTableError, match=message):
        stay(task_for(vector=vector))


def test_encrypted_delete_files_are_not_supported(tmp_path: Path) -> None:
    file = replace(equality_file(tmp_path / "d.parquet", {"id": [1]}, [1]), key_metadata=b"key")
    with pytest.raises(UnsupportedError, match="encrypted"):
        kept(task_for(file), [1])


def test_task_without_deletes_keeps_everything() -> None:
    deletes = open_delete_filter(task_for(), context_for(), ScanMetrics())
    assert deletes.is_empty
    assert deletes.position_selection(5, 7) == All(7)
