import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.commands.why import parse_key
from pipelines.errors import ConfigError
from tests.iceberg_json import Column
from tests.table_builder import TableBuilder

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
    assert "id = '2': gone, no file of snapshot 1003" in output
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
