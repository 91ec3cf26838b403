"""Plans of whole tables: fixtures, pruning, metrics, and the text that explains them."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from nevermore.scan_core.model.errors import MissingFileError
from nevermore.scan_core.model.options import ScanOptions
from tests.support.avro_edit import rewrite_avro
from tests.support.fixture_tables import fixture_tables, snapshots
from tests.support.iceberg_json import Column, Partition
from tests.support.plans import equality_paths, plan
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


def rows(*ids: int, name: str = "x") -> dict[str, list[Any]]:
    return {"id": list(ids), "name": [name] * len(ids)}


@pytest.fixture
def partitioned(tmp_path: Path) -> TableBuilder:
    """Partitions a, b, c with two files each, one commit each, and one delete file each."""
    table = TableBuilder(tmp_path, COLUMNS, partitions=[Partition("name", 2)])
    for name in "abc":
        files = [table.data(rows(i, i + 1, name=name), partition={"name": name}) for i in (1, 10)]
        table.commit(*files)
    for name in "abc":
        table.commit(table.equality_delete(rows(1, 10, name=name), ids=[1], partition={"name": name}))
    return table


@pytest.mark.each(5)
@pytest.mark.parametrize(("name", "snapshot"), snapshots())
def test_every_fixture_snapshot_can_be_planned(name: str, snapshot: str) -> None:
    table = fixture_tables()[name]
    for options in (ScanOptions(), ScanOptions.without_optimisations()):
        if not snapshot.isdigit():
            continue
        planned = plan(table.metadata, int(snapshot), relocate=table.relocate, options=options)
        metrics = planned.metrics
        assert metrics.data_files_planned == len(planned.tasks)
        named = {f.path for t in planned.tasks for g in t.equality_deletes for f in g.files}
        assert len(named) <= metrics.delete_files_planned
        assert planned.explain().startswith("scan of ")
        assert pickle.loads(pickle.dumps(planned.splits())) == planned.splits()  # noqa: S301 - our own bytes


def test_rule_23_a_table_without_snapshots_has_an_empty_plan(tmp_path: Path) -> None:
    planned = plan(TableBuilder(tmp_path, COLUMNS).metadata_path)
    assert planned.tasks == ()
    assert planned.splits() == ()
    assert "the table is empty" in planned.explain()


def test_rule_23_a_snapshot_without_manifests_has_an_empty_plan(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit()
    assert plan(table.metadata_path).tasks == ()


def test_an_older_snapshot_is_planned_by_its_own_manifests(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    first = table.commit(table.data(rows(1)))
    table.commit(table.data(rows(2)), table.equality_delete(rows(1), ids=[1]))
    assert len(plan(table.metadata_path, first).tasks) == 1
    assert plan(table.metadata_path, first).tasks[0].equality_deletes == ()


def test_manifests_are_pruned_by_partition_summaries_before_they_are_opened(partitioned: TableBuilder) -> None:
    def summarise(manifests: list[Any], _: Any) -> None:
        for number, manifest in enumerate(reversed(manifests)):
            name = "abc"[number % 3].encode()
            manifest["partitions"] = [{"contains_null": False, "lower_bound": name, "upper_bound": name}]

    rewrite_avro(partitioned.snapshots[-1]["manifest-list"], summarise)
    planned = plan(partitioned.metadata_path, where="name = 'a'")
    assert {t.data_file.partition for t in planned.tasks} == {("a",)}
    assert (planned.metrics.manifests_read, planned.metrics.manifests_pruned) == (2, 4)
    assert "left out by the filter, from the ranges of their partitions: 4" in planned.explain()
    unpruned = plan(partitioned.metadata_path, where="name = 'a'", options=ScanOptions.without_optimisations())
    assert unpruned.metrics.manifests_pruned == 0


def test_files_are_pruned_by_partition_and_by_bounds(partitioned: TableBuilder) -> None:
    planned = plan(partitioned.metadata_path, where="name = 'b'")
    assert {t.data_file.partition for t in planned.tasks} == {("b",)}
    planned = plan(partitioned.metadata_path, where="name = 'b' and id > 5")
    assert len(planned.tasks) == 1
    assert planned.metrics.data_files_pruned + planned.metrics.data_files_planned <= 6
    assert plan(partitioned.metadata_path, where="id > 500").tasks == ()


def test_every_pruning_can_be_switched_off(partitioned: TableBuilder) -> None:
    options = ScanOptions.of(prune_files=False, prune_deletes=False)
    planned = plan(partitioned.metadata_path, where="name = 'b' and id > 500", options=options)
    assert len(planned.tasks) == 6
    assert planned.metrics.data_files_pruned == 0


def test_the_filter_leaves_the_deletes_of_remaining_files_alone(partitioned: TableBuilder) -> None:
    planned = plan(partitioned.metadata_path, where="name = 'b' and id = 1")
    (task,) = planned.tasks
    assert len(equality_paths(task)) == 1


def test_metrics_add_up(partitioned: TableBuilder) -> None:
    everything = plan(partitioned.metadata_path).metrics
    assert (everything.manifests_read, everything.manifests_pruned) == (6, 0)
    assert (everything.data_files_planned, everything.delete_files_planned) == (6, 3)
    assert (everything.data_files_pruned, everything.delete_files_pruned) == (0, 0)


def test_explain_names_what_was_left_out_and_by_what(partitioned: TableBuilder) -> None:
    text = plan(partitioned.metadata_path, where="name = 'b' and id > 5").explain()
    assert "filter: name = 'b' and id > 5" in text
    assert "left out by" in text
    assert "partition name = 'b' (spec 0): 1 file" in text
    assert "equality deletes on (id) in partition name = 'b' (spec 0): 1 file with 2 keys" in text


def test_explain_shows_every_kind_of_delete(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS, version=3)
    one, two = table.data(rows(1, 2)), table.data(rows(3, 4))
    table.commit(one, two)
    table.commit(
        table.deletion_vector(one, [0]),
        table.position_delete([(two, 0)], referenced=two),
        table.equality_delete(rows(99), ids=[1]),
    )
    text = plan(table.metadata_path).explain()
    assert "delete files: 2 apply of 3 listed (0 equality, 1 position, 1 deletion vector)" in text
    assert "left out by key bounds: 1" in text
    assert "position deletes by path and row position: touch 1 data file" in text
    assert "deletion vectors by row position: touch 1 data file" in text


def test_a_snapshot_whose_manifest_is_gone_is_refused_by_name(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path, COLUMNS)
    table.commit(table.data(rows(1)))
    for manifest in (tmp_path / "metadata").glob("*-manifest.avro"):
        manifest.unlink()
    with pytest.raises(MissingFileError, match=r"-manifest\.avro"):
        plan(table.metadata_path)
