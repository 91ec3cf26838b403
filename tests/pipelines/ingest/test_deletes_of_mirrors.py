"""How a mirror records deleted rows: by key, by converted positions, or by deletion vectors."""

import base64
import random
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from nevermore import scan_core
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.maintain.compact import CompactSettings, compact
from nevermore.pipelines.maintain.status import status
from tests.pipelines.project import Event, Project, event, the

MODES: dict[str, dict[str, Any]] = {
    "converted": {"deletes": "converted"},
    "converted to vectors": {"deletes": "converted", "format_version": 3},
    "vectors": {"deletes": "vectors", "format_version": 3},
    "equality in version 3": {"format_version": 3},
}
SHAPES: dict[str, dict[str, Any]] = {
    "unpartitioned": {},
    "by key": {"partition_by": ["bucket(3, id)"]},
    "by another column": {"partition_by": ["part"]},
    "by decimal and day": {"partition_by": ["price", "day(day)"], "types": {"price": "decimal(9, 2)", "day": "date"}},
    "by double": {"partition_by": ["ratio"], "types": {"ratio": "double"}},
    "sorted": {"sort_by": ["name"]},
    "full": {"identity": "full", "exclude": ["ratio"]},
    "soft": {"soft_delete": True},
}


def row(key: int, version: int) -> Event:
    return {
        "id": key,
        "name": f"v{version}",
        "part": (key + version) % 3 or None,
        "price": f"{key % 2}.50",
        "day": 20_000 + key % 2,
        "ratio": [0.5, -0.0, None][key % 3],
    }


def history(rounds: int, seed: int) -> tuple[list[list[str]], dict[int, Event]]:
    """Rounds of events on few keys, with before-images, and the rows at the end."""
    random_number = random.Random(seed)
    alive: dict[int, Event] = {}
    landed = []
    for number in range(rounds):
        lines = []
        for _ in range(8):
            key = random_number.randrange(10)
            if key in alive and random_number.random() < 0.5:
                lines.append(event("d", alive.pop(key)))
            else:
                new = row(key, number * 100 + len(lines))
                lines.append(event("u" if key in alive else "c", new, before=alive.get(key)))
                alive[key] = new
        landed.append(lines)
    return landed, alive


def deletes_of(table: Table) -> tuple[int, int, int]:
    """(equality-delete files, position-delete files, deletion vectors) of the current snapshot that touch rows."""
    tasks = scan_core.open_table(table).scan().plan().tasks
    equality = {file.path for task in tasks for group in task.equality_deletes for file in group.files}
    positions = {file.path for task in tasks for file in task.position_deletes}
    return len(equality), len(positions), sum(task.deletion_vector is not None for task in tasks)


@pytest.mark.each(5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_the_same_rows_and_only_its_kind_of_deletes(mode: str, shape: str, tmp_path: Path) -> None:
    key = {} if shape == "full" else {"key": ["id"]}
    project = Project(tmp_path, {"shop.products": {**key, **MODES[mode], **SHAPES[shape]}})
    landed, alive = history(4, seed=len(mode) + len(shape))
    for number, lines in enumerate(landed):
        project.land(f"{number}.jsonl", lines)
        report = project.run()
        assert report.exit_code == 0, report.as_dict()
        table = project.table("shop.products")
        equality, positions, vectors = deletes_of(table)
        assert table.format_version == MODES[mode].get("format_version", 2)
        if mode != "equality in version 3":
            assert equality == 0
            assert table.current_snapshot().summary["total-equality-deletes"] == "0"
            assert (positions if mode == "converted" else vectors) or number == 0 or shape == "soft"
            assert (vectors if mode == "converted" else positions) == 0
    if shape == "soft":
        found = {r["id"]: r["name"] for r in project.rows() if not r["_deleted"]}
    else:
        found = {r["id"]: r["name"] for r in project.rows()}
        assert len(found) == len(project.rows()) == scan_core.open_table(table).scan().count()
        if deletes_of(table)[0] == 0:
            assert table.scan().to_arrow().num_rows == len(found)  # by PyIceberg, which refuses equality deletes
    assert found == {key: r["name"] for key, r in alive.items()}


def test_a_run_with_nothing_new_converts_what_an_earlier_one_left(tmp_path: Path) -> None:
    tables = {"shop.products": {"key": ["id"]}}
    project = Project(tmp_path, tables)
    project.land("1.jsonl", [event("c", row(1, 0)), event("c", row(2, 0))])
    project.run()
    project.land("2.jsonl", [event("d", row(1, 0))])
    project.run()
    assert deletes_of(project.table("shop.products")) == (1, 0, 0)
    project.write({"shop.products": {"key": ["id"], "deletes": "converted"}})
    report = the(project.run())
    assert report.conversion is not None
    assert (report.conversion.removed_files, report.conversion.added_positions) == (1, 1)
    assert deletes_of(project.table("shop.products")) == (0, 1, 0)
    assert the(project.run()).conversion is None
    config = load(project.folder / "nevermore.yaml")
    (found,) = status(open_catalog(config), config)
    assert (found.delete_rows, found.delete_files) == (1, 1)


def test_a_continuous_run_converts_deletes_of_the_stated_age(tmp_path: Path) -> None:
    options = {"key": ["id"], "deletes": "converted"}
    project = Project(tmp_path, {"shop.products": {**options, "convert_after": "1h"}})
    project.land("1.jsonl", [event("c", row(1, 0)), event("c", row(2, 0))])
    assert the(project.run(is_continuous=True)).conversion is None
    project.land("2.jsonl", [event("d", row(1, 0))])
    assert the(project.run(is_continuous=True)).conversion is None
    project.write({"shop.products": {**options, "convert_after": "1ms"}})
    assert the(project.run(is_continuous=True)).conversion is not None
    assert [r["id"] for r in project.rows()] == [2]


def test_an_existing_mirror_is_upgraded_with_its_next_commit_and_cannot_go_back(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"]}})
    project.land("1.jsonl", [event("c", row(n, 0)) for n in range(5)])
    project.run()
    project.land("2.jsonl", [event("d", row(1, 0))])
    project.run()
    project.write({"shop.products": {"key": ["id"], "format_version": 3, "deletes": "vectors"}})
    project.land("3.jsonl", [event("d", row(2, 0)), event("u", row(3, 1), before=row(3, 0))])
    assert project.run().exit_code == 0
    table = project.table("shop.products")
    assert (table.format_version, table.metadata.next_row_id) == (3, 5 + 1)
    assert [(r["id"], r["name"]) for r in project.rows()] == [(0, "v0"), (3, "v1"), (4, "v0")]
    project.write({"shop.products": {"key": ["id"]}})
    assert "cannot be lowered; add format_version: 3" in str(the(project.run()).error)


def test_vectors_need_format_version_3(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "deletes": "vectors"}})
    with pytest.raises(ConfigError, match="deletes: vectors requires format version 3"):
        load(project.folder / "nevermore.yaml")
    project.write({"shop.products": {"key": ["id"], "convert_after": "1s"}})
    with pytest.raises(ConfigError, match="convert_after has no effect with deletes: equality"):
        load(project.folder / "nevermore.yaml")


def test_a_truncate_and_new_rows_in_one_commit(tmp_path: Path) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], **MODES["vectors"]}})
    project.land("1.jsonl", [event("c", row(n, 0)) for n in range(5)])
    project.run()
    project.land("2.jsonl", [event("d", row(1, 0)), event("t"), event("c", row(1, 7))])
    project.run()
    assert [(r["id"], r["name"]) for r in project.rows()] == [(1, "v7")]
    assert find_table(open_catalog(load(tmp_path / "nevermore.yaml")), "shop.products") is not None


IDS: dict[str, tuple[str, Any]] = {
    "long": ("long", int),
    "string": ("string", "key {}".format),
    "uuid": ("uuid", "00000000-0000-4000-8000-{:012d}".format),
    "decimal": ("decimal(12, 2)", "{}.50".format),
    "date": ("date", int),
    "binary": ("binary", lambda n: base64.b64encode(b"key %d" % n).decode()),
}


def lineage(project: Project, key: str) -> dict[Any, tuple[int, int, str]]:
    """Row id, sequence number of the last change, and name of each row, by key."""
    scan = scan_core.open_table(project.table("shop.products")).scan()
    rows = scan.select(key, "_row_id", "_last_updated_sequence_number", "name").to_table()
    ids, changes, names = (rows.column(i).to_pylist() for i in (1, 2, 3))
    return dict(zip(rows.column(0).to_pylist(), zip(ids, changes, names, strict=True), strict=True))


@pytest.mark.each(6)
@pytest.mark.parametrize("engine", ["local"], indirect=True)  # tasks of Spark look up no rows
@pytest.mark.parametrize("kind", IDS)
def test_rule_31_vectors_keep_the_ids_of_rows_that_are_updated(kind: str, tmp_path: Path) -> None:
    declared, made = IDS[kind]
    options = {"key": ["id"], "types": {"id": declared}, **MODES["vectors"]}

    def change(op: str, number: int, version: int) -> str:
        return event(op, {"id": made(number), "name": f"v{version}"}, before={"id": made(number), "name": ""})

    project = Project(tmp_path, {"shop.products": options})
    project.land("1.jsonl", [change("c", n, 0) for n in range(8)])
    assert project.run().exit_code == 0
    first = list(lineage(project, "id").items())
    project.land("2.jsonl", [change("u", 3, 1), change("d", 4, 1), change("c", 9, 1), change("u", 5, 1)])
    project.land("3.jsonl", [change("d", 6, 2), change("c", 6, 3)])  # another row with the same key
    assert project.run().exit_code == 0
    second = lineage(project, "id")
    assert len({row_id for row_id, *_ in second.values()}) == len(second) == 8
    for number, (key, (row_id, sequence, _)) in enumerate(first):
        if number in {3, 5}:
            assert second[key] == (row_id, sequence + 1, "v1")
        elif number == 6:
            assert second[key][0] >= 8
        elif number != 4:
            assert second[key] == (row_id, sequence, "v0")
    compact(project.table("shop.products"), CompactSettings(rewrite_all=True))
    assert lineage(project, "id") == second
    project.land("4.jsonl", [change("u", n, 4) for n in (3, 6, 9)])
    assert project.run().exit_code == 0
    third = lineage(project, "id")
    assert {key: row_id for key, (row_id, *_) in third.items()} == {k: row_id for k, (row_id, *_) in second.items()}
    assert sorted(name for *_, name in third.values()) == ["v0"] * 4 + ["v1"] + ["v4"] * 3


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_vectors_keep_the_ids_of_rows_whose_key_becomes_wider_or_is_null(tmp_path: Path) -> None:
    options = {"key": ["id", "part"], **MODES["vectors"]}
    project = Project(tmp_path, {"shop.products": {**options, "types": {"id": "int", "part": "int"}}})
    project.land("1.jsonl", [event("c", {"id": n, "part": n or None, "name": "v0"}) for n in range(3)])
    assert project.run().exit_code == 0
    first = lineage(project, "id")
    project.write({"shop.products": {**options, "types": {"id": "long", "part": "int"}}})
    project.land("2.jsonl", [event("u", {"id": n, "part": n or None, "name": "v1"}) for n in range(3)])
    assert project.run().exit_code == 0
    second = lineage(project, "id")
    assert [second[n] for n in range(3)] == [(first[n][0], 2, "v1") for n in range(3)]
    assert len(second) == 3
