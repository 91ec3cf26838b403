"""An object store answers late: what does reading ahead save, and is the rest decoding?

The table lies on the local disk behind a file system that makes every request wait, as a store in the same region does, and
then hands out bytes at a fixed rate per connection. D reads the same table without any wait.
"""

import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.fs as pafs

import scan_core
from benchmarks.race import Goal, race, report
from benchmarks.shapes import build
from scan_core import ScanOptions
from scan_core.deletes.cache import DELETE_CACHE
from scan_core.read.parquet_layout import FOOTERS

LATENCY_SECONDS = 0.030
BYTES_PER_SECOND = 80e6
"""Of one connection."""
NEEDLE = "s1 = 'city-77' and v0 < 10"
ROUNDS = 5


class LateFile:
    """A file whose every read is a request."""

    def __init__(self, inner: pa.NativeFile, *, waits: bool) -> None:
        self._inner = inner
        self._waits = waits
        self._position = 0
        self.closed = False

    def read(self, length: int = -1) -> bytes:
        size = self._inner.size() - self._position if length < 0 else length
        if self._waits:
            time.sleep(LATENCY_SECONDS + size / BYTES_PER_SECOND)
        data: bytes = self._inner.read_at(size, self._position)
        self._position += len(data)
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = position + (0, self._position, self._inner.size())[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self.closed = True
        self._inner.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


class LateStore(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """What `s3://bench/...` names, from the folder of a table."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._local = pafs.LocalFileSystem()
        self.waits = True

    def open_input_file(self, path: str) -> pa.NativeFile:
        if self.waits:
            time.sleep(LATENCY_SECONDS)  # its size is asked for first
        inner = self._local.open_input_file(str(self._root / path.removeprefix("bench/")))
        return pa.PythonFile(LateFile(inner, waits=self.waits), "r")

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._local.get_file_info(str(self._root / path.removeprefix("bench/"))) for path in paths]

    def get_type_name(self) -> str:
        return "late"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"reading does not need this: {args} {kwargs}")

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = delete_root_dir_contents = _refuse
    get_file_info_selector = move = open_append_stream = open_input_stream = _refuse
    open_output_stream = _refuse


@contextmanager
def store(root: Path) -> Any:
    """The file system, in the place of that of a catalog."""
    handler = LateStore(root)
    system = pafs.PyFileSystem(handler)
    with patch("scan_core.catalog.filesystem", lambda location, _: (system, location.authority + location.path)):
        yield handler


def measure(name: str) -> None:
    """Print three queries on one shape, with and without reading ahead."""
    location = Path(str(build(name).metadata_location).removeprefix("file://"))
    root = location.parent.parent
    with store(root) as handler:
        table = scan_core.open_table(
            f"s3://bench/metadata/{location.name}",
            relocate={f"file://{root}": "s3://bench", str(root): "s3://bench"},
        )
        scan = table.scan()
        queries: dict[str, Callable[[ScanOptions], Any]] = {
            "all columns": lambda o: sum(b.num_rows for b in scan.with_options(o).to_batches()),
            "count": lambda o: scan.with_options(o).count(),
            "needle": lambda o: scan.where(NEEDLE).with_options(o).to_table().num_rows,
        }
        for title, query in queries.items():

            def anew(options: ScanOptions, query: Any = query, *, waits: bool = True) -> Any:
                handler.waits = waits
                FOOTERS.clear()
                DELETE_CACHE.clear()
                return query(options)

            candidates = {
                "ahead": lambda: anew(ScanOptions()),
                "not ahead": lambda: anew(ScanOptions(read_ahead_bytes=0)),
                "no wait (D)": lambda: anew(ScanOptions(read_ahead_bytes=0), waits=False),
            }
            goals = [Goal("ahead", "not ahead"), Goal("ahead", "no wait (D)")]
            report(f"object store, {name}: {title}", race(candidates, ROUNDS), "ahead", goals)


if __name__ == "__main__":
    for shape in sys.argv[1:] or ["dense_ints"]:
        measure(shape)
