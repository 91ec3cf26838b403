"""Bounds of footers that are cut off, or the wrong way round, leave out no row and spare no row its delete."""

import struct
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.scan_core import Scan, ScanOptions
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

ROWS = 2_000
PREFIX = "b" * 16


def rewrite_bounds(file: Path, *replacements: tuple[bytes, bytes]) -> None:
    """Other bytes in place of length-prefixed ones of a Parquet footer, all at once."""
    data = file.read_bytes()
    (size,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - size : -8]
    for number, (old, _) in enumerate(replacements):
        assert _prefixed(old) in footer
        footer = footer.replace(_prefixed(old), b"<<%d>>" % number)
    for number, (_, new) in enumerate(replacements):
        footer = footer.replace(b"<<%d>>" % number, _prefixed(new))
    file.write_bytes(data[: -8 - size] + footer + struct.pack("<I", len(footer)) + b"PAR1")


def _prefixed(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def scan_of(folder: Path, kind: str, keys: list[Any], deleted: Any, *replacements: tuple[bytes, bytes]) -> Scan:
    """All keys but the deleted one."""
    built = TableBuilder(folder / "t", [Column(1, "k", kind)])
    file = built.data({"k": keys}, bloom_filter_options={"k": {"ndv": ROWS}})
    rewrite_bounds(Path(file.path), *replacements)
    file.record["file_size_in_bytes"] = Path(file.path).stat().st_size
    built.commit(file)
    built.commit(built.equality_delete({"k": [deleted]}, ids=[1]))
    return scan_core.open_table(built.metadata_path).scan()


@pytest.mark.parametrize("options", [ScanOptions(), ScanOptions.of(use_bloom_filters=False)])
def test_an_upper_bound_that_was_cut_off_covers_all_it_begins(tmp_path: Path, options: ScanOptions) -> None:
    keys = ["a", *(f"{PREFIX}{i:04}x" for i in range(1, ROWS))]
    cut = keys[-1].encode(), PREFIX.encode()
    scan = scan_of(tmp_path, "string", keys, keys[7], cut).with_options(options)
    assert scan.count() == ROWS - 1
    assert scan.semi_join("k", [keys[5], keys[7], keys[9]]).to_table()["k"].to_pylist() == [keys[5], keys[9]]


@pytest.mark.parametrize("options", [ScanOptions(), ScanOptions.of(use_bloom_filters=False)])
def test_bounds_the_wrong_way_round_tell_nothing(tmp_path: Path, options: ScanOptions) -> None:
    keys = list(range(1_000_000, 1_000_000 + ROWS))
    ends = [struct.pack("<q", k) for k in (keys[0], keys[-1])]
    swapped = (ends[0], ends[1]), (ends[1], ends[0])
    scan = scan_of(tmp_path, "long", keys, keys[7], *swapped).with_options(options)
    assert scan.count() == ROWS - 1
    assert scan.semi_join("k", [keys[5], keys[7], keys[9]]).to_table()["k"].to_pylist() == [keys[5], keys[9]]
