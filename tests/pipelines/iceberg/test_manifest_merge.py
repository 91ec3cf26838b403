import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.iceberg.commit import RowDelta
from nevermore.pipelines.iceberg.manifests import FAN_IN, MAX_MANIFESTS, TARGET_BYTES, NamedFiles, to_merge
from nevermore.pipelines.iceberg.table_writer import write_rows
from tests.pipelines.change_batches import Pipeline, change
from tests.pipelines.iceberg_tables import catalog_in, new_table, rows_of

NUM_FILES = 400


def manifest(entries: int, *, content: int = 0, spec: int = 0, length: int = 5_000) -> dict[str, Any]:
    return {
        "content": content,
        "partition_spec_id": spec,
        "manifest_length": length,
        "added_files_count": entries,
        "existing_files_count": 0,
        "deleted_files_count": 0,
    }


def test_full_tier_is_merged() -> None:
    ones = [manifest(1) for _ in range(FAN_IN)]
    assert to_merge(ones[1:]) == []
    assert to_merge([manifest(40), *ones]) == [ones]


def test_contents_and_specs_are_kept_apart() -> None:
    mixed = [manifest(1, content=i % 2, spec=i // 2 % 2) for i in range(4 * FAN_IN)]
    groups = to_merge(mixed)
    assert len(groups) == 4
    assert all(len({(m["content"], m["partition_spec_id"]) for m in group}) == 1 for group in groups)


def test_large_manifests_are_left_alone_until_there_are_too_many() -> None:
    assert to_merge([manifest(1, length=TARGET_BYTES) for _ in range(FAN_IN)]) == []
    assert to_merge([manifest(300) for _ in range(FAN_IN)]) == []
    (group,) = to_merge([manifest(300 + i) for i in range(MAX_MANIFESTS + 1)])
    assert [m["added_files_count"] for m in group] == list(range(300, 300 + FAN_IN))


def test_many_commits_leave_few_manifests_and_all_rows(tmp_path: Path) -> None:
    table = new_table(catalog_in(tmp_path), {"id": "long"}, ("bucket[4]", "id"))
    for key in range(35):
        delta = RowDelta(table)
        delta.commit(write_rows(pa.table({"id": [key]}), delta.target, delta.default_spec), {})
    manifests = table.current_snapshot().manifests(table.io)
    assert len(manifests) < FAN_IN
    entries = [e for m in manifests for e in m.fetch_manifest_entry(table.io)]
    assert sorted(e.sequence_number for e in entries) == list(range(1, 36))
    assert [r["id"] for r in rows_of(table)] == list(range(35))


@pytest.mark.slow
def test_rule_03_deletes_keep_their_sequence_numbers_when_manifests_merge(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, {"id": pa.int64(), "name": pa.string()})
    for number in range(2 * FAN_IN + 3):
        row = {"id": number % 3, "name": f"{number}"}
        pipeline.run(change("u", row))
    last = 2 * FAN_IN + 2
    expected = {(last - back) % 3: f"{last - back}" for back in range(3)}
    assert {r["id"]: r["name"] for r in pipeline.rows} == expected
    manifests = pipeline.table.current_snapshot().manifests(pipeline.table.io)
    assert len(manifests) < 2 * FAN_IN


def test_a_manifest_without_one_of_its_files_is_written_without_holding_the_statistics_of_all(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(30)]
    table = new_table(catalog_in(tmp_path), dict.fromkeys(names, "long"))
    delta = RowDelta(table)
    (file,) = write_rows(pa.table({name: [1] for name in names}), delta.target, delta.default_spec)
    delta.commit([replace(file, path=f"{file.path}-{number}") for number in range(NUM_FILES)], {})

    delta = RowDelta(table)
    tracemalloc.start()
    delta.commit([], {}, remove=NamedFiles(frozenset({(f"{file.path}-7", None)})), operation="delete")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < NUM_FILES * 5_000
    assert [m.existing_files_count for m in table.current_snapshot().manifests(table.io)] == [NUM_FILES - 1]
