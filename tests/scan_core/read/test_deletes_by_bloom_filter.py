"""Row groups whose Bloom filters hold none of a few deleted keys are not probed: their keys are not even decoded.

Neither are they, nor those of pages without a deleted key, where dead rows are found to be flagged instead of dropped.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

COLUMNS = (Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "qty", "int"))
ROWS, GROUP = 12_000, 2_000
IDS = np.random.default_rng(3).permutation(ROWS) * 7
NAMES = [f"name-{i}" for i in IDS]
OFF = ScanOptions.of(use_bloom_filters=False)


def table(path: Path, deletes: dict[str, list[Any]], ids: list[int], *, bloom: bool = True) -> Scan:
    built = TableBuilder(path / "t", COLUMNS)
    rows = {"id": IDS.tolist(), "name": NAMES, "qty": [int(i) % 9 for i in IDS]}
    options: dict[str, Any] = {"row_group_size": GROUP, "use_dictionary": False}
    if bloom:
        options["bloom_filter_options"] = {"id": {"ndv": GROUP}, "name": {"ndv": GROUP}}
    built.commit(built.data(rows, **options))
    built.commit(built.equality_delete(deletes, ids=ids))
    return scan_core.open_table(built.metadata_path).scan().with_options(ScanOptions(parallelism=1))


CASES = {
    "integers in order": ({"id": [int(IDS[5]), int(IDS[GROUP + 1])]}, [1]),
    "integers far apart": ({"id": [int(IDS[5]), 1 << 60, -(1 << 60)]}, [1]),
    "strings": ({"name": [NAMES[5], "name-none"]}, [2]),
    "two columns": ({"id": [int(IDS[5]), int(IDS[-1])], "name": [NAMES[5], NAMES[-1]]}, [1, 2]),
}


@pytest.mark.parametrize("case", CASES)
def test_only_row_groups_that_may_hold_a_key_are_probed(case: str, tmp_path: Path) -> None:
    deletes, ids = CASES[case]
    scan = table(tmp_path, deletes, ids)
    plain = scan.with_options(OFF)
    assert scan.to_table() == plain.to_table()
    assert scan.count() == plain.count() < ROWS
    assert scan.metrics.delete_probes_spared_by_bloom_filters >= 3
    assert scan.metrics.bloom_bytes_read > 0
    assert scan.metrics.bytes_read < plain.metrics.bytes_read
    assert plain.metrics.bloom_filters_read == plain.metrics.delete_probes_spared_by_bloom_filters == 0


@pytest.mark.parametrize("case", CASES)
def test_deleted_rows_are_flagged_without_reading_keys_that_bloom_filters_exclude(case: str, tmp_path: Path) -> None:
    scan = table(tmp_path, *CASES[case]).select("_deleted")
    plain = scan.with_options(OFF)
    flags = scan.to_table()
    assert flags == plain.to_table()
    assert flags["_deleted"].to_pylist().count(True) == ROWS - table(tmp_path / "again", *CASES[case]).count() > 0
    assert scan.metrics.delete_probes_spared_by_bloom_filters >= 3
    assert scan.metrics.bloom_bytes_read > 0
    assert scan.metrics.bytes_read < plain.metrics.bytes_read


def test_deleted_rows_are_flagged_without_reading_pages_that_hold_no_deleted_key(tmp_path: Path) -> None:
    built = TableBuilder(tmp_path / "t", COLUMNS)
    rows = {"id": list(range(ROWS)), "name": NAMES, "qty": [1] * ROWS}
    options = {"data_page_size": 2_048, "write_batch_size": 256, "write_page_index": True, "use_dictionary": False}
    built.commit(built.data(rows, **options))
    built.commit(built.equality_delete({"id": [300, ROWS - 10]}, ids=[1]))
    scan = scan_core.open_table(built.metadata_path).scan().select("_pos", "_deleted")
    whole = scan.with_options(ScanOptions.of(prune_pages=False))
    found = scan.to_table()
    assert found == whole.to_table()
    assert found.filter(found["_deleted"])["_pos"].to_pylist() == [300, ROWS - 10]
    assert scan.metrics.bytes_read < whole.metrics.bytes_read / 4


def test_a_deleted_null_is_never_excluded(tmp_path: Path) -> None:
    built = TableBuilder(tmp_path / "t", COLUMNS)
    ids = [None if i == 77 else int(i) for i in range(GROUP)]
    built.commit(
        built.data({"id": ids, "name": NAMES[:GROUP], "qty": [1] * GROUP}, bloom_filter_options={"id": {"ndv": GROUP}})
    )
    built.commit(built.equality_delete({"id": [None]}, ids=[1]))
    assert scan_core.open_table(built.metadata_path).scan().count() == GROUP - 1


def test_files_without_bloom_filters_and_many_keys_are_probed(tmp_path: Path) -> None:
    scan = table(tmp_path / "a", *CASES["integers far apart"], bloom=False)
    assert scan.count() == ROWS - 1
    assert scan.metrics.bloom_filters_read == 0
    many = table(tmp_path / "b", {"id": [int(i) for i in IDS[:4_000]]}, [1])
    assert many.count() == ROWS - 4_000
    assert many.metrics.delete_probes_spared_by_bloom_filters == 0
    assert many.metrics.bloom_filters_read == 0


def test_filters_that_exclude_nothing_are_given_up(tmp_path: Path) -> None:
    keys = [int(IDS[group * GROUP + 3]) for group in range(ROWS // GROUP)]
    scan = table(tmp_path, {"id": keys}, [1])
    assert scan.count() == ROWS - len(keys)
    assert scan.metrics.bloom_filters_read == 4
