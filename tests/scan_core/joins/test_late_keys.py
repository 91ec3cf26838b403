"""Keys that come while a scan runs help the splits that remain, in this process and through a folder in others."""

import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.scan_core import LateKeys, ScanOptions
from nevermore.scan_core.joins import late_keys
from nevermore.scan_core.model.errors import OptionError
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


def build(folder: Path) -> scan_core.Table:
    table = TableBuilder(folder / "t", [Column(1, "id", "long")])
    table.commit(*(table.data({"id": list(range(k * 10, k * 10 + 10))}) for k in range(4)))
    return scan_core.open_table(table.metadata_path)


@pytest.mark.parametrize("is_shared", [False, True])
def test_keys_that_arrive_late_help_the_files_that_remain(tmp_path: Path, is_shared: bool) -> None:  # noqa: FBT001
    late = LateKeys(tmp_path / "keys" if is_shared else None)
    options = ScanOptions(parallelism=1)
    scan = build(tmp_path).scan().with_options(options).prefilter("id", late)
    assert "keys that are not known yet" in scan.explain()
    batches = scan.to_batches()
    assert next(batches).num_rows == 10, "nothing is known yet"
    late.fill([35])
    assert [id_ for batch in batches for id_ in batch["id"].to_pylist()] == [35]
    assert scan.metrics.row_groups_pruned_by_runtime_filters == 2
    late.fill([15, 16])
    assert late.version == 2
    assert scan.to_table()["id"].to_pylist() == [15, 16]
    assert scan.metrics.data_files_pruned_by_runtime_filters == 3, "known when planned"


def test_other_processes_see_later_versions_through_the_folder(tmp_path: Path) -> None:
    late = LateKeys(tmp_path)
    fields = build(tmp_path).scan().key_fields(["id"])
    other = pickle.loads(pickle.dumps(late))  # noqa: S301  our own
    assert other.newest(fields) is None
    late.fill([1, 2, 2])
    found = other.newest(fields)
    assert found is not None
    assert found.num_keys == 2
    alone = LateKeys()
    alone.fill([(1, "a"), (2, "b")])
    with pytest.raises(OptionError, match="late keys have 2 columns, 1 are to be matched"):
        pickle.loads(pickle.dumps(alone)).newest(fields)  # noqa: S301  our own


def test_two_processes_that_fill_at_once_leave_a_version_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateKeys(tmp_path)
    other = pickle.loads(pickle.dumps(late))  # noqa: S301  our own
    to_bytes, begun = late_keys.to_bytes, []

    def slowly(table: pa.Table) -> bytes:
        if not begun:
            begun.append(threading.Thread(target=other.fill, args=([2],)))
            begun[0].start()
            begun[0].join(0.2)
        return to_bytes(table)

    monkeypatch.setattr(late_keys, "to_bytes", slowly)
    late.fill([1])
    begun[0].join()
    assert late.version == len(list(tmp_path.glob("*.arrow"))) == 2
