"""Opening files: local, relocated, missing, and ranges that are not there."""

from pathlib import Path

import pytest

from nevermore.scan_core.io.files import (
    exists,
    file_size,
    fingerprint,
    is_folder,
    list_folder,
    locate,
    open_input,
    read_bytes,
)
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MalformedTableError, MissingFileError

IO = FileIOConfig()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a file"
    path.write_bytes(b"0123456789")
    return path


def test_a_local_file_is_read_by_path_and_by_uri(file: Path) -> None:
    for text in (str(file), f"file:{file}", f"file://{file}"):
        assert read_bytes(text, IO) == b"0123456789"
        assert file_size(text, IO) == 10
        with open_input(text, IO) as opened:
            assert opened.read() == b"0123456789"


def test_a_range_is_read(file: Path) -> None:
    assert read_bytes(str(file), IO, 2, 3) == b"234"
    assert read_bytes(str(file), IO, 8) == b"89"


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (11, None), (-1, 2), (3, -1), (0, 2**62)])
def test_a_range_outside_of_the_file_is_malformed_and_allocates_nothing(
    file: Path, offset: int, length: int | None
) -> None:
    with pytest.raises(MalformedTableError, match="not inside its 10 bytes"):
        read_bytes(str(file), IO, offset, length)


def test_a_missing_file_is_named_with_what_was_opened(tmp_path: Path) -> None:
    io = FileIOConfig((("/warehouse", str(tmp_path)),))
    for action in (read_bytes, file_size, open_input, fingerprint):
        with pytest.raises(MissingFileError, match=f"/warehouse/x.*{tmp_path}/x"):
            action("/warehouse/x", io)


def test_an_unknown_scheme_is_a_missing_file() -> None:
    with pytest.raises(MissingFileError, match="gopher"):
        read_bytes("gopher://host/x", IO)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        read_bytes(str(tmp_path), IO)


def test_resolve_relocates_and_strips_the_local_scheme(tmp_path: Path) -> None:
    assert str(locate("s3a://bucket/x", IO)) == "s3://bucket/x"
    assert locate("file:///a/b", IO).path == "/a/b"
    assert str(locate("s3://bucket/x", FileIOConfig((("s3://bucket", str(tmp_path)),)))) == f"{tmp_path}/x"


def test_folders_are_listed(file: Path) -> None:
    folder = file.parent
    assert list_folder(str(folder), IO) == ["a file"]
    assert list_folder(str(folder / "none"), IO) == []
    assert is_folder(str(folder), IO)
    assert exists(str(file), IO)
    assert not is_folder(str(file), IO)
    assert not exists(str(folder / "none"), IO)


def test_the_fingerprint_changes_with_the_content(file: Path) -> None:
    before = fingerprint(str(file), IO)
    file.write_bytes(b"01234567890")
    assert fingerprint(str(file), IO) != before
