"""Files of tables in local folders."""

import threading
from pathlib import Path

from nevermore.pipelines.iceberg.storage import Storage


def test_files_are_written_while_an_erasure_removes_empty_folders(tmp_path: Path) -> None:
    storage, ended = Storage(), threading.Event()

    def remove() -> None:
        while not ended.is_set():
            storage.remove_empty_folders(str(tmp_path))

    eraser = threading.Thread(target=remove)
    eraser.start()
    try:
        for number in range(500):
            storage.write(str(tmp_path / f"day={number}" / "1.parquet"), b"rows")
    finally:
        ended.set()
        eraser.join()
    assert len(list(tmp_path.glob("*/1.parquet"))) == 500
