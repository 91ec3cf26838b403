"""Tables on an object store: a real S3 endpoint (moto's server on loopback), read through PyIceberg's FileIO."""

import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from nevermore import scan_core
from nevermore.scan_core.io.object_store import ArrowObject
from tests.support.fixture_tables import fixture_tables
from tests.support.object_server import properties_of, serving, store_of
from tests.support.rendering import differences

BUCKET = "lake"


@pytest.fixture(scope="module")
def properties() -> Iterator[dict[str, str]]:
    """FileIO properties of an empty object store."""
    with serving() as endpoint:
        settings = properties_of(endpoint)
        store_of(settings).create_dir(BUCKET)
        yield settings


@pytest.mark.each(4)
@pytest.mark.parametrize("name", ["eq_mixed_formats", "v3_dv_and_eq", "part_identity", "wide_needle"])
def test_tables_on_s3_read_as_on_disk(shared_dir: Path, properties: dict[str, str], name: str) -> None:
    folder = shared_dir / "fixtures_java" / name
    pafs.copy_files(str(folder), f"{BUCKET}/{name}", pafs.LocalFileSystem(), store_of(properties))
    facts = fixture_tables()[name].facts

    table = scan_core.open_table(
        f"s3://{BUCKET}/{name}/{facts['metadata']}",
        relocate={facts["location"]: f"s3a://{BUCKET}/{name}"},
        properties=properties,
    )

    for snapshot, expected in facts["rows_by_snapshot"].items():
        rows = table.scan().as_of_snapshot(int(snapshot)).to_table()
        assert not differences(rows, expected)


def test_a_folder_on_s3_finds_its_metadata(shared_dir: Path, properties: dict[str, str]) -> None:
    folder = shared_dir / "fixtures_java" / "date_key"
    pafs.copy_files(str(folder), f"{BUCKET}/date_key", pafs.LocalFileSystem(), store_of(properties))
    relocate = {"/warehouse/nevermore/date_key": f"s3://{BUCKET}/date_key"}
    table = scan_core.open_table(f"s3://{BUCKET}/date_key", relocate=relocate, properties=properties)
    assert table.scan().count() == 3


def test_a_missing_object_is_named(properties: dict[str, str]) -> None:
    with pytest.raises(scan_core.TableNotFoundError, match="s3://lake/none"):
        scan_core.open_table("s3://lake/none", properties=properties)


class SlowFile(io.BytesIO):
    """A file that is implemented in Python: other threads may run between any two calls of it."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a position."""
        position = super().seek(offset, whence)
        time.sleep(0.0005)
        return position


def test_the_end_of_a_file_of_python_is_read_beside_other_ranges() -> None:
    words = np.arange(50_000, dtype="<u4")
    stored = ArrowObject(pa.PythonFile(SlowFile(words.tobytes()), "r"))

    def read(index: int) -> bool:
        if index % 2:
            data, size = stored.tail(400)
            return size == words.nbytes and bytes(data) == words[-100:].tobytes()
        return bytes(stored.read_at(40, index * 40)) == words[index * 10 : index * 10 + 10].tobytes()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(400)))
