"""What manifests say of files and is not so fails a check, whatever it is and whatever proves it."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from nevermore.checks.manifest_facts import NAME, manifests_match_files
from nevermore.checks.mirror_checks import run_checks, snapshot_results
from nevermore.checks.subject import Subject
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.scan_core import open_table
from tests.pipelines.project import Project, event
from tests.support.avro_edit import rewrite_avro
from tests.support.built_files import BuiltFile
from tests.support.iceberg_json import Column, Partition, struct
from tests.support.table_builder import TableBuilder

TABLE = "shop.products"
Rows = list[Any]
Say = Callable[[Any], None]


def found_in(table: TableBuilder) -> CheckResult:
    return manifests_match_files(Subject(str(table.metadata_path), ()))


def plain(folder: Path, **partition: Any) -> TableBuilder:
    columns = [Column(1, "id", "long"), Column(2, "n", "int"), Column(3, "s", "string")]
    return TableBuilder(folder, columns, partitions=[Partition("n", 2)] if partition else [])


def bound(record: Any, name: str, field_id: int, value: bytes) -> None:
    record[name] = [{"key": field_id, "value": value if b["key"] == field_id else b["value"]} for b in record[name]]


def count(record: Any, name: str, field_id: int, value: int) -> None:
    record[name] = [{"key": b["key"], "value": value if b["key"] == field_id else b["value"]} for b in record[name]]


def four(number: int) -> bytes:
    return number.to_bytes(4, "little")


# -- the command, over a mirror of ours -------------------------------------------------------------------------------


def tampered(project: Project, content: int, say: Say) -> str:
    """Let the manifests of a mirror say another thing of the first live file of a kind; the file."""
    table = project.table(TABLE)
    for manifest in table.current_snapshot().manifests(table.io):
        if manifest.content == (1 if content else 0):
            path: list[str] = []

            def change(rows: list[Any], _: dict[str, Any], path: list[str] = path) -> None:
                file = next(r["data_file"] for r in rows if r["status"] != 2)
                say(file)
                path.append(file["file_path"])

            rewrite_avro(manifest.manifest_path.removeprefix("file://"), change)
            return path[0].rpartition("/")[2]
    raise AssertionError


def set_partition(file: Any) -> None:
    file["partition"]["n"] = 3


def set_rows(file: Any) -> None:
    file["record_count"] += 1


def mirror(folder: Path) -> Project:
    project = Project(folder, {TABLE: {"key": ["id", "n"], "partition_by": ["n"]}})
    project.land("1.jsonl", [event("c", {"id": i, "n": 2}) for i in range(9)])
    assert project.run().exit_code == 0
    project.land("2.jsonl", [event("d", {"id": 3, "n": 2})])
    assert project.run().exit_code == 0
    return project


@pytest.mark.parametrize(
    ("content", "say", "word"),
    [
        (0, set_partition, "partition n = 3"),
        (1, set_rows, "expected 2 rows by its manifest, found 1"),
        pytest.param(1, set_partition, "partition n = 3", marks=pytest.mark.slow),
    ],
)
def test_command_fails_where_a_manifest_of_a_mirror_lies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: int, say: Say, word: str
) -> None:
    project = mirror(tmp_path)
    config = load(tmp_path / "nevermore.yaml")
    (right,) = run_checks(config, TABLE, [NAME])
    assert (right.passed, right.details, right.compared["data files"]) == (True, [], 1)
    file = tampered(project, content, say)
    with pytest.raises(SystemExit) as exited:
        main(["check", TABLE, "--json", "--config", str(tmp_path / "nevermore.yaml")])
    assert exited.value.code == 1
    told = {found["check"]: found for found in map(orjson.loads, capsys.readouterr().out.splitlines())}
    assert not told[NAME]["passed"]
    assert [text for text in told[NAME]["details"] if file in text and word in text]


# -- each kind of lie ---------------------------------------------------------------------------------------------------

LIES: dict[str, tuple[Say, str]] = {
    "rows of data": (set_rows, "expected 3 rows by its manifest, found 2"),
    "bytes": (lambda r: r.update(file_size_in_bytes=r["file_size_in_bytes"] + 1), "bytes, but"),
    "partition": (set_partition, "2 of 2 rows contradict"),
    "partition that is NULL": (lambda r: r["partition"].update(n=None), "n = null"),
    "lower bound": (lambda r: bound(r, "lower_bounds", 1, (6).to_bytes(8, "little")), "id between 6 and 7"),
    "upper bound": (lambda r: bound(r, "upper_bounds", 1, (6).to_bytes(8, "little")), "such as id = 7"),
    "bound of text": (lambda r: bound(r, "upper_bounds", 3, b"a"), "such as s = b"),
    "no NULL": (lambda r: count(r, "null_value_counts", 3, 0), "s without NULL"),
    "only NULL": (lambda r: count(r, "null_value_counts", 1, 2), "id NULL in all rows"),
}
ROWS: dict[str, Rows] = {"id": [5, 7], "n": [2, 2], "s": ["b", None]}


@pytest.mark.each(2)
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("lie", LIES)
def test_each_thing_that_a_manifest_says_is_compared(tmp_path: Path, lie: str, *, statistics: bool) -> None:
    table = plain(tmp_path, n=2)
    file = table.data(ROWS, partition={"n": 2}, write_statistics=statistics)
    say, word = LIES[lie]
    table.commit(table.data(ROWS, partition={"n": 2}))
    assert found_in(table).passed
    say(file.record)
    table.commit(file)
    found = found_in(table)
    assert not found.passed
    assert [text for text in found.details if word in text and file.local.name in text], found.details


@pytest.mark.each(2)
@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("kind", ["equality", "position"])
def test_rows_of_delete_files_are_counted(tmp_path: Path, kind: str, file_format: str) -> None:
    table = plain(tmp_path)
    data = table.data({"id": [1, 2], "n": [1, 1], "s": ["a", "b"]})
    table.commit(data)

    def deletes() -> BuiltFile:
        if kind == "position":
            return table.position_delete([(data, 0)], file_format=file_format)
        return table.equality_delete({"id": [1]}, ids=[1], file_format=file_format)

    table.commit(deletes())
    assert found_in(table).passed
    wrong = deletes()
    wrong.record["record_count"] = 4
    table.commit(wrong)
    found = found_in(table)
    assert not found.passed
    assert "expected 4 rows by its manifest, found 1" in found.details[0]


def test_bounds_of_deletes_and_positions_of_vectors_are_compared(tmp_path: Path) -> None:
    table = plain(tmp_path)
    table.version = 3
    data = table.data({"id": [1, 2], "n": [1, 1], "s": ["a", "b"]})
    delete = table.equality_delete({"id": [1]}, ids=[1])
    vector = table.deletion_vector(data, [1])
    table.commit(data, delete, vector)
    assert found_in(table).passed
    delete, vector = table.equality_delete({"id": [1]}, ids=[1]), table.deletion_vector(data, [0])
    bound(delete.record, "lower_bounds", 1, (2).to_bytes(8, "little"))
    vector.record["record_count"] = 2
    table.commit(delete, vector)
    details = found_in(table).details
    assert [t for t in details if "id between 2 and 1" in t]
    assert [t for t in details if "1 positions, but its record_count is 2" in t]


SCOPES: dict[str, Callable[[TableBuilder, BuiltFile, BuiltFile], BuiltFile]] = {
    "equality": lambda t, *_: t.equality_delete({"id": [5], "n": [2]}, ids=[1, 2], partition={"n": 2}),
    "equality of NULL": lambda t, *_: t.equality_delete({"id": [5], "n": [None]}, ids=[1, 2], partition={"n": None}),
    "equality without statistics": lambda t, *_: t.equality_delete(
        {"id": [5, 7], "n": [2, 2]}, ids=[2], partition={"n": 2}, write_statistics=False
    ),
    "equality in ORC": lambda t, *_: t.equality_delete({"n": [2]}, ids=[2], partition={"n": 2}, file_format="orc"),
    "equality in Avro": lambda t, *_: t.equality_delete({"n": [2]}, ids=[2], partition={"n": 2}, file_format="avro"),
    "position": lambda t, data, other: t.position_delete([(data, 0), (other, 1)]),
    "position of one file": lambda t, data, _: t.position_delete([(data, 0)], referenced=data),
    "position in Avro": lambda t, data, _: t.position_delete([(data, 0)], file_format="avro"),
    "vector": lambda t, data, _: t.deletion_vector(data, [1]),
}
QUICK_SCOPES = {("equality", False), ("position", True), ("vector", False)}


@pytest.mark.parametrize(
    ("kind", "is_since"),
    [
        pytest.param(kind, is_since, marks=() if (kind, is_since) in QUICK_SCOPES else pytest.mark.slow)
        for kind in SCOPES
        for is_since in (False, True)
    ],
)
def test_partitions_of_delete_files_are_compared(tmp_path: Path, kind: str, *, is_since: bool) -> None:
    table = plain(tmp_path, n=2)
    table.version = 3 if kind == "vector" else 2
    one, two = (table.data(ROWS, partition={"n": 2}) for _ in range(2))
    green = table.commit(one, two)
    table.commit(SCOPES[kind](table, one, two))
    right = manifests_match_files(Subject(str(table.metadata_path), ()), since=green if is_since else None)
    assert (right.passed, right.details) == (True, [])
    wrong = SCOPES[kind](table, one, two)
    wrong.record["partition"] = {"n": 3}
    table.commit(wrong)
    found = manifests_match_files(Subject(str(table.metadata_path), ()), since=green if is_since else None)
    assert not found.passed
    assert [t for t in found.details if "partition n = 3" in t and wrong.local.name in t], found.details


def test_position_deletes_of_another_spec_or_file_than_their_manifest_says_are_found(tmp_path: Path) -> None:
    table = plain(tmp_path, n=2)
    one, two = (table.data(ROWS, partition={"n": 2}) for _ in range(2))
    table.commit(one, two)
    table.repartition()
    table.commit(table.position_delete([(one, 0)], spec_id=1, partition={}))
    (told,) = found_in(table).details
    assert "partition none (spec 1) by its manifest, but it deletes rows of" in told
    assert "whose partition is n = 2 (spec 0)" in told
    table.rollback(1001)
    table.commit(table.position_delete([(one, 0)], referenced=two))
    (told,) = found_in(table).details
    assert f"deletes rows of {two.path} by its manifest, but its rows name {one.path}" in told


def test_partitions_of_deletes_that_their_rows_do_not_tell_are_no_fault(tmp_path: Path) -> None:
    table = plain(tmp_path, n=2)
    data = table.data(ROWS, partition={"n": 2})
    table.commit(data)
    gone = table.position_delete([(f"{tmp_path}/data/gone.parquet", 0)], partition={"n": 9})
    by_id = table.equality_delete({"id": [5]}, ids=[1], partition={"n": 2})
    beside = table.equality_delete(
        {"id": [5], "n": [None]}, ids=[1], partition={"n": 2}
    )  # n is not compared by readers
    elsewhere = table.equality_delete({"id": [5]}, ids=[1], spec_id=table.repartition(), partition={})  # global
    table.commit(gone, by_id, beside)
    table.commit(elsewhere)
    assert found_in(table).details == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda m: m["partitions"][0].update(lower_bound=four(3)), "has files with n = 2"),
        (lambda m: m.update(added_files_count=0), "has 1 live file, but 0"),
    ],
)
def test_what_manifest_lists_say_is_compared_with_manifests(tmp_path: Path, change: Say, word: str) -> None:
    table = plain(tmp_path, n=2)
    table.commit(table.data(ROWS, partition={"n": 2}))
    snapshots = open_table(table.metadata_path).metadata.snapshots
    summary = {"contains_null": False, "contains_nan": None, "lower_bound": four(2), "upper_bound": four(3)}
    path = str(next(iter(snapshots.values())).manifest_list)
    fields = [
        {"name": "contains_null", "type": "boolean", "field-id": 509},
        {"name": "contains_nan", "type": ["null", "boolean"], "field-id": 518},
        {"name": "lower_bound", "type": ["null", "bytes"], "field-id": 510},
        {"name": "upper_bound", "type": ["null", "bytes"], "field-id": 511},
    ]
    items = {"type": "record", "name": "r508", "fields": fields}

    def summarise(rows: list[Any], schema: dict[str, Any]) -> None:
        kind = {"type": "array", "items": items, "element-id": 508}
        schema["fields"] = [f for f in schema["fields"] if f["name"] != "partitions"]
        schema["fields"].append({"name": "partitions", "type": kind, "field-id": 507})
        rows[0]["partitions"] = [summary]

    rewrite_avro(path, summarise)
    assert found_in(table).passed, found_in(table).details
    rewrite_avro(path, lambda rows, _: change(rows[0]))
    assert word in found_in(table).details[0]


def test_after_a_green_snapshot_only_files_are_opened_of_which_manifests_say_something_new(tmp_path: Path) -> None:
    table = plain(tmp_path, n=2)
    first, second = (table.data(ROWS, partition={"n": 2}) for _ in range(2))
    green = table.commit(first, second)
    third = table.data(ROWS, partition={"n": 2})
    set_partition(third.record)
    table.commit(third, remove=[second])  # rewrites the manifest of the first
    found = manifests_match_files(Subject(str(table.metadata_path), ()), since=green)
    assert (found.passed, found.compared["data files"]) == (False, 1)


@pytest.mark.slow
def test_a_publication_finds_lies_of_a_commit_after_a_green_snapshot(tmp_path: Path) -> None:
    project = mirror(tmp_path)
    config = load(tmp_path / "nevermore.yaml")
    assert all(r.passed for r in snapshot_results(config, TABLE).results.values())
    project.land("3.jsonl", [event("c", {"id": 90 + i, "n": 2}) for i in range(3)])
    assert project.run().exit_code == 0
    tampered(project, 0, set_partition)
    kept = snapshot_results(config, TABLE)
    assert kept.since is not None
    assert not kept.results[NAME].passed


# -- transforms and types -----------------------------------------------------------------------------------------------

DAY, STAMP = dt.date(2020, 5, 1), dt.datetime.fromisoformat("1970-01-02T03:04")
ID = UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
CASES: dict[str, tuple[str, str, Rows, Any, Any]] = {
    "int": ("int", "identity", [7, 7], 7, 8),
    "int, NULL among rows": ("int", "identity", [7, 7], 7, None),
    "NULL": ("int", "identity", [None, None], None, 7),
    "long truncated": ("long", "truncate[10]", [13, 17], 10, 20),
    "negative truncated": ("int", "truncate[10]", [-1, -9], -10, 0),
    "text": ("string", "identity", ["a", "a"], "a", "b"),
    "text truncated": ("string", "truncate[2]", ["ärger", "ärmel"], "är", "är "),
    "bucket": ("long", "bucket[16]", [34, 34], 3, 4),
    "day of a date": ("date", "day", [DAY, DAY], DAY, dt.date(2020, 5, 2)),
    "date": ("date", "identity", [DAY, DAY], DAY, dt.date(2020, 5, 2)),
    "year": ("date", "year", [DAY, dt.date(2020, 7, 2)], 50, 51),
    "month": ("timestamp", "month", [dt.datetime.fromisoformat(f"2020-05-{d:02}") for d in (1, 31)], 604, 605),
    "hour": ("timestamp", "hour", [STAMP, STAMP + dt.timedelta(minutes=9)], 27, 26),
    "day": ("timestamptz", "day", [STAMP.replace(tzinfo=dt.UTC)] * 2, dt.date(1970, 1, 2), dt.date(1970, 1, 1)),
    "decimal": ("decimal(9,2)", "identity", [Decimal("-14.20")] * 2, Decimal("-14.20"), Decimal("14.20")),
    "decimal truncated": ("decimal(9,2)", "truncate[50]", [Decimal("10.65")] * 2, Decimal("10.50"), Decimal("10.00")),
    "double": ("double", "identity", [1.5, 1.5], 1.5, 2.5),
    "NaN": ("double", "identity", [float("nan")] * 2, float("nan"), 1.0),
    "no NaN": ("double", "identity", [1.0, 1.0], 1.0, float("nan")),
    "boolean": ("boolean", "identity", [True, True], True, False),
    "binary": ("binary", "identity", [b"\x00\xff"] * 2, b"\x00\xff", b"\x00"),
    "uuid": ("uuid", "identity", [ID, ID], ID, UUID(int=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "parquet without statistics", "orc", "avro"])
@pytest.mark.parametrize("case", CASES)
def test_partition_values_of_every_transform_and_type(tmp_path: Path, case: str, file_format: str) -> None:
    kind, transform, values, right, wrong = CASES[case]
    columns = [Column(1, "id", "long"), Column(2, "p", kind)]
    table = TableBuilder(tmp_path, columns, partitions=[Partition("part", 2, transform)])
    options = {"write_statistics": False} if "without" in file_format else {}
    name = file_format.partition(" ")[0]

    def data(rows: Rows, partition: Any) -> BuiltFile:
        rows_of = {"id": list(range(len(rows))), "p": rows}
        return table.data(rows_of, partition={"part": partition}, file_format=name, **options)

    table.commit(data(values, right))
    assert found_in(table).details == []
    table.commit(data(values, wrong))
    (told,) = found_in(table).details
    assert "2 of 2 rows contradict" in told
    table.commit(data([values[0], None] if right is not None else [None, 7], right))
    assert [text for text in found_in(table).details if "1 of 2 rows contradict" in text]


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
def test_partitions_by_members_dropped_columns_and_void(tmp_path: Path, file_format: str) -> None:
    columns = [Column(1, "id", "long"), Column(2, "at", struct(Column(3, "n", "int"), Column(4, "m", "int")))]
    table = TableBuilder(tmp_path, columns, partitions=[Partition("m", 4), Partition("v", 1, "void")])
    rows = {"id": [1, 2], "at": [{"n": 1, "m": 5}] * 2}
    table.commit(table.data(rows, partition={"m": 5, "v": None}, file_format=file_format))
    table.evolve(Column(1, "id", "long"))
    assert found_in(table).details == []
    table.commit(table.data(rows, partition={"m": 1, "v": None}, file_format=file_format, columns=columns))
    (told,) = found_in(table).details
    assert "at.m = 5" in told


def test_values_that_only_manifests_have_and_transforms_that_nobody_knows_are_no_fault(tmp_path: Path) -> None:
    columns = [Column(1, "id", "long"), Column(2, "n", "int")]
    table = TableBuilder(tmp_path, columns, partitions=[Partition("n", 2), Partition("z", 1, "zorder", "int")])
    table.commit(table.data({"id": [1]}, partition={"n": 7, "z": 3}, columns=columns[:1]))
    found = found_in(table)
    assert found.passed
    assert found.details == ["not compared: partition z: zorder of a column that cannot be computed"]
