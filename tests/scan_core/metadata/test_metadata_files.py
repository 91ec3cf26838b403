"""Which metadata file a location means."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.metadata.table_json import decompress_document, find_metadata_file
from nevermore.scan_core.model.errors import MalformedTableError, TableNotFoundError

IO = FileIOConfig()


def write(folder: Path, *names: str, hint: str | None = None, hint_name: str = "version-hint.text") -> Path:
    metadata = folder / "metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    for name in names:
        (metadata / name).write_text('{"format-version": 2}')
    if hint is not None:
        (metadata / hint_name).write_text(hint)
    return folder


def found(folder: Path) -> str:
    return Path(find_metadata_file(str(folder), IO)).name


def test_a_file_of_any_name_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "whatever.txt"
    path.write_text("{}")
    assert find_metadata_file(str(path), IO) == str(path)
    assert find_metadata_file(f"file://{path}", IO) == f"file://{path}"


@pytest.mark.parametrize("hint", ["2", "v2", "2\n", "v2.metadata.json"])
def test_a_version_hint_names_the_file(tmp_path: Path, hint: str) -> None:
    assert found(write(tmp_path, "v1.metadata.json", "v2.metadata.json", hint=hint)) == "v2.metadata.json"


def test_a_stale_hint_is_followed_to_the_newest_version(tmp_path: Path) -> None:
    folder = write(tmp_path, "v1.metadata.json", "v2.metadata.json", "v3.metadata.json", hint="2")
    assert found(folder) == "v3.metadata.json"


@pytest.mark.parametrize("hint_name", ["version-hint.txt", "version_hint", "VERSION-HINT.TEXT"])
def test_a_hint_of_another_name_is_read(tmp_path: Path, hint_name: str) -> None:
    folder = write(tmp_path, "v1.metadata.json", "v9.metadata.json", hint="1", hint_name=hint_name)
    assert found(folder) == "v1.metadata.json"


@pytest.mark.parametrize("hint", [None, "garbage", "7", "", "../../x"])
def test_without_usable_hint_the_highest_version_wins(tmp_path: Path, hint: str | None) -> None:
    assert found(write(tmp_path, "v2.metadata.json", "v10.metadata.json", "v9.metadata.json", hint=hint)) == (
        "v10.metadata.json"
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["00001-aa.metadata.json", "00002-bb.metadata.json"], "00002-bb.metadata.json"),
        (["1.metadata.json", "2.metadata.json.gz"], "2.metadata.json.gz"),
        (["v1.gz.metadata.json", "v2.gz.metadata.json"], "v2.gz.metadata.json"),
        (["v1.metadata.gz.json"], "v1.metadata.gz.json"),
        (["table.json", "notes.txt"], "table.json"),
    ],
)
def test_names_of_all_writers_are_known(tmp_path: Path, names: list[str], expected: str) -> None:
    assert found(write(tmp_path, *names)) == expected


def test_between_equal_versions_the_last_updated_wins(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for name, updated in (("00001-a", 5), ("00001-b", 9), ("00001-c", 7)):
        text: Any = json.dumps({"last-updated-ms": updated})
        (folder / "metadata" / f"{name}.metadata.json").write_bytes(gzip.compress(text.encode()))
    (folder / "metadata" / "00001-d.metadata.json").write_text("broken")
    assert found(folder) == "00001-b.metadata.json"


def test_the_metadata_folder_itself_is_a_location(tmp_path: Path) -> None:
    assert found(write(tmp_path, "v1.metadata.json") / "metadata") == "v1.metadata.json"


def test_a_relocated_folder_is_found(tmp_path: Path) -> None:
    write(tmp_path, "v1.metadata.json")
    io = FileIOConfig((("s3://bucket/t", str(tmp_path)),))
    assert find_metadata_file("s3://bucket/t", io) == "s3://bucket/t/metadata/v1.metadata.json"


@pytest.mark.parametrize("location", ["", "  ", "/nowhere/at/all"])
def test_nothing_there_is_a_table_not_found(location: str) -> None:
    with pytest.raises(TableNotFoundError):
        find_metadata_file(location, IO)


def test_an_empty_folder_is_a_table_not_found(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match=r"no \*\.metadata\.json"):
        find_metadata_file(str(tmp_path), IO)


@pytest.mark.parametrize("text", ["{}", "[]", '{"orders": {"format": 2}}', "no JSON"])
def test_other_json_in_a_folder_is_no_metadata(tmp_path: Path, text: str) -> None:
    (tmp_path / "expected.json").write_text(text)
    with pytest.raises(TableNotFoundError, match="contains no table"):
        find_metadata_file(str(tmp_path), IO)


def test_gzip_and_zstd_are_recognised_by_content() -> None:
    assert decompress_document(gzip.compress(b"x" * 100), "f") == b"x" * 100
    assert decompress_document(pa.Codec("zstd").compress(b"x" * 100, asbytes=True), "f") == b"x" * 100
    assert decompress_document(b"plain", "f") == b"plain"
    with pytest.raises(MalformedTableError, match="f: cannot be decompressed"):
        decompress_document(b"\x1f\x8bgarbage", "f")
