"""Checks of the keys that changed since a green snapshot find what checks of all rows find, and nothing else."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from nevermore.checks.equality import TOO_MANY, NeedsAllRows, check_changed_keys
from nevermore.checks.mirror_checks import checks_of, run_checks, snapshot_results
from nevermore.checks.subject import Subject
from nevermore.pipelines.ingest.feed_run import run_once
from tests.checks.mirror_tables import (
    MirrorTables,
    Row,
    key_is_unique,
    mirror_equals_reference,
    no_deleted_row_reappears,
)
from tests.support.shop_project import ShopProject, event

ALL = (no_deleted_row_reappears, mirror_equals_reference, key_is_unique)


def current(subject: Subject) -> int:
    found = subject.opened.metadata.current_snapshot_id
    assert found is not None
    return found


def compare_both(tables: MirrorTables, green: int) -> bool:
    """Whether the mirror is right: both ways must say the same."""
    subject = tables.subject()
    by_all = {check(subject).name: check(subject).passed for check in ALL}
    by_changed = check_changed_keys(subject, green)
    if isinstance(by_changed, NeedsAllRows) and "without a value" in by_changed.reason:
        return all(by_all.values())
    if isinstance(by_changed, NeedsAllRows):  # rows changed without the log, which is never right
        assert "keys the log did not change" in by_changed.reason
        assert not all(by_all.values())
        return False
    by_changed = {result.name: result for result in by_changed}
    assert by_changed["mirror_equals_reference"].passed is by_all["mirror_equals_reference"], by_changed
    assert all(by_all.values()) is all(result.passed for result in by_changed.values())
    return all(by_all.values())


@pytest.mark.slow
@pytest.mark.parametrize("partitioned", [False, True])
def test_rows_that_come_back_are_compared(tmp_path: Path, *, partitioned: bool) -> None:
    tables = MirrorTables(tmp_path, partitioned=partitioned)
    tables.apply([(1, "eu", 10), (None, "eu", 30), (2, "us", 20), (3, "us", 5)])
    green = current(tables.subject())
    tables.apply([(4, "us", 40)], deletes=[(1, "eu"), (2, "us")])
    files = tables.apply([(1, "eu", 12)], deletes=[(4, "us")])
    assert compare_both(tables, green)
    tables.mirror.commit(remove=[file for file in files if file.is_delete])
    assert not compare_both(tables, green)
    tables.apply([(None, "eu", 31)])
    assert isinstance(check_changed_keys(tables.subject(), green), NeedsAllRows)


@pytest.mark.parametrize("memory_bytes", [1, 1_000, 40_000])
def test_more_changes_than_fit_into_memory_are_left_to_the_comparison_in_buckets(
    tmp_path: Path, memory_bytes: int
) -> None:
    tables = MirrorTables(tmp_path, partitioned=False)
    tables.apply([(1, "eu", 10)])
    green = current(tables.subject())
    tables.apply([(number, "eu", number) for number in range(2, 200)])
    assert not isinstance(check_changed_keys(tables.subject(), green), NeedsAllRows)
    small = replace(tables.subject(), memory_bytes=memory_bytes)
    found = check_changed_keys(small, green)
    assert isinstance(found, NeedsAllRows)
    assert TOO_MANY in found.reason


def test_a_row_that_reappears_long_after_its_delete_fails_the_check_of_that_name(tmp_path: Path) -> None:
    tables = MirrorTables(tmp_path, partitioned=False)
    tables.apply([(1, "eu", 10), (2, "eu", 20)])
    tables.apply([], deletes=[(1, "eu")])
    green = current(tables.subject())
    tables.apply([(3, "eu", 30)])
    tables.mirror.commit(tables.mirror.data(tables._rows([(1, "eu", 10)]), partition={}))
    assert isinstance(check_changed_keys(tables.subject(), green), NeedsAllRows)
    assert not no_deleted_row_reappears(tables.subject()).passed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_histories_and_faults_are_judged_alike(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    tables = MirrorTables(tmp_path, partitioned=chance.random() < 0.5)
    alive: dict[tuple[int | None, str], Row] = {}

    def batch() -> list[object]:
        keys = [
            (chance.choice([*range(1, 12), *([] if seed % 4 else [None])]), chance.choice(["eu", "us"]))
            for _ in range(6)
        ]
        rows = {key: (*key, chance.randrange(5)) for key in keys[:4]}
        gone = [key for key in dict.fromkeys(keys[4:]) if key not in rows]
        alive.update(rows)
        for key in gone:
            alive.pop(key, None)
        return list(tables.apply(list(rows.values()), deletes=gone))

    for _ in range(chance.randrange(1, 4)):
        batch()
    green = current(tables.subject())
    files = [file for _ in range(chance.randrange(0, 4)) for file in batch()]
    assert compare_both(tables, green)
    match chance.randrange(3):
        case 0 if files:
            tables.mirror.commit(remove=[chance.choice(files)])  # type: ignore[list-item]
        case 1:
            key = chance.choice([*alive, (77, "eu")])
            partition = {"region": key[1]} if tables.partitioned else {}
            tables.mirror.commit(tables.mirror.data(tables._rows([(*key, 9)]), partition=partition))
        case _:
            region = "eu"
            partition = {"region": region} if tables.partitioned else {}
            values = {"id": [k[0] for k in alive][:1] or [1], "region": [region]}
            ids = [1] if tables.partitioned else [1, 2]
            tables.mirror.commit(tables.mirror.equality_delete(values, ids=ids, partition=partition))
    compare_both(tables, green)


_KEYS = {
    "long": [1, 2, 3], "string": ["a", "b", "ü"], "decimal(20, 3)": ["1.5", "2.25", "-3.125"],
    "date": [20_454, 20_455, 20_456], "uuid": ["f47ac10b-58cc-4372-a567-0e02b2c3d479", "00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "timestamptz": ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00.123456Z", "1969-01-02T00:00:00Z"],
    "boolean": [True, False, None], "binary": ["AQ==", "/w==", "AAA="],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["uuid", *(pytest.param(k, marks=pytest.mark.slow) for k in _KEYS if k != "uuid")])
def test_keys_of_all_types_are_found(tmp_path: Path, kind: str) -> None:
    project = ShopProject(tmp_path)
    text = project.path.read_text().replace(
        "types: {amount: double, day: date}", f'types: {{id: "{kind}", x: "{kind}"}}'
    )
    project.path.write_text(text)
    config = project.config
    first, second, third = ({"id": key, "x": key, "n": None, "parts": {"a": [1]}} for key in _KEYS[kind])
    third = {**third, "id": third["id"] if third["id"] is not None else True}
    project.land("orders", "1.jsonl", [event("c", "orders", after=row) for row in (first, second)])
    run_once(config)
    assert all(result.passed for result in run_checks(config, "shop.orders", checks_of(config, "shop.orders")))
    project.land("orders", "2.jsonl", [
        event("d", "orders", before=first), event("u", "orders", before=second, after={**second, "n": None}),
        *([event("c", "orders", after=third)] if kind != "boolean" else []),
    ])  # fmt: skip
    run_once(config)
    kept = snapshot_results(config, "shop.orders")
    assert kept.since is not None
    assert {result.passed for result in kept.results.values()} == {True}, kept


def test_values_that_were_not_sent_again_are_those_of_the_green_snapshot(tmp_path: Path) -> None:
    project = ShopProject(tmp_path)
    unsent = "__debezium_unavailable_value"
    row = {"id": 1, "amount": 1.0, "day": None, "note": "long"}
    project.land("orders", "1.jsonl", [event("c", "orders", after=row)])
    run_once(project.config)
    snapshot_results(project.config, "shop.orders")
    project.land("orders", "2.jsonl", [
        event("u", "orders", before=row, after={**row, "amount": 2.0, "note": unsent}),
        event("u", "orders", before=row, after={**row, "id": 2, "note": unsent}),
    ])  # fmt: skip
    run_once(project.config)
    kept = snapshot_results(project.config, "shop.orders")
    assert kept.since is not None
    assert {result.passed for result in kept.results.values()} == {True}, kept
    assert kept.results["mirror_equals_reference"].compared["keys changed"] == 2
