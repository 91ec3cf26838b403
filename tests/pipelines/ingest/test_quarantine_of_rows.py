"""Rows of CSV and Parquet files in quarantine: shown as they came, and tried again like any other event."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nevermore.pipelines.changes.quarantine import held_events
from nevermore.pipelines.config.project import load
from nevermore.pipelines.decode.events import documents_of, rows_of, schema_of, shown
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.quarantine_replay import QuarantineReplayed, replay_quarantine
from tests.pipelines.project import Project

NAME = "shop.products"


class Rows:
    """A project whose source are files of rows."""

    def __init__(self, folder: Path, source: dict[str, Any], **table: Any) -> None:
        self.project = Project(folder)
        self.source = {"type": "files", "path": "landing/*", **source}
        self.config(**table)

    def config(self, *, options: dict[str, Any] | None = None, **table: Any) -> None:
        source = {**self.source, **({} if options is None else {"options": options})}
        document = {"tables": {NAME: {"source": source, "key": ["id"], "max_quarantine_ratio": 1, **table}}}
        (self.project.folder / "nevermore.yaml").write_text(yaml.safe_dump(document))

    def replay(self) -> QuarantineReplayed:
        config = load(self.project.folder / "nevermore.yaml")
        return replay_quarantine(open_catalog(config), config, NAME)

    def held(self) -> list[str]:
        config = load(self.project.folder / "nevermore.yaml")
        return [shown(event["raw"]).decode() for event in held_events(open_catalog(config), NAME, 10)]


def test_rows_of_a_full_load_and_of_changes_of_dms_are_replayed(tmp_path: Path) -> None:
    options = {"header": False, "columns": ["Op", "id", "price"]}
    rows = Rows(tmp_path, {"format": "dms"}, options=options, types={"id": "long", "price": "decimal(4,2)"})
    (rows.project.landing / "LOAD00000001.csv").write_text("1,12345.00\n2,1.00\n")
    (rows.project.landing / "changes.csv").write_text("I,3,1.00\nI,4,12345.00\nU,5,99999.00\nD,2,\n")
    assert rows.project.run().exit_code == 3
    assert rows.held() == [
        '{"id":"1","price":"12345.00"}',
        '{"Op":"I","id":"4","price":"12345.00"}',
        '{"Op":"U","id":"5","price":"99999.00"}',
    ]
    rows.config(options=options, types={"id": "long", "price": "decimal(10,2)"})
    done = rows.replay()
    assert (done.applied, done.rejected) == (3, 0)
    found = {row["id"]: str(row["price"]) for row in rows.project.rows()}
    assert found == {1: "12345.00", 3: "1.00", 4: "12345.00", 5: "99999.00"}
    assert rows.project.run().found_nothing_new


def test_records_that_were_too_wide_are_replayed_once_config_names_their_columns(tmp_path: Path) -> None:
    options = {"header": False, "columns": ["Op", "id", "city"]}
    rows = Rows(tmp_path, {"format": "dms"}, options=options, types={"id": "long"})
    (rows.project.landing / "1.csv").write_text('I,1,Berlin\nI,2,"Paris, F",75001\nI,3,"x"y\n')
    assert rows.project.run().exit_code == 3
    rows.config(options={**options, "columns": ["Op", "id", "city", "zip"]}, types={"id": "long"})
    done = rows.replay()
    assert (done.applied, done.rejected) == (1, 1)
    assert rows.project.rows()[1:] == [{"id": 2, "city": "Paris, F", "zip": "75001"}]


@pytest.mark.parametrize("format_", ["rows", "dms"])
def test_rows_of_parquet_are_replayed_in_their_types(tmp_path: Path, format_: str) -> None:
    rows = Rows(tmp_path, {"format": format_}, types={"n": "int"})
    row = {
        "Op": "I", "id": 2, "n": 2**40, "price": Decimal("1.50"), "data": b"\xff\0", "day": dt.date(2024, 1, 1),
        "at": dt.datetime(2024, 1, 1, 10), "list": [1, None],  # noqa: DTZ001 - DMS writes local times
    }  # fmt: skip
    good = dict.fromkeys(row) | {"Op": "I", "id": 1, "n": 1}
    pq.write_table(pa.Table.from_pylist([row, good]), rows.project.landing / "1.parquet")
    assert rows.project.run().exit_code == 3
    rows.config(types={"n": "long"})
    assert rows.replay().applied == 1
    assert rows.project.rows()[1] == {name: value for name, value in row.items() if name != "Op"}


def test_rows_come_back_as_they_were() -> None:
    fields = {
        "t": pa.string(), "i": pa.int16(), "u": pa.uint64(), "f": pa.float32(), "b": pa.large_binary(), "z": pa.bool_(),
        "ts": pa.timestamp("ms", "UTC"), "d": pa.decimal128(20, 5),
        "s": pa.struct({"x": pa.date32()}), "m": pa.map_(pa.string(), pa.int64()),
    }  # fmt: skip
    now = dt.datetime(2024, 2, 29, 1, 2, 3, 4000, dt.UTC)
    full = {
        "t": "é\n", "i": -5, "u": 2**64 - 1, "f": 1.5, "b": b"\0\xff", "z": True, "ts": now, "d": Decimal("1E-5"),
        "s": {"x": now.date()}, "m": [("k", 1)],
    }  # fmt: skip
    table = pa.Table.from_pylist([full, dict.fromkeys(fields)], pa.schema(fields))
    documents = documents_of(table).to_pylist()
    schema = schema_of(documents[0])
    assert schema is not None
    assert rows_of(documents, schema).equals(table)


def test_numbers_that_json_lacks_come_back_as_they_were() -> None:
    values = [float("nan"), float("inf"), float("-inf"), -0.0]
    fields = {"d": pa.float64(), "f": pa.float32(), "l": pa.list_(pa.float64()), "s": pa.struct({"x": pa.float64()})}
    table = pa.Table.from_pylist([{"d": v, "f": v, "l": [v, None], "s": {"x": v}} for v in values], pa.schema(fields))
    documents = documents_of(table).to_pylist()
    schema = schema_of(documents[0])
    assert schema is not None
    assert str(rows_of(documents, schema).to_pylist()) == str(table.to_pylist())


def test_decimals_beyond_38_digits_come_back_as_they_were() -> None:
    table = pa.table({"d": pa.array([Decimal(10) ** 60, Decimal(-1), None], pa.decimal256(70, 0))})
    documents = documents_of(table).to_pylist()
    schema = schema_of(documents[0])
    assert schema is not None
    assert rows_of(documents, schema).equals(table)
