import random
from pathlib import Path

import cramjam
import pytest

from nevermore.scan_core.bitmaps.column_index import MAGIC, PuffinBlob, footer_bytes, read_footer
from nevermore.scan_core.io.location import FileIOConfig
from nevermore.scan_core.model.errors import MalformedTableError

IO = FileIOConfig()
BLOBS = [
    PuffinBlob("apache-datasketches-theta-v1", (3,), 7, 1, 4, 5, "zstd", {"ndv": "12"}),
    PuffinBlob("other", (1, 2), 7, 1, 9, 3),
]


def written(path: Path, footer: bytes | None = None) -> str:
    path.write_bytes(
        MAGIC + b"abcdefgh" + (footer_bytes(BLOBS, {"created-by": "a test"}) if footer is None else footer)
    )
    return str(path)


def test_footer_is_read_as_it_was_written(tmp_path: Path) -> None:
    footer = read_footer(written(tmp_path / "a.puffin"), IO)
    assert list(footer.blobs) == BLOBS
    assert footer.properties["created-by"] == "a test"
    assert footer.is_checked
    assert footer.num_bytes == (tmp_path / "a.puffin").stat().st_size - 12


def test_compressed_footer_is_read(tmp_path: Path) -> None:
    plain = footer_bytes(BLOBS, {})
    payload = bytes(cramjam.lz4.compress(plain[4:-12]))
    footer = MAGIC + payload + len(payload).to_bytes(4, "little") + (1).to_bytes(4, "little") + MAGIC
    assert list(read_footer(written(tmp_path / "a.puffin", footer), IO).blobs) == BLOBS


def test_blob_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    footer = footer_bytes([PuffinBlob("other", (1,), 1, 1, 4, 1 << 50)], {})
    with pytest.raises(MalformedTableError, match="does not lie before the footer"):
        read_footer(written(tmp_path / "a.puffin", footer), IO)


def test_damaged_file_is_refused_or_read_whole_but_never_crashes(tmp_path: Path) -> None:
    random.seed(5)
    whole = Path(written(tmp_path / "a.puffin")).read_bytes()
    broken = tmp_path / "b.puffin"
    for _ in range(400):
        data = bytearray(whole[: random.randrange(len(whole) + 1)] if random.random() < 0.3 else whole)
        for _ in range(random.randrange(4)):
            if data:
                data[random.randrange(len(data))] = random.randrange(256)
        broken.write_bytes(bytes(data))
        try:
            footer = read_footer(str(broken), IO)
        except MalformedTableError:
            continue
        assert all(blob.offset + blob.length <= len(data) for blob in footer.blobs)
