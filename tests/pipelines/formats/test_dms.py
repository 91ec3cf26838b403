"""DMS: before images, full loads, files of CSV and Parquet."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.decode.batches import RawEvents
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.sources.file_options import FileOptions
from nevermore.pipelines.sources.files import discover
from tests.pipelines.formats.decoded_feed import TABLE, changes, dms, read, reasons


def test_dms_before_images_in_either_form_show_key_changes() -> None:
    decoded = read(
        "dms-json",
        dms("load", {"id": 1, "n": "a"}),
        dms("update", {"id": 2, "n": "a", "BI_id": 1, "BI_n": "a"}),
        dms("update", {"id": 3, "n": "b"}, **{"before-image": {"id": 2}}),
        dms("delete", {"id": 3, "n": "b"}),
        {"metadata": {"record-type": "control", "operation": "create-table", "table-name": "products"}},
    )
    assert [(c["op"], c["key"]) for c in changes(decoded)] == [
        ("r", {"id": 1}),
        ("u", {"id": 1}),
        ("u", {"id": 2}),
        ("d", {"id": 3}),
    ]
    assert decoded.skipped == {"control event": 1}
    assert decoded.tables[TABLE].row_type == pa.struct([("id", pa.int64()), ("n", pa.string())])


def test_dms_files_of_csv_and_parquet_reach_the_same_changes(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("Op,id,price,at\nI,1,12.50,2024-01-01 10:00:00\nU,1,13.50,\nD,1,,\n")
    rows = {"Op": ["I", "U", "D"], "id": ["1"] * 3, "price": [Decimal("12.50"), Decimal("13.50"), None]}
    pq.write_table(
        pa.table({**rows, "at": pa.array([datetime(2024, 1, 1, 10), None, None], pa.timestamp("ms"))}),  # noqa: DTZ001 - DMS writes local times
        tmp_path / "2.parquet",
    )
    found = []
    for name in ("1.csv", "2.parquet"):
        (batch,) = discover([str(tmp_path / name)])
        types = {"id": "long", "price": "decimal(10,2)", "at": "timestamp"}
        found.append(changes(read("dms", raw=batch.raw, types=types)))
    assert found[0] == found[1]
    assert [c["op"] for c in found[0]] == ["c", "u", "d"]
    assert found[0][0]["after"]["price"] == Decimal("12.50")


def test_dms_full_load_files_have_no_op_column(tmp_path: Path) -> None:
    (tmp_path / "LOAD1.csv").write_text("1;a\n2;b\n")
    options = FileOptions(header=False, columns=("id", "n"), delimiter=";")
    (batch,) = discover([str(tmp_path / "*.csv")], None, options)
    assert [c["op"] for c in changes(read("dms-csv", raw=batch.raw))] == ["r", "r"]


def landed(folder: Path, name: str, text: str, **options: Any) -> RawEvents:
    (folder / name).write_text(text)
    (batch,) = discover([str(folder / name)], None, FileOptions(**options))
    return batch.raw


def test_dms_columns_of_before_images_in_files_show_key_changes(tmp_path: Path) -> None:
    raw = landed(tmp_path, "1.csv", "Op,id,n,BI_id,BI_n\nI,1,a,,\nU,2,a,1,a\nU,2,b,,\nD,2,b,2,b\n")
    decoded = read("dms", raw=raw, types={"id": "long"})
    assert [(row["op"], row["key"]["id"], row["after"]) for row in changes(decoded)] == [
        ("c", 1, {"id": 1, "n": "a"}),
        ("u", 1, {"id": 2, "n": "a"}),
        ("u", 2, {"id": 2, "n": "b"}),
        ("d", 2, None),
    ]


def test_dms_files_whose_op_is_written_in_lower_case_are_no_full_load(tmp_path: Path) -> None:
    raw = landed(tmp_path, "1.csv", "op,id\nI,1\nD,1\n")
    assert [row["op"] for row in changes(read("dms", raw=raw, types={"id": "long"}))] == ["c", "d"]
    raw = landed(tmp_path, "2.csv", "op,id\nI,1\nrepair,2\n")
    decoded = read("dms", raw=raw, types={"id": "long"})
    assert ([row["op"] for row in changes(decoded)], len(reasons(decoded))) == (["c"], 1)
    named = read("dms", raw=raw, types={"id": "long"}, options={"op_column": "none of these"})
    assert [row["op"] for row in changes(named)] == ["r", "r"]


def test_dms_full_load_is_seen_from_its_name(tmp_path: Path) -> None:
    raw = landed(tmp_path, "LOAD0000000A.csv", "id,city\n1,Berlin\n")
    assert [row["op"] for row in changes(read(None, raw=raw, types={"id": "long"}))] == ["r"]


def test_dms_changes_without_a_header_read_with_one_are_an_error_that_says_what_to_add(tmp_path: Path) -> None:
    raw = landed(tmp_path, "1.csv", "I,3,Rome\nU,1,Bonn\n")
    with pytest.raises(SourceError, match=r"I,3,Rome, is a change.*header: false, columns: \[Op"):
        read("dms", raw=raw)
