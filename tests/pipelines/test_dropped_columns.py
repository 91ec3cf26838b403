"""`dropped_columns` decides what becomes of a column that the source drops, in feeds whose events state their columns."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain.replay import resync
from tests.pipelines.formats import protobuf_events
from tests.pipelines.formats.avro_events import container
from tests.pipelines.project import Project, event, the

Columns = dict[str, str]
Row = dict[str, Any]
OLD: Columns = {"id": "int64", "a": "string", "c": "int32"}
NEW: Columns = {"id": "int64", "a": "string"}
AGAIN: Columns = {"id": "int64", "a": "string", "c": "string"}


def stated(columns: Columns, op: str, row: Row, ts: int = 1) -> str:
    """A Debezium event in JSON that states its columns."""
    fields = [{"field": name, "type": kind, "optional": True} for name, kind in columns.items()]
    images = [{"field": name, "type": "struct", "fields": fields, "optional": True} for name in ("before", "after")]
    schema = {"type": "struct", "fields": [*images, {"field": "op", "type": "string"}]}
    return json.dumps({"schema": schema, "payload": {**json.loads(event(op, row)), "ts_ms": ts}})


def avro(columns: Columns, rows: list[Row]) -> bytes:
    """An Avro file of Debezium events."""
    kinds = {"int64": "long", "int32": "int", "string": "string"}
    fields = [{"name": n, "type": ["null", kinds[k]], "default": None} for n, k in columns.items()]
    row = {"type": "record", "name": "Value", "fields": fields}
    source = {"type": "record", "name": "Source", "fields": [{"name": n, "type": "string"} for n in ("db", "table")]}
    members = [("before", ["null", row]), ("after", ["null", "Value"]), ("source", source), ("op", "string")]
    schema = {"type": "record", "name": "Envelope", "fields": [{"name": n, "type": t} for n, t in members]}
    events = [{"before": None, "after": r, "source": {"db": "shop", "table": "products"}, "op": "c"} for r in rows]
    return container(schema, events)


def plain_avro(columns: Columns, rows: list[Row]) -> bytes:
    kinds = {"int64": "long", "int32": "int", "string": "string"}
    fields = [{"name": n, "type": ["null", kinds[k]], "default": None} for n, k in columns.items()]
    fields.append({"name": "op", "type": "string"})
    return container({"type": "record", "name": "Row", "fields": fields}, [{**row, "op": "c"} for row in rows])


def protobuf(columns: Columns, rows: list[Row], schema_id: int, schemas: Path) -> list[str]:
    """Debezium events as lines of base64, and their schema in a folder."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    numbers = {"id": 1, "a": 2, "c": 4 if columns.get("c") == "string" else 3, "b": 5}
    fields = (protobuf_events.field(name, numbers[name], kind, "optional") for name, kind in columns.items())
    made = protobuf_events.envelope(protobuf_events.message("Row", *fields), imports=())
    (schemas / f"{schema_id}.desc").write_bytes(FileDescriptorSet(file=[made]).SerializeToString())
    events = []
    for row in rows:
        event = protobuf_events.class_of(made, "Envelope")(op="c")
        event.source.db, event.source.table = "shop", "products"
        for name, value in row.items():
            setattr(event.after, name, value)
        events.append(b64encode(protobuf_events.framed(event.SerializeToString(), schema_id)).decode())
    return events


class DropProject(Project):
    def __init__(self, folder: Path, feed: str = "debezium-json", **settings: Any) -> None:
        super().__init__(folder)
        self.feed = feed
        self.settings = settings
        self.set()

    def set(self, **settings: Any) -> None:
        self.settings = {"key": ["id"], "dropped_columns": "drop", **self.settings, **settings}
        self.write({"shop.products": self.settings})
        if self.feed == "debezium-protobuf":
            (self.folder / "schemas").mkdir(exist_ok=True)
            config = self.folder / "nevermore.yaml"
            text = config.read_text().replace("debezium-json", self.feed)
            config.write_text(text.replace("options: {}", f"options: {{schemas: {self.folder / 'schemas'}}}"))
        elif self.feed != "debezium-json":
            config = self.folder / "nevermore.yaml"
            text = config.read_text().replace("debezium-json", self.feed.partition(" ")[2])
            config.write_text(text.replace("*.jsonl", "*.avro"))

    def send(self, number: int, columns: Columns, *rows: Row) -> None:
        if self.feed == "debezium-json":
            self.land(f"{number}.jsonl", [stated(columns, "c", row) for row in rows])
        elif self.feed == "debezium-protobuf":
            self.land(f"{number}.jsonl", protobuf(columns, list(rows), number + 1, self.folder / "schemas"))
        else:
            write = avro if "debezium" in self.feed else plain_avro
            (self.landing / f"{number}.avro").write_bytes(write(columns, list(rows)))

    def names(self, name: str = "shop.products") -> list[str]:
        return [f.name for f in self.table(name).schema().fields]

    @property
    def logged(self) -> list[str]:
        log = self.table("change_log.shop_products")
        return [f.name for f in log.schema().find_field("after").field_type.fields]


FEEDS = pytest.mark.parametrize("feed", ["debezium-json", "debezium-protobuf", "avro debezium", "avro rows"])


@pytest.mark.each(8)
@FEEDS
@pytest.mark.parametrize("together", [False, True], ids=["runs", "one-run"])
def test_a_column_that_the_source_drops_leaves_the_table(feed: str, *, together: bool, tmp_path: Path) -> None:
    made = DropProject(tmp_path, feed)
    made.send(1, OLD, {"id": 1, "a": "x", "c": 5}, {"id": 2, "a": "y", "c": 6})
    if not together:
        assert made.run().exit_code == 0
        before = made.table("shop.products").current_snapshot().snapshot_id
    made.send(2, NEW, {"id": 2, "a": "z"})
    assert made.run().exit_code == 0
    assert made.names() == made.logged == ["id", "a"]
    assert made.rows() == [{"id": 1, "a": "x"}, {"id": 2, "a": "z"}]
    if not together:  # older snapshots keep it
        schema = made.table("shop.products").snapshot_by_id(before).schema_id
        assert made.table("shop.products").schemas()[schema].find_field("c")
    # a column of the same name with another type is a new one
    made.send(3, AGAIN, {"id": 2, "a": "z", "c": "new"})
    assert made.run().exit_code == 0
    assert made.rows() == [{"id": 1, "a": "x", "c": None}, {"id": 2, "a": "z", "c": "new"}]
    resync(open_catalog(load(tmp_path / "nevermore.yaml")), load(tmp_path / "nevermore.yaml"), "shop.products")
    assert made.rows() == [{"id": 1, "a": "x", "c": None}, {"id": 2, "a": "z", "c": "new"}]


@pytest.mark.each(10)
@FEEDS
@pytest.mark.parametrize("again", [AGAIN, OLD], ids=["other-type", "same-type"])
@pytest.mark.parametrize("log_only", [False, True], ids=["run", "log-first"])
def test_all_at_once(feed: str, again: Columns, *, log_only: bool, tmp_path: Path) -> None:
    """Drop and a new column of the name between two runs, or before the mirror follows its log."""
    made = DropProject(tmp_path, feed)
    value = "new" if again is AGAIN else 9
    made.send(0, OLD, {"id": 1, "a": "w", "c": 4})
    if log_only:
        assert made.run().exit_code == 0
    files: list[tuple[Columns, Row]] = [(OLD, {"id": 2, "a": "x", "c": 5}), (NEW, {"id": 3, "a": "y"})]
    for number, (columns, row) in enumerate([*files, (again, {"id": 4, "a": "z", "c": value})], 1):
        made.send(number, columns, row)
        if log_only:
            assert made.run(log_only=True).exit_code == 0
    assert made.run().exit_code == 0
    assert made.rows() == [
        *({"id": number, "a": letter, "c": None} for number, letter in enumerate("wxy", 1)),
        {"id": 4, "a": "z", "c": value},
    ]


def test_it_is_kept_by_default(tmp_path: Path) -> None:
    made = DropProject(tmp_path, dropped_columns="keep")
    made.set(dropped_columns="keep")
    made.send(1, OLD, {"id": 1, "a": "x", "c": 5})
    made.send(2, NEW, {"id": 2, "a": "y"})
    assert made.run().exit_code == 0
    assert made.rows() == [{"id": 1, "a": "x", "c": 5}, {"id": 2, "a": "y", "c": None}]


@pytest.mark.each(5)
@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"partition_by": ["c"]}, "partition_by"),
        ({"partition_by": ["bucket(4, c)"]}, "partition_by"),
        ({"sort_by": ["c"]}, "sort_by"),
        ({"index": {"bitmap": ["c"]}}, "index"),
        ({"column_descriptions": {"c": "a number"}}, "column_descriptions"),
        ({"checks": {"expectations": [{"expect_column_values_to_not_be_null": {"column": "c"}}]}}, "checks"),
    ],
    ids=["partition", "bucket", "sort", "index", "description", "check"],
)
def test_a_column_that_the_config_names_is_not_dropped(settings: Row, option: str, tmp_path: Path) -> None:
    made = DropProject(tmp_path, **settings)
    made.send(1, OLD, {"id": 1, "a": "x", "c": 5})
    assert made.run().exit_code == 0
    made.send(2, NEW, {"id": 2, "a": "y"})
    for _ in range(2):  # it stops again
        report = the(made.run())
        assert "the source has dropped the column c" in str(report.error)
        assert option in str(report.error)
    assert made.rows() == [{"id": 1, "a": "x", "c": 5}]
    made.set(dropped_columns="keep")
    assert made.run().exit_code == 0
    assert made.rows() == [{"id": 1, "a": "x", "c": 5}, {"id": 2, "a": "y", "c": None}]


@pytest.mark.parametrize(
    "settings",
    [
        {"identity": "full", "key": []},
        {"schema_changes": "freeze"},
        {"order_by": ["ts_ms"]},
        {"ingest": {"engine": "spark"}},
    ],
    ids=["full", "freeze", "order_by", "spark"],
)
def test_settings_that_contradict_it_are_refused(settings: Row, tmp_path: Path) -> None:
    made = DropProject(tmp_path, **settings)
    with pytest.raises(ConfigError, match="drop"):
        load(made.folder / "nevermore.yaml")


def test_events_that_do_not_state_their_columns_are_refused(tmp_path: Path) -> None:
    made = DropProject(tmp_path)
    made.land("1.jsonl", [event("c", {"id": 1, "a": "x"})])
    assert "its events do not state all their columns" in str(the(made.run()).error)
    made.set(dropped_columns="keep")
    assert made.run().exit_code == 0


@pytest.mark.parametrize(
    "settings", [{"soft_delete": True}, {"deletes": "vectors", "format_version": 3}], ids=["soft", "vectors"]
)
def test_rows_are_updated_and_removed_after_a_drop(settings: Row, tmp_path: Path) -> None:
    made = DropProject(tmp_path, **settings)
    made.send(1, OLD, *({"id": number, "a": "x", "c": number} for number in range(1, 5)))
    assert made.run().exit_code == 0
    made.land("2.jsonl", [stated(NEW, "d", {"id": 1, "a": "x"}), stated(NEW, "u", {"id": 2, "a": "y"})])
    assert made.run().exit_code == 0
    flag = {"_deleted": False} if "soft_delete" in settings else {}
    rows = [{"id": number, "a": "y" if number == 2 else "x", **flag} for number in range(2, 5)]
    assert [row for row in made.rows() if not row.get("_deleted")] == rows
    made.land("3.jsonl", [stated(AGAIN, "t", {}), stated(AGAIN, "c", {"id": 9, "a": "z", "c": "new"})])
    made.run()
    assert [row for row in made.rows() if not row.get("_deleted")] == [{"id": 9, "a": "z", "c": "new", **flag}]


def test_renamed_columns_and_own_names(tmp_path: Path) -> None:
    made = DropProject(tmp_path, rename={"a": "name", "c": "count"}, on_conflict="new_column")
    made.send(1, OLD, {"id": 1, "a": "x", "c": 5})
    made.send(2, AGAIN, {"id": 2, "a": "y", "c": "many"})
    assert made.run().exit_code == 0
    assert made.names() == ["id", "name", "count", "count__string"]
    made.send(3, {"id": "int64", "b": "string", "c": "string"}, {"id": 3, "b": "z", "c": "few"})
    assert made.run().exit_code == 0
    assert made.names() == ["id", "count", "count__string", "b"]
