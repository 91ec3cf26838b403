"""Each check fails when it should: engine or data are broken on purpose, one fault at a time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from nevermore.checks.configured import quarantine_is_small, schema_matches
from nevermore.checks.mirror_checks import KEYED_CHECKS, MIRROR_CHECKS, results_of
from nevermore.checks.subject import Subject
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.scan_core.deletes.filter import EqualityFilter
from nevermore.scan_core.plan import delete_index, planner
from tests.checks.faults import FAULTS, Fault, plan_objects
from tests.checks.mirror_tables import (
    MirrorTables,
    key_is_unique,
    mirror_equals_reference,
    no_deleted_row_reappears,
    no_rows_lost,
    shop,
)
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

CHECKS: dict[str, Callable[[Subject], CheckResult]] = {
    "equals": mirror_equals_reference,
    "deleted": no_deleted_row_reappears,
    "unique": key_is_unique,
    "lost": no_rows_lost,
}


def failing(subject: Subject) -> dict[str, CheckResult]:
    results = {name: check(subject) for name, check in CHECKS.items()}
    return {name: result for name, result in results.items() if not result.passed}


@pytest.mark.each(2)
@pytest.mark.parametrize("partitioned", [False, True])
def test_all_checks_pass_on_a_right_mirror(tmp_path: Path, *, partitioned: bool) -> None:
    tables, _ = shop(tmp_path, partitioned=partitioned)
    assert failing(tables.subject()) == {}
    assert schema_matches(tables.subject()).passed
    assert mirror_equals_reference(tables.subject()).compared == {
        "rows from engine": 4,
        "rows in files": 4,
        "rows by log": 4,
    }


def test_dropped_delete_file_is_found_by_all_checks_but_loss(tmp_path: Path) -> None:
    tables, batches = shop(tmp_path)
    tables.mirror.commit(remove=[f for f in batches[1] if f.is_delete])
    found = failing(tables.subject())
    assert found.keys() == {"equals", "deleted", "unique"}
    assert found["unique"].offending_keys == [{"id": 2, "region": "eu", "occurrences": 2}]
    assert found["deleted"].offending_keys == [{"id": None, "region": "eu"}]
    assert {"id": None, "region": "eu"} in found["equals"].offending_keys


def test_engine_that_loses_delete_files_differs_from_both_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, _ = shop(tmp_path)
    monkeypatch.setattr(planner, "read_delete_manifests", lambda *_, **__: [])
    found = failing(tables.subject())
    assert found.keys() == {"equals", "deleted", "unique"}
    assert [d for d in found["equals"].details if "its own files" in d]
    assert [d for d in found["equals"].details if "its change log" in d]


def test_engine_that_deletes_rows_of_the_same_commit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, _ = shop(tmp_path)
    read = planner.read_delete_manifests

    def one_later(*arguments: Any, **options: Any) -> Any:
        manifests = read(*arguments, **options)
        return [[replace(f, data_sequence_number=f.data_sequence_number + 1) for f in files] for files in manifests]

    monkeypatch.setattr(planner, "read_delete_manifests", one_later)
    plan_objects(monkeypatch)
    found = failing(tables.subject())
    assert found.keys() == {"equals", "lost"}
    assert {"id": 4, "region": "us"} in found["lost"].offending_keys


def test_engine_that_ignores_scope_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, _ = shop(tmp_path, partitioned=True)
    monkeypatch.setattr(delete_index, "scope_of", lambda *_: None)
    found = failing(tables.subject())
    assert found.keys() == {"equals", "lost"}
    assert found["lost"].offending_keys == [{"id": 1, "region": "us"}]


def test_engine_for_which_null_does_not_equal_null_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, _ = shop(tmp_path)
    keep = EqualityFilter.keep

    def null_is_unknown(self: EqualityFilter, keys: Any) -> Any:
        kept = keep(self, keys)
        for key in keys:
            kept = kept | key.is_null().to_numpy(zero_copy_only=False)
        return kept

    monkeypatch.setattr(EqualityFilter, "keep", null_is_unknown)
    found = failing(tables.subject())
    assert found.keys() == {"equals", "deleted"}
    assert found["deleted"].offending_keys == [{"id": None, "region": "eu"}]


def test_compaction_that_resurrects_rows_is_found(tmp_path: Path) -> None:
    tables, batches = shop(tmp_path)
    rewritten = tables.mirror.data(
        {"id": [1, 2, None, 1, 3], "region": ["eu"] * 3 + ["us"] * 2, "qty": [10, 20, 30, 40, 50]}
    )
    tables.mirror.commit(rewritten, remove=[batches[0][0]], operation="replace")
    found = failing(tables.subject())
    assert found.keys() == {"equals", "deleted", "unique"}
    assert found["deleted"].offending_keys == [{"id": 3, "region": "us"}, {"id": None, "region": "eu"}]


def test_compaction_with_the_oldest_sequence_number_is_found_to_lose_rows(tmp_path: Path) -> None:
    tables, batches = shop(tmp_path)
    rewritten = tables.mirror.data({"id": [1, 4], "region": ["eu", "us"], "qty": [11, 60]})
    rewritten.sequence_number = 1
    tables.mirror.commit(rewritten, remove=[batches[2][0]], operation="replace")
    found = failing(tables.subject())
    assert found.keys() == {"equals", "lost"}


def test_changed_value_and_changed_type_are_found(tmp_path: Path) -> None:
    tables, batches = shop(tmp_path)
    wrong = tables.mirror.data({"id": [4, 1], "region": ["us", "eu"], "qty": [61, 11]})
    tables.mirror.commit(wrong, remove=[batches[2][0]], operation="replace")
    found = failing(tables.subject())
    assert found.keys() == {"equals"}
    assert found["equals"].offending_keys == [{"id": 4, "region": "us"}]
    tables.mirror.evolve(Column(1, "id", "long"), Column(2, "region", "string"), Column(3, "qty", "long"))
    assert any("types differ" in d for d in mirror_equals_reference(tables.subject()).details)
    assert schema_matches(tables.subject()).details == ["column qty is long, the log has int"]


def test_mirror_that_lags_is_compared_with_what_it_claims_to_contain(tmp_path: Path) -> None:
    tables, _ = shop(tmp_path)
    behind = tables.mirror.metadata_path.read_bytes()
    tables.apply([(9, "eu", 1)], deletes=[(4, "us")])
    tables.mirror.metadata_path.write_bytes(behind)
    assert failing(tables.subject()) == {}
    ahead = replace(tables.subject(), up_to_ordinal=tables.ordinal)
    assert failing(ahead).keys() == {"equals", "deleted", "lost"}


def test_soft_deleted_rows_count_as_gone_only_when_flagged(tmp_path: Path) -> None:
    tables = MirrorTables(tmp_path)
    tables.apply([(1, "eu", 1), (2, "eu", 2)], deletes=[])
    tables.log.commit(tables.log.data(tables._changes([("d", (1, "eu"), None)])))
    flagged = [*tables.mirror.columns, Column(4, "_deleted", "boolean")]
    tables.mirror.evolve(*flagged)
    rows = {"id": [1], "region": ["eu"], "qty": [1]}
    delete = {"id": [1], "region": ["eu"]}
    summary = {"nevermore.change-log-ordinal": str(tables.ordinal)}
    for flag, wrong in ((True, set()), (False, {"equals", "deleted"})):
        data = tables.mirror.data(rows | {"_deleted": [flag]})
        tables.mirror.commit(data, tables.mirror.equality_delete(delete, ids=[1, 2]), summary=summary)
        assert failing(replace(tables.subject(), soft_delete=True)).keys() == wrong


def test_quarantine_share_decides(tmp_path: Path) -> None:
    tables, _ = shop(tmp_path)
    log = str(tables.log.metadata_path)
    assert quarantine_is_small(None, scan_core.open_table(log), 0.01).passed
    quarantine = TableBuilder(tmp_path / "q", [Column(1, "reason", "string")])
    quarantine.commit(quarantine.data({"reason": ["bad"] * 2}))
    assert not quarantine_is_small(
        scan_core.open_table(quarantine.metadata_path), scan_core.open_table(log), 0.01
    ).passed
    assert quarantine_is_small(
        scan_core.open_table(quarantine.metadata_path), scan_core.open_table(log), max_share=0.5
    ).passed


# -- every fault of the list ---------------------------------------------------------------------------------------------

REAL_CHECKS = {name: check for name, check in MIRROR_CHECKS.items() if name in KEYED_CHECKS}


@pytest.mark.each(19)
@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.where}: {f.what}" for f in FAULTS])
def test_a_seeded_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    tables, batches = shop(tmp_path, partitioned=fault.partitioned, version=fault.version)
    if fault == FAULTS[0] or fault.partitioned or fault.version > 2:
        assert all(result.passed for result in results_of(tables.subject(), list(REAL_CHECKS)))
    fault.seed(tables, batches, monkeypatch)
    subject = tables.subject()
    assert {result.name for result in results_of(subject, list(REAL_CHECKS)) if not result.passed} == fault.found_by
