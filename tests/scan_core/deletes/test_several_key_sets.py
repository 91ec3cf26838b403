from pathlib import Path

import pytest

from nevermore import scan_core
from nevermore.scan_core.model.options import ScanOptions
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder


@pytest.mark.parametrize("prune", [True, False])
def test_rule_08c_delete_sets_of_several_keys_and_scopes_remove_their_rows_together(
    tmp_path: Path,
    *,
    prune: bool,
) -> None:
    columns = [Column(1, "id", "long"), Column(2, "name", "string"), Column(3, "p", "int")]
    table = TableBuilder(tmp_path / "t", columns, partitions=[Partition("p", 3)])
    partitioned = table.spec_id
    rows = {"id": [1, 2, 3, 4], "name": ["a", "b", "c", "d"]}
    table.commit(*(table.data(rows | {"p": [p] * 4}, partition={"p": p}) for p in (0, 1)))
    everywhere = table.repartition()
    table.commit(
        table.equality_delete({"id": [1, 2], "name": ["a", "b"]}, ids=[1, 2], spec_id=everywhere),
        table.equality_delete({"id": [1]}, ids=[1], spec_id=partitioned, partition={"p": 0}),
        table.equality_delete({"id": [3], "name": ["c"]}, ids=[1, 2], spec_id=partitioned, partition={"p": 1}),
    )
    table.commit(table.equality_delete({"id": [3]}, ids=[1], spec_id=everywhere))
    scan = scan_core.open_table(table.metadata_path).scan().with_options(ScanOptions.of(prune_deletes=prune))
    found = sorted(scan.select("id", "p").to_table().to_pylist(), key=str)
    assert found == [{"id": 4, "p": 0}, {"id": 4, "p": 1}]
