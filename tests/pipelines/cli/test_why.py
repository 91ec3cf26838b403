import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nevermore.pipelines.cli.read_commands import parse_key
from nevermore.pipelines.errors import ConfigError
from tests.support.iceberg_json import Column
from tests.support.table_builder import TableBuilder

Run = Callable[..., tuple[int, str, str]]
COLUMNS = [Column(1, "id", "long"), Column(2, "name", "string")]


@pytest.fixture
def table(tmp_path: Path) -> TableBuilder:
    """Row 2 is deleted and compacted away, row 1 updated."""
    table = TableBuilder(tmp_path / "t", COLUMNS)
    first, lost = table.data({"id": [1], "name": ["a"]}), table.data({"id": [2], "name": ["b"]})
    table.commit(first, lost)
    delete = table.equality_delete({"id": [1, 2]}, ids=[1], columns=COLUMNS[:1])
    table.commit(delete, table.data({"id": [1], "name": ["A"]}))
    table.commit(remove=[lost], operation="replace")
    return table


def test_living_key_is_told_with_its_dead_versions(run: Run, table: TableBuilder) -> None:
    code, output, _ = run("why", table.location, "--key", "id=1")
    assert code == 0
    head, *lines = output.splitlines()
    assert "alive in snapshot 1003, 1 of 2 rows" in head
    assert "dead" in lines[0]
    assert "by equality delete on (id)" in lines[1]
    assert "sequence number 2, of the whole table" in lines[1]
    assert "alive" in lines[2]


def test_gone_and_unknown_keys_say_so(run: Run, table: TableBuilder) -> None:
    output = run("why", table.location, "--key", "id=2")[1]
    assert "id = '2': gone: no file of snapshot 1003" in output
    assert "last seen in snapshot 1002" in output
    assert "snapshot 1003 (replace) removed the files" in output
    assert "gone in snapshot 1002" in run("why", table.location, "--key", "id=2", "--snapshot", 1002)[1]
    assert "never seen" in run("why", table.location, "--key", "id=3")[1]
    assert "never seen" in run("why", table.location, "--key", "id=1,name=b")[1]


def test_answer_is_an_object_with_json(run: Run, table: TableBuilder) -> None:
    found = json.loads(run("why", table.location, "--key", "id=1", "--json")[1])
    assert found["verdict"] == "alive"
    assert found["key"] == {"id": "1"}
    assert [row["alive"] for row in found["rows"]] == [False, True]
    assert found["rows"][0]["deleted_by"]["kind"] == "equality delete"
    assert found["rows"][1]["deleted_by"] is None
    unknown = json.loads(run("why", table.location, "--key", "id=9", "--json")[1])
    assert (unknown["verdict"], unknown["rows"], unknown["seen_in_snapshot_id"]) == ("never seen", [], None)


def test_bad_keys_end_with_one_clear_message(run: Run, table: TableBuilder) -> None:
    for key, code, message in (("id", 2, "COLUMN=VALUE"), ("idd=1", 2, "id"), ("id=x", 2, "x")):
        found, output, errors = run("why", table.location, "--key", key)
        assert (found, output) == (code, "")
        assert message in errors
        assert "Traceback" not in errors


def test_key_syntax() -> None:
    assert parse_key("id=5") == {"id": "5"}
    assert parse_key("a.b=5, name=null") == {"a.b": "5", "name": None}
    assert parse_key("name='null',x=") == {"name": "null", "x": ""}
    assert parse_key('"name=a,b",id=1') == {"name": "a,b", "id": "1"}
    assert parse_key("t=a=b") == {"t": "a=b"}
    for text in ("", "id", "=1", "id=1,id=2"):
        with pytest.raises(ConfigError):
            parse_key(text)


CONFIG = """
catalog: {type: sql, uri: "sqlite:///warehouse/catalog.db", warehouse: warehouse}
tables:
  shop.items:
    source: {type: files, path: "landing/*", format: debezium-json}
    key: [id]
"""


def test_key_that_came_and_went_within_one_batch_is_told_from_the_change_log(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "landing").mkdir()
    events = [_event("c", 1), _event("c", 2), _event("d", 2), _event("c", None)]
    (tmp_path / "landing" / "1.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (tmp_path / "nevermore.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert run("ingest")[0] == 0
    head, *lines = run("why", "shop.items", "--key", "id=2")[1].splitlines()
    assert "never seen" in head
    assert lines[0].strip() == "change_log.shop_items has 2 changes for this key:"
    assert [line.split(":")[1].split()[0] for line in lines[1:3]] == ["c", "d"]
    assert "was inserted and deleted within one batch" in lines[3]
    found = json.loads(run("why", "shop.items", "--key", "id=2", "--json")[1])
    assert found["verdict"] == "came and went"
    assert [c["op"] for c in found["logged_changes"]] == ["c", "d"]
    assert "has no changes for this key either" in run("why", "shop.items", "--key", "id=3")[1]
    assert "id is null: alive" in run("why", "shop.items", "--key", "id=null")[1]
    assert "id = '1': alive" in run("why", "shop.items", "--key", "id=1")[1]


def _event(op: str, number: int | None) -> dict[str, object]:
    row = {"id": number, "name": "a"}
    images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    return images | {"op": op, "source": {"table": "items"}, "ts_ms": 1}
