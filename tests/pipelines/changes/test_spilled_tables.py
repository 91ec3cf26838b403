from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore.pipelines.changes.change_run import SpilledTables
from nevermore.pipelines.errors import PipelineError
from nevermore.scan_core.io.private_files import spill_folder


def open_files() -> int:
    """How many files of parts this process has open; what else it opens and closes meanwhile does not count."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the folder
            found += ".arrow" in str(descriptor.readlink())
    return found


def test_thousands_of_parts_need_one_open_file() -> None:
    spill_folder()  # makes the folder, and its lock
    before = open_files()
    with closing(SpilledTables()) as file:
        for turn in range(2):
            for part in range(2000):
                file.append(pa.table({"n": [part, turn]}), part * 3)
        assert open_files() == before + 1
        found = [pa.concat_tables(tables).column("n").to_pylist() for tables in file.parts()]
        assert found == [[part, 0, part, 1] for part in range(2000)]
        assert len(list(spill_folder().path.glob("*.arrow"))) == 1
    assert open_files() <= before + 1
    assert not list(spill_folder().path.glob("*.arrow"))


def test_spilled_tables_without_rows_has_no_parts_and_makes_no_file() -> None:
    with closing(SpilledTables()) as file:
        assert list(file.parts()) == []


def test_spilled_tables_on_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", full)
    with closing(SpilledTables()) as file, pytest.raises(PipelineError, match="free space there, set TMPDIR"):
        file.append(pa.table({"n": [1]}))
