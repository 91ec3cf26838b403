from pathlib import Path
from typing import Any

import pytest

from nevermore.scan_core.deletes.indexes import load_keys
from nevermore.scan_core.io.files import read_small
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError
from nevermore.scan_core.model.options import ScanMetrics, ScanOptions
from nevermore.scan_core.split.tasks import EqualityDeleteGroup, ScanContext
from tests.scan_core.deletes.files import context_for, equality_file
from tests.support.iceberg_json import Column

FORMATS = ["parquet", "orc", "avro"]


def loaded(group: EqualityDeleteGroup, context: ScanContext | None = None) -> list[tuple[int, list[Any]]]:
    keys = load_keys(group, context or context_for(), ScanMetrics())
    return [(k.sequence_number, list(zip(*(c.to_pylist() for c in k.columns), strict=True))) for k in keys]


@pytest.mark.parametrize("suffix", FORMATS)
def test_rule_10_keys_are_found_by_id_and_extra_columns_ignored(tmp_path: Path, suffix: str) -> None:
    stored = (Column(9, "id", "string"), Column(2, "other name", "string"), Column(1, "renamed", "long"))
    rows: dict[str, list[Any]] = {"id": ["x", "y"], "other name": ["a", None], "renamed": [7, 8]}
    file = equality_file(tmp_path / f"d.{suffix}", rows, [2, 1], columns=stored)
    assert loaded(EqualityDeleteGroup((1, 2), (file,))) == [(2, [(7, "a"), (8, None)])]


@pytest.mark.parametrize("suffix", FORMATS)
def test_rule_11_keys_in_structs_with_a_null_parent_are_null(tmp_path: Path, suffix: str) -> None:
    file = equality_file(tmp_path / f"d.{suffix}", {"s": [{"x": 1}, None, {"x": None}]}, [4])
    assert loaded(EqualityDeleteGroup((4,), (file,))) == [(2, [(1,), (None,), (None,)])]


@pytest.mark.parametrize("suffix", FORMATS)
def test_rule_13_keys_come_in_the_promoted_type(tmp_path: Path, suffix: str) -> None:
    file = equality_file(tmp_path / f"d.{suffix}", {"id": [-5, None]}, [1], columns=(Column(1, "id", "int"),))
    (keys,) = load_keys(EqualityDeleteGroup((1,), (file,)), context_for(), ScanMetrics())
    assert str(keys.columns[0].type) == "int64"
    assert keys.columns[0].to_pylist() == [-5, None]


@pytest.mark.parametrize(
    ("ids", "message"),
    [((), "without equality_ids"), ((99,), "no schema"), ((6,), "inside a list"), ((3,), "must be primitive")],
    ids=["none", "unknown", "in list", "struct"],
)
def test_rule_11_illegal_key_ids_are_refused(tmp_path: Path, ids: tuple[int, ...], message: str) -> None:
    file = equality_file(tmp_path / "d.parquet", {"id": [1]}, ids)
    with pytest.raises(MalformedTableError, match=message) as caught:
        loaded(EqualityDeleteGroup(ids, (file,)))
    assert "d.parquet" in str(caught.value)


@pytest.mark.parametrize("suffix", FORMATS)
def test_rule_11_key_column_that_the_file_lacks_is_refused_not_null(tmp_path: Path, suffix: str) -> None:
    file = equality_file(tmp_path / f"d.{suffix}", {"name": ["a"]}, [1])
    with pytest.raises(MalformedTableError, match=r"field 1 \(id\), which it lacks"):
        loaded(EqualityDeleteGroup((1,), (file,)))


def test_rule_11_key_column_inside_a_list_of_the_file_is_refused(tmp_path: Path) -> None:
    stored = (Column(5, "l", {"type": "list", "element-id": 1, "element": "long", "element-required": False}),)
    file = equality_file(tmp_path / "d.parquet", {"l": [[1]]}, [1], columns=stored)
    with pytest.raises(MalformedTableError, match="lies inside the list"):
        loaded(EqualityDeleteGroup((1,), (file,)))


def test_rule_16_file_without_ids_is_read_by_name_mapping(tmp_path: Path) -> None:
    file = equality_file(tmp_path / "d.parquet", {"id": [3]}, [1], field_ids=False)
    context = context_for(name_mapping=({"field-id": 1, "names": ["id"]},))
    assert loaded(EqualityDeleteGroup((1,), (file,)), context) == [(2, [(3,)])]
    with pytest.raises(MalformedTableError, match="which it lacks"):
        loaded(EqualityDeleteGroup((1,), (file,)))


def test_many_files_are_loaded_in_chunks_and_counted_once(tmp_path: Path) -> None:
    files = tuple(equality_file(tmp_path / f"{i}.parquet", {"id": [i, i]}, [1], number=i) for i in range(40))
    metrics = ScanMetrics()
    keys = load_keys(EqualityDeleteGroup((1,), files), context_for(options=ScanOptions(parallelism=3)), metrics)
    assert [(k.sequence_number, k.columns[0].to_pylist()) for k in keys] == [(i, [i, i]) for i in range(40)]
    assert (metrics.delete_files_opened, metrics.delete_rows_loaded) == (40, 80)
    assert metrics.delete_bytes_read == sum(f.file_size_bytes for f in files)


def test_error_of_one_of_many_files_names_it(tmp_path: Path) -> None:
    files = [equality_file(tmp_path / f"{i}.parquet", {"id": [i]}, [1]) for i in range(30)]
    (tmp_path / "17.parquet").write_bytes(b"PAR1 not parquet PAR1")
    with pytest.raises(MalformedTableError, match=r"17\.parquet"):
        loaded(EqualityDeleteGroup((1,), tuple(files)))
    (tmp_path / "17.parquet").unlink()
    with pytest.raises(MissingFileError, match=r"17\.parquet"):
        loaded(EqualityDeleteGroup((1,), tuple(files)))


def test_file_without_rows_gives_no_keys(tmp_path: Path) -> None:
    for suffix in FORMATS:
        file = equality_file(tmp_path / f"d.{suffix}", {"id": []}, [1])
        assert [k for _, keys in loaded(EqualityDeleteGroup((1,), (file,))) for k in keys] == []


def test_files_of_several_schemas_in_turn_are_read_alike_at_once_or_in_parts(tmp_path: Path) -> None:
    other = (Column(2, "name", "string"), Column(9, "more", "long"), Column(1, "id", "int"))
    files = []
    for number in range(12):
        rows: dict[str, list[Any]] = {"id": [number, None], "name": ["a", "b"], "more": [0, 0]}
        columns = other if number % 3 == 1 else (Column(1, "id", "long"), Column(2, "name", "string"))
        stored = {column.name: rows[column.name] for column in columns}
        files.append(equality_file(tmp_path / f"{number}.parquet", stored, [1, 2], number=number, columns=columns))
    context = context_for(options=ScanOptions(parallelism=1))
    found = loaded(EqualityDeleteGroup((1, 2), tuple(files)), context)
    assert found == [(number, [(number, "a"), (None, "b")]) for number in range(12)]


def test_value_that_is_no_key_names_its_own_file_after_others_of_its_schema(tmp_path: Path) -> None:
    text = (Column(1, "id", "string"),)
    files = [equality_file(tmp_path / f"{i}.parquet", {"id": [i]}, [1]) for i in range(3)]
    files.append(equality_file(tmp_path / "odd.parquet", {"id": ["x"]}, [1], columns=text))
    context = context_for(options=ScanOptions(parallelism=1))
    with pytest.raises(MalformedTableError, match=r"odd\.parquet"):
        loaded(EqualityDeleteGroup((1,), tuple(files)), context)


def test_large_file_is_not_read_at_once(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "id": list(range(100_000)),
        "name": [f"name {i * 7919 % 100_003}" for i in range(100_000)],
    }
    file = equality_file(tmp_path / "large.parquet", rows, [1])
    assert file.file_size_bytes > 256 * 1024
    assert read_small(file.path, context_for().io, 256 * 1024) is None
    assert len(loaded(EqualityDeleteGroup((1,), (file,)))[0][1]) == 100_000
