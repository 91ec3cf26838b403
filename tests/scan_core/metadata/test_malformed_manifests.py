"""Entries that break the specification are refused, with file and field."""

from pathlib import Path
from typing import Any

import fastavro
import pytest

from nevermore.scan_core.io import cache
from nevermore.scan_core.metadata.manifest_list import read_manifest_list
from nevermore.scan_core.metadata.manifests import read_data_manifests
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError, ScanError
from tests.scan_core.current_manifests import COLUMNS, IO, current, data_files, delete_files, rows
from tests.support.avro_edit import rewrite_avro
from tests.support.table_builder import EXISTING, TableBuilder

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    return TableBuilder(tmp_path, COLUMNS)


def test_rule_03_an_existing_entry_without_number_is_malformed(table: TableBuilder) -> None:
    file = table.data(rows())
    file.status = EXISTING
    table.commit(file)
    with pytest.raises(MalformedTableError, match=r"manifest.*sequence_number \(3\) is null in an existing entry"):
        data_files(table)


@pytest.mark.parametrize("of_file", [False, True])
@pytest.mark.parametrize("first", [-1, 2**63 - 1])
def test_rule_21_row_ids_that_leave_64_bits_are_malformed(tmp_path: Path, *, first: int, of_file: bool) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    table.commit(table.data(rows()))
    _, manifests = current(table)
    if of_file:
        rewrite_avro(manifests[0].path, lambda found, _: found[0]["data_file"].update(first_row_id=first))
    else:
        rewrite_avro(table.snapshots[-1]["manifest-list"], lambda found, _: found[0].update(first_row_id=first))
    with pytest.raises(MalformedTableError, match="first_row_id"):
        data_files(table)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("record_count", -1, r"record_count \(103\)"),
        ("file_size_in_bytes", -5, "negative"),
        ("file_format", "CSV", r"file_format \(101\) of .*: unknown format 'CSV'"),
        ("content", 2, r"content \(134\) of .*: expected 0 in a data manifest, found 2"),
    ],
)
def test_malformed_entries_name_file_and_field(table: TableBuilder, field: str, value: Any, message: str) -> None:
    data = table.data(rows())
    table.commit(data)
    _, manifests = current(table)
    rewrite_avro(manifests[0].path, lambda found, _: found[0]["data_file"].update({field: value}))
    with pytest.raises(MalformedTableError, match=message) as caught:
        data_files(table)
    assert manifests[0].path in str(caught.value)


@pytest.mark.parametrize("status", [3, -1])
def test_an_unknown_status_is_malformed(table: TableBuilder, status: int) -> None:
    table.commit(table.data(rows()))
    _, manifests = current(table)
    rewrite_avro(manifests[0].path, lambda found, _: found[0].update(status=status))
    with pytest.raises(MalformedTableError, match=rf"status \(0\).*found {status}"):
        data_files(table)


def test_data_content_in_a_delete_manifest_is_malformed(table: TableBuilder) -> None:
    table.commit(table.equality_delete(rows(1), ids=[1]))
    _, manifests = current(table)
    rewrite_avro(manifests[0].path, lambda found, _: found[0]["data_file"].update(content=0))
    with pytest.raises(MalformedTableError, match="expected 1 or 2 in a delete manifest, found 0"):
        delete_files(table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"content": 2}, r"content \(517\)"),
        ({"sequence_number": -1}, r"sequence_number \(515\)"),
        ({"partition_spec_id": 9}, "no partition spec 9"),
    ],
)
def test_a_malformed_manifest_list_names_file_and_field(
    table: TableBuilder, changes: dict[str, Any], message: str
) -> None:
    table.commit(table.data(rows()))
    rewrite_avro(table.snapshots[-1]["manifest-list"], lambda found, _: found[0].update(changes))
    with pytest.raises(MalformedTableError, match=message):
        data_files(table)


def test_an_encrypted_manifest_is_unsupported(table: TableBuilder) -> None:
    table.commit(table.data(rows()))
    with Path(table.snapshots[-1]["manifest-list"]).open("rb") as file:
        has_key = "key_metadata" in str(fastavro.reader(file).writer_schema)
    assert has_key
    rewrite_avro(table.snapshots[-1]["manifest-list"], lambda found, _: found[0].update(key_metadata=b"secret"))
    with pytest.raises(ScanError, match="encrypted"):
        current(table)


def test_a_manifest_that_is_gone_is_named(table: TableBuilder) -> None:
    table.commit(table.data(rows()))
    _, manifests = current(table)
    Path(manifests[0].path).unlink()
    with pytest.raises(MissingFileError, match=r"manifest\.avro"):
        data_files(table)
    Path(table.snapshots[-1]["manifest-list"]).unlink()
    with pytest.raises(MissingFileError, match="snap-"):
        current(table)


def test_mutated_manifests_never_crash(table: TableBuilder) -> None:
    table.commit(table.data(rows()), table.data(rows()))
    metadata, manifests = current(table)
    path = Path(manifests[0].path)
    list_path = Path(table.snapshots[-1]["manifest-list"])
    for target in (path, list_path):
        original = target.read_bytes()
        for at in range(0, len(original), max(1, len(original) // 400)):
            for data in (
                original[:at],
                original[:at] + bytes([original[at] ^ 0xFF]) + original[at + 1 :],
                original[:at] + b"\xff\xff\xff\xff\x0f" + original[at:],
            ):
                target.write_bytes(data)
                cache.clear()
                try:
                    read_data_manifests(read_manifest_list(str(list_path), IO), metadata, IO)
                except ScanError:
                    continue
        target.write_bytes(original)
    assert len(data_files(table)) == 2
