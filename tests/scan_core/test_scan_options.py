"""Options of a scan: none changes a row, and their metrics tell what was spared."""

import re
from collections.abc import Callable
from dataclasses import fields
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nevermore import scan_core
from nevermore.scan_core import (
    OptionError,
    ScanOptions,
    Switches,
)
from nevermore.scan_core.read import restriction as adaptivity
from nevermore.scan_core.rows.selection import RowSample
from tests.scan_core.small_scans import COLUMNS, many_row_groups, rows_of, scan_of, with_deletes
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder


@pytest.mark.parametrize(
    ("request_of", "message"),
    [
        (lambda scan: scan.limit("x"), "limit must be a whole number, not 'x' of type str"),
        (lambda scan: scan.limit(1.5), "limit must be a whole number, not 1.5 of type float"),
        (lambda scan: scan.limit(True), "limit must be a whole number, not True of type bool"),
        (lambda scan: scan.limit(None), "limit must be a whole number, not None"),
        (lambda scan: scan.sample("x"), "a sample takes a fraction between 0 and 1 of the rows, not 'x'"),
        (lambda scan: scan.sample(0.5, "x"), "seed must be a whole number, not 'x' of type str"),
        (lambda scan: scan.as_of_snapshot("5"), "a snapshot id must be a whole number, not '5' of type str"),
        (lambda scan: scan.at_ref(5), "the name of a branch or tag must be text, not 5 of type int"),
        (lambda scan: scan.with_options(5), "with_options takes ScanOptions(...), not 5 of type int"),
        (lambda scan: scan.aggregate("sum"), 'aggregate takes pairs such as ("sum", "price"), not \'sum\''),
        (lambda scan: scan.aggregate(("sum", 5)), "aggregate takes pairs"),
        (lambda scan: scan.aggregate(("sum",)), "aggregate takes pairs"),
    ],
)
def test_argument_of_the_wrong_type_is_refused_at_once(
    tmp_path: Path, request_of: Callable[[Any], Any], message: str
) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.write_metadata()
    with pytest.raises(OptionError, match=re.escape(message)):
        request_of(scan_core.open_table(str(table.metadata_path)).scan())


def test_whole_numbers_of_numpy_are_taken(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.write_metadata()
    scan = scan_core.open_table(str(table.metadata_path)).scan()
    assert scan.limit(np.int64(3)).row_limit == 3
    assert scan.sample(np.float32(0.5), np.int64(3)).row_sample == RowSample(0.5, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_limit_bytes": "1GB"}, "memory_limit_bytes must be a whole number, not '1GB'"),
        ({"parallelism": 2.5}, "parallelism must be a whole number, not 2.5"),
        ({"keep_order": "no"}, "keep_order must be True or False, not 'no'"),
        ({"prune_pages": 1}, "prune_pages must be True or False, not 1"),
        ({"prune_page": False}, "unknown scan option 'prune_page'; did you mean 'prune_pages'"),
    ],
)
def test_option_of_the_wrong_type_or_an_unknown_name_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ScanOptions.of(**options)


def test_options_and_switches_by_name_are_those_that_differ_from_the_defaults() -> None:
    assert ScanOptions().changed() == {}
    options = ScanOptions(parallelism=ScanOptions().parallelism + 1, switches=Switches(prune_pages=False))
    assert ScanOptions.of(**options.changed()) == options
    plain = ScanOptions.without_optimisations()
    assert {f.name for f in fields(Switches)} <= plain.changed().keys()
    assert ScanOptions.of(**plain.changed()) == plain


EXPECTED = [
    i for i in range(4000) if i % 3 and not (i % 3 == 1 and i % 5 == 2) and not 700 <= i < 2100 and i % 5 > 0 and i > 90
]


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"parallelism": 5, "split_bytes": 1},
        *({switch.name: False} for switch in fields(Switches)),
        {"prune_row_groups": False, "prune_deletes": False, "prune_pages": False},
        {"batch_rows": 7},
    ],
    ids=str,
)
def test_options_change_no_row(tmp_path: Path, options: dict[str, Any]) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table, **options).where("qty > 0").where("id > 90")
    assert sorted(scan.to_table().column("id").to_pylist()) == EXPECTED
    assert scan.count() == len(EXPECTED)
    plain = scan.with_options(ScanOptions.without_optimisations())
    assert rows_of(plain) == rows_of(scan)


def test_every_order_of_filters_and_delete_sets_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = many_row_groups(tmp_path)
    for order in permutations(range(4)):

        def permuted(_: Any, steps: Any, order: tuple[int, ...] = order) -> list[int]:
            return [i for i in order if i < len(steps)]

        monkeypatch.setattr(adaptivity.Adaptivity, "order", permuted)
        scan = scan_of(table, prune_row_groups=False, prune_deletes=False).where("qty > 0").where("id > 90")
        assert sorted(scan.to_table().column("id").to_pylist()) == EXPECTED


@pytest.mark.parametrize("parallelism", [1, 3])
def test_metrics_add_up_over_splits(tmp_path: Path, parallelism: int) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table, split_bytes=1, parallelism=parallelism).where("qty > 0")
    num_rows = scan.to_table().num_rows
    found = scan.metrics
    assert found.rows_out == num_rows
    assert found.rows_in_files == 4000
    assert found.rows_in_files - num_rows == (
        found.rows_removed_by_position_deletes + found.rows_removed_by_equality_deletes + found.rows_removed_by_filter
    )
    assert found.rows_removed_by_position_deletes == 1400
    assert found.data_files_read == 1
    assert found.row_groups_read + found.row_groups_pruned == 8
    assert found.delete_indexes_built <= 2
    assert found.bytes_read > 0


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    table = many_row_groups(tmp_path)
    scan = scan_of(table).where("id = 3998")
    assert scan.count() == 1
    assert scan.metrics.row_groups_read == 1
    assert scan.metrics.row_groups_pruned == 7


def test_payload_of_row_groups_without_survivors_is_not_read(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    values = {"id": list(range(1000)), "name": [f"{i:0500d}" for i in range(1000)], "qty": [0] * 1000}
    table.commit(table.data(values, row_group_size=100, compression="none", use_dictionary=False))
    table.commit(table.equality_delete({"id": list(range(1, 1000, 2))}, ids=[1]))
    all_columns, needle = scan_of(table, prune_row_groups=False), scan_of(table, prune_row_groups=False).where("id = 8")
    all_columns.to_table()
    assert needle.to_table().num_rows == 1
    assert needle.metrics.bytes_read < all_columns.metrics.bytes_read / 5
    assert needle.metrics.bytes_read + needle.metrics.bytes_skipped == all_columns.metrics.bytes_read


def test_untouched_row_groups_are_not_copied(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, [Column(1, "v", "double")])
    table.commit(table.data({"v": np.arange(5000) / 2}))
    batches = list(scan_of(table, batch_rows=1000).to_batches())
    addresses = {b.column(0).buffers()[1].address for b in batches}
    assert len(batches) == 5
    assert len(addresses) == 1


def test_explain_tells_what_will_be_read(tmp_path: Path) -> None:
    table, _ = with_deletes(tmp_path)
    text = scan_of(table).where("id > 3").explain()
    assert "id > 3" in text
