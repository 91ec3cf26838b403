"""Rule 29: a batch that compaction or other upkeep overtakes is committed as it was written, wherever its rows have gone."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.pipelines.config.project import parse
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import CommitConflictError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.commit import upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.manifest_order import arrange_manifests
from nevermore.pipelines.maintain.retention import MaintainedTable, expire
from nevermore.pipelines.mirrors import mirror
from tests.pipelines.change_batches import Pipeline, change
from tests.pipelines.iceberg_tables import catalog_in
from tests.pipelines.mirrors.mirrored_rows import COLUMNS, row

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.pipelines.warm_ingest", "nevermore.pipelines.maintain.compact"])
PARTS = {**COLUMNS, "part": pa.int32()}
MODES: dict[str, dict[str, Any]] = {
    "equality": {},
    "equality, version 3": {"format_version": 3},
    "vectors": {"deletes": "vectors", "format_version": 3},
    "vectors, soft deletes": {"deletes": "vectors", "format_version": 3, "soft_delete": True},
    "vectors, no key": {"deletes": "vectors", "format_version": 3, "identity": "full"},
    "no key": {"identity": "full"},
}
SPECS: dict[str, tuple[str | None, str | None]] = {
    "no partitions": (None, None),
    "by key": ("bucket(2, id)", None),
    "by value": ("part", None),
    "none, then by value": (None, "part"),
    "by value, then by key": ("part", "id"),
    "by key, then by value": ("bucket(2, id)", "part"),
}
"""How a mirror is partitioned, and what is added to that later."""
LINEAGE = ("_row_id", "_last_updated_sequence_number")
State = dict[int, dict[str, Any]]


def compact_all(folder: Path) -> None:
    compact(table_in(folder), CompactSettings(rewrite_all=True))


def compact_one(folder: Path) -> None:
    compact(table_in(folder), CompactSettings(rewrite_all=True, where="id < 5"))


def convert_all(folder: Path) -> None:
    convert(table_in(folder))


def convert_and_compact(folder: Path) -> None:
    convert_all(folder)
    compact_all(folder)


def arrange(folder: Path) -> None:
    with patch("nevermore.pipelines.maintain.manifest_order.MIN_GAIN", -9.0):
        assert arrange_manifests(table_in(folder)).snapshot_id is not None


def expire_others(folder: Path) -> None:
    kept = RetentionConfig(keep_snapshots=1, keep_for=0.001)
    config = parse("tables: {}", folder / "nevermore.yaml")
    assert expire(catalog_in(folder), config, MaintainedTable("shop.t", "shop.t", kept)).error is None


def nothing(_folder: Path) -> None:
    pass


def compact_and_expire(folder: Path) -> None:
    compact_all(folder)
    expire_others(folder)


FOLLOWED: dict[str, list[Callable[[Path], None]]] = {
    "nothing": [nothing],
    "compact": [compact_all],
    "compact a part": [compact_one],
    "compact twice": [compact_one, compact_all],
    "convert": [convert_all],
    "convert, compact": [convert_and_compact],
    "convert, then compact": [convert_all, compact_all],
    "arrange manifests": [arrange],
    "expire": [expire_others],
    "compact, then expire": [compact_all, expire_others],
    "compact and expire": [compact_and_expire],
}
"""What happens before each attempt of a commit."""


def table_in(folder: Path) -> Any:
    return catalog_in(folder).load_table("shop.t")


class Shop:
    """A mirror of rows 0 to 9 with deletes in several commits, and what it has to contain."""

    def __init__(self, folder: Path, mode: str, specs: str) -> None:
        before, after = SPECS[specs]
        self.options = {**MODES[mode]}
        early = {name: value for name, value in self.options.items() if name not in {"format_version", "deletes"}}
        if before is not None:
            early["partition_by"] = [before]
        key = tuple(PARTS) if early.get("identity") == "full" else ("id",)
        self.pipeline = Pipeline(folder, PARTS, key, options=early)
        self.folder = folder
        self.prepared = 0
        self.state: State = {}
        self.run([("c", self.row(i)) for i in range(10)])
        if after is not None:
            with self.pipeline.table.update_spec() as update:
                update.add_field(after, "bucket[2]" if after == "id" else "identity", f"{after}_later")
        self.pipeline.options = {**early, **MODES[mode]}
        self.run([("u", self.row(1, "B")), ("d", self.row(2)), ("c", self.row(10))])
        self.run([("u", self.row(3, "B")), ("u", self.row(10, "B")), ("d", self.row(4))])

    def row(self, key: int, name: str = "a") -> dict[str, Any]:
        return row(key, name, part=key % 3)

    def run(self, changes: list[tuple[str, dict[str, Any]]]) -> None:
        self.log(changes)
        self.pipeline.catch_up()

    def log(self, changes: list[tuple[str, dict[str, Any]]]) -> None:
        full = []
        for op, new in changes:
            old = self.state.get(new["id"])
            full.append(change(op, old if op == "d" else new, before=old))
            if op == "d":
                del self.state[new["id"]]
            else:
                self.state[new["id"]] = new
        self.pipeline.log(*full)

    def overtaken_by(self, acts: list[Callable[[Path], None]]) -> None:
        """Apply what is logged, with these before the first, the second and later attempts to commit."""
        prepare, left = mirror.prepare, list(acts)

        def prepared(*arguments: Any, **options: Any) -> Any:
            self.prepared += 1
            return prepare(*arguments, **options)

        def reached(point: str) -> None:
            if point == "after-manifests" and left:
                with patch.object(storage, "reached", lambda _: None), patch.object(mirror, "prepare", prepare):
                    left.pop(0)(self.folder)

        with patch.object(mirror, "prepare", prepared), patch.object(storage, "reached", reached):
            self.pipeline.catch_up()
        assert not left or acts[0] is convert_all  # which has nothing to do where ingest has written vectors

    @property
    def lineage(self) -> dict[int, tuple[int | None, int | None]]:
        found = scan_core.open_table(self.pipeline.table).scan().select("id", *LINEAGE).to_table().to_pylist()
        assert len({entry["_row_id"] for entry in found}) == len(found) or self.pipeline.table.format_version < 3
        return {entry["id"]: tuple(entry[name] for name in LINEAGE) for entry in found}

    def check(self) -> None:
        table = self.pipeline.table
        rows = list(self.state.values())
        is_soft = self.options.get("soft_delete")
        found = [r for r in self.pipeline.rows if not r.get("_deleted")] if is_soft else self.pipeline.rows
        assert [{name: r[name] for name in PARTS} for r in found] == sorted(rows, key=lambda r: r["id"])
        scan = scan_core.open_table(table).scan()
        assert sorted(scan.to_table().to_pylist(), key=lambda r: r["id"]) == self.pipeline.rows
        assert not (damage := verify_table(scan_core.open_table(table), all_snapshots=True).damage), damage
        named = set(table.inspect.all_files()["file_path"].to_pylist())
        stored = (self.folder / "warehouse/shop/t/data").rglob("*.p*")
        assert {f"file://{path}" for path in stored if not path.name.startswith("compact-")} <= named
        if self.options.get("deletes") == "vectors":
            contents = table.inspect.delete_files()["content"].to_pylist()
            assert set(contents) <= {1}


def batch(shop: Shop) -> list[tuple[str, dict[str, Any]]]:
    """Updates, deletes and inserts of old and new rows, of which some change their partition."""
    moved = {**shop.row(5, "moved"), "part": 0}
    return [
        ("u", shop.row(1, "C")),
        ("u", shop.row(3, "C")),
        ("d", shop.row(6)),
        ("d", shop.row(10)),
        ("u", moved),
        ("c", shop.row(4, "again")),
        ("c", shop.row(11)),
    ]


CASES = list(product(MODES, SPECS, FOLLOWED))
QUICK = {
    ("equality", "by key, then by value", "compact"),
    ("equality", "none, then by value", "compact a part"),
    ("equality, version 3", "by value, then by key", "convert, then compact"),
    ("vectors", "no partitions", "compact twice"),
    ("vectors", "by value", "convert, compact"),
    ("vectors", "by value, then by key", "compact a part"),
    ("vectors, no key", "by key, then by value", "compact"),
}


@pytest.mark.parametrize(
    ("mode", "specs", "acts"), [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_rule_29_batches_outlast_what_changes_no_row(tmp_path: Path, mode: str, specs: str, acts: str) -> None:
    shop = Shop(tmp_path, mode, specs)
    before = shop.lineage
    shop.log(batch(shop))
    shop.overtaken_by(FOLLOWED[acts])
    # An expired base no longer tells what has come since, and deletes of a partition do not follow rows to another spec.
    is_moved = SPECS[specs][1] is not None and "vectors" not in mode and "compact" in acts
    assert shop.prepared == 1 or is_moved or acts == "compact and expire"
    shop.check()
    if shop.pipeline.table.format_version > 2:
        changed = {r["id"] for _, r in batch(shop)}
        after = shop.lineage
        kept = before.keys() - changed
        assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    compact_all(tmp_path)
    shop.check()


def test_rule_29_an_upgrade_that_overtakes_a_batch_lets_it_be_written_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "equality", "by key, then by value")
    shop.log(batch(shop))
    shop.overtaken_by([lambda _folder: upgrade(shop.pipeline.table, 3)])
    assert shop.prepared == 2
    shop.check()


@pytest.mark.each(2)
@pytest.mark.parametrize("mode", ["equality", "vectors"])
@pytest.mark.parametrize("acts", [[], [compact_all]])
def test_rule_29_another_ingest_that_overtakes_a_batch_ends_it(
    tmp_path: Path, mode: str, acts: list[Callable[[Path], None]]
) -> None:
    shop = Shop(tmp_path, mode, "by key, then by value")
    shop.log(batch(shop))

    def ingest(_folder: Path) -> None:
        shop.pipeline.catch_up()

    with pytest.raises(CommitConflictError, match="another ingester"):
        shop.overtaken_by([*acts, ingest])
    shop.check()


@pytest.mark.each(2)
@pytest.mark.parametrize("mode", ["equality", "vectors"])
def test_rule_29_a_batch_outlasts_many_rewrites(tmp_path: Path, mode: str) -> None:
    shop = Shop(tmp_path, mode, "by value, then by key")
    shop.log(batch(shop))
    shop.overtaken_by([compact_all] * 9)
    assert shop.prepared == {"equality": 2, "vectors": 1}[mode]  # the first one moves rows to another partition spec
    shop.check()


def compact_always(folder: str) -> None:
    """A compaction of everything after the other, and a conversion."""
    Path(folder, "ready").touch()
    while True:
        with suppress(CommitConflictError):
            convert_and_compact(Path(folder))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("specs", ["no partitions", "by value, then by key"])
@pytest.mark.parametrize("mode", ["equality", "vectors"])
def test_rule_29_large_batches_do_not_starve_beside_a_compaction_that_never_rests(
    tmp_path: Path, mode: str, specs: str
) -> None:
    shop = Shop(tmp_path, mode, specs)
    other = FORKS.Process(target=compact_always, args=(str(tmp_path),), daemon=True)
    other.start()
    try:
        while not (tmp_path / "ready").exists():
            time.sleep(0.1)
        began = len(shop.pipeline.table.metadata.snapshots)
        for number in range(8):
            gone = [("d", shop.row(key)) for key in range(0, 9000, 7) if key in shop.state]
            shop.log([*gone, *(("u", shop.row(key, f"{number}")) for key in range(number, 9000, 3))])
            shop.overtaken_by([])
        replaced = len(shop.pipeline.table.metadata.snapshots) - began - 8
    finally:
        other.kill()
        other.join()
    assert replaced > 8
    assert shop.prepared <= 10
    shop.check()
