"""Damage that the fuzz suite found to end in anything but a clear refusal: one regression test each."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from nevermore import scan_core
from nevermore.scan_core import MalformedTableError
from tests.support.avro_edit import rewrite_avro
from tests.support.iceberg_json import Column, Partition
from tests.support.table_builder import TableBuilder

COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


def refusal(table: TableBuilder) -> str:
    with pytest.raises(MalformedTableError) as caught:
        scan_core.open_table(table.metadata_path).scan().to_table()
    return str(caught.value)


def test_position_delete_whose_path_is_no_utf8(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    data = table.data({"id": [1], "name": ["a"]})
    delete = table.position_delete([(data, 0)], compression="none")
    delete.record["lower_bounds"] = delete.record["upper_bounds"] = None
    delete.local.write_bytes(delete.local.read_bytes().replace(b"-data.parquet", b"-d\xffta.parquet"))
    table.commit(data, delete)
    assert delete.path in refusal(table)


def test_fixed_type_longer_than_arrow_can_hold(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    table.commit(table.data({"id": [1], "name": ["a"]}))
    table.evolve(*COLUMNS, Column(3, "f", "fixed[99999999999]"))
    assert table.metadata_path.name in refusal(table)
    assert "fixed[99999999999]" in refusal(table)


def test_default_that_is_no_value_of_its_column(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, version=3)
    data = table.data({"id": [1], "name": ["a"]})
    table.commit(data)
    table.evolve(*COLUMNS, Column(3, "added", "int", initial_default=[]))
    assert data.path in refusal(table)
    assert "'added'" in refusal(table)


def test_orc_column_whose_id_is_no_number(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    data = table.data({"id": [1], "name": ["a"]}, file_format="orc")
    fields = [pa.field("id", pa.int64(), metadata={"iceberg.id": "1"}), pa.field("name", pa.string())]
    fields[1] = fields[1].with_metadata({"iceberg.id": "two"})
    orc.write_table(pa.table([[1], ["a"]], schema=pa.schema(fields)), data.local)
    table.commit(data)
    assert data.path in refusal(table)
    assert "'name'" in refusal(table)


def test_partition_value_of_an_unknown_transform_reads_as_null(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, partitions=[Partition("p", 1, "zorder[3]", "int")])
    table.commit(table.data({"id": [1], "name": ["a"]}, partition={"p": 7}))
    scan = scan_core.open_table(table.metadata_path).scan()
    assert scan.select("_partition").to_table().to_pylist() == [{"_partition": {"p": None}}]


def test_partition_value_that_its_type_cannot_hold(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS, partitions=[Partition("p", 1)])
    data = table.data({"name": ["a"]}, partition={"p": 2**40})
    table.commit(data)
    document = table.document()
    document["schemas"][0]["fields"][0]["type"] = "int"
    table.metadata_path.write_text(json.dumps(document))
    assert data.path in refusal(table) or "manifest" in refusal(table)


def test_avro_column_whose_id_is_a_truth_value(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", COLUMNS)
    data = table.data({"id": [1], "name": ["a"]}, file_format="avro")
    rewrite_avro(str(data.local), lambda _, schema: schema["fields"][0].update({"field-id": True}))
    table.commit(data)
    assert data.path in refusal(table)
