"""Erased rows are in no byte of any file that is left, and everything goes on as if they had never been."""

import gzip
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import CommitConflictError, ConfigError, SourceError
from nevermore.pipelines.iceberg import manifests, storage
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.commit import RowDelta, everything
from nevermore.pipelines.iceberg.manifests import read_avro
from nevermore.pipelines.iceberg.table_writer import write_rows
from nevermore.pipelines.maintain.erase import Erasure, erase
from nevermore.pipelines.publish.state import SOURCE, STATE, PublishedState, SourceState, base_of
from nevermore.scan_core import ScanError
from nevermore.scan_core.io import user_folder
from tests.pipelines.iceberg_tables import new_table
from tests.pipelines.maintain.test_retention import append
from tests.pipelines.project import Project, event

NAME, LOG, QUARANTINE = "shop.people", "change_log.shop_people", "quarantine.shop_people"
TABLES: dict[str, dict[str, Any]] = {
    "equality": {},
    "converted v2": {"deletes": "converted"},
    "converted v3": {"deletes": "converted", "format_version": 3},
    "vectors": {"deletes": "vectors", "format_version": 3},
    "partitioned": {"partition_by": ["bucket(2, id)"]},
    "partitioned by the value": {"partition_by": ["email"]},
    "indexed": {"index": {"bitmap": ["email"], "every_rows": 1}},
}


class Crash(BaseException):
    """The process was killed."""


def person(key: int, email: str | None = None) -> dict[str, Any]:
    return {"id": key, "email": email or f"person-{key}@example.org", "address": {"street": f"Road {key}"}}


def people(op: str, row: dict[str, Any] | None = None, **options: Any) -> str:
    return event(op, row, table="people", **options)


def three_commits(folder: Path, options: dict[str, Any]) -> Project:
    """Persons 0 to 5: 1 moved to another address, 2 was deleted, 3 is deleted and came again."""
    project = Project(folder, {NAME: {"key": ["id"], **options}})
    project.land("0.jsonl", [people("c", person(key)) for key in range(6)])
    project.run()
    project.land(
        "1.jsonl",
        [
            people("u", person(1, "moved-1@example.org"), before=person(1)),
            people("d", person(2)),
            people("d", person(3)),
            '{"op": "c", "after": {"id": 1, "email": "person-1@example.org"',
        ],
    )
    project.run()
    project.land("2.jsonl", [people("c", person(3, "again-3@example.org"))])
    project.run()
    return project


@pytest.fixture(params=TABLES.values(), ids=TABLES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    return three_commits(tmp_path, request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Project:
    return three_commits(tmp_path, {})


def run(project: Project, where: str, name: str = NAME, **options: Any) -> Erasure:
    config = load(project.folder / "nevermore.yaml")
    return erase(open_catalog(config), config, name, where, is_dry=False, **options)


def files_with(project: Project, *texts: str) -> list[str]:
    """Files below the warehouse in whose decoded values, or in whose bytes, one of the texts is."""
    return sorted(
        path.name
        for path in (project.folder / "warehouse").rglob("*")
        if path.is_file() and any(text in _decoded(path) for text in texts)
    )


def _decoded(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".parquet":
        return data.decode("latin-1") + repr(pq.read_table(path, partitioning=None).to_pylist())
    if path.suffix == ".avro":
        return repr(read_avro(data, str(path)).rows)
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("latin-1")


def passes_checks(project: Project) -> bool:
    with pytest.raises(SystemExit) as end:
        main(["check", "--config", str(project.folder / "nevermore.yaml")])
    return end.value.code == 0


def emails(project: Project) -> dict[int, str]:
    return {row["id"]: row["email"] for row in project.rows(NAME)}


@pytest.mark.each(2)
def test_no_file_has_the_rows_any_more(project: Project) -> None:
    assert files_with(project, "person-1@", "moved-1@")
    done = run(project, "email = 'person-1@example.org'")
    assert done.is_complete, list(done.lines)
    assert not files_with(project, "person-1@", "moved-1@", "Road 1'", 'Road 1"')
    by_name = {one.table: one for one in done.tables}
    assert (by_name[LOG].rows, by_name[QUARANTINE].rows, done.keys) == (2, 1, 1)
    assert by_name[NAME].rows >= 2
    assert done.source_files == {"0.jsonl": 1, "1.jsonl": 2}
    assert all(one.searched_files > 0 and one.decoded_bytes > 0 for one in done.tables)
    assert emails(project) == {
        **{key: f"person-{key}@example.org" for key in (0, 4, 5)},
        3: "again-3@example.org",
    }
    assert passes_checks(project)


@pytest.mark.each(8)
def test_ingest_goes_on_and_the_key_may_come_again(project: Project) -> None:
    run(project, "id = 1")
    assert project.run().found_nothing_new
    project.land("3.jsonl", [people("c", person(1, "new-1@example.org")), people("u", person(4, "four@example.org"))])
    project.run()
    assert emails(project)[1] == "new-1@example.org"
    assert emails(project)[4] == "four@example.org"
    assert passes_checks(project)


@pytest.mark.each(2)
@pytest.mark.parametrize("key", [2, 3])
def test_rows_that_are_dead_already_are_found(plain: Project, key: int) -> None:
    done = run(plain, f"email = 'person-{key}@example.org'")
    assert done.is_complete
    assert done.keys == 1
    assert not files_with(plain, f"person-{key}@", f"again-{key}@")
    assert passes_checks(plain)


@pytest.mark.each(4)
@pytest.mark.parametrize(
    "where", ["address.street = 'Road 4'", "email like 'person-4@%'", "id in (4)", "id > 3 and id < 5"]
)
def test_any_condition_may_tell(plain: Project, where: str) -> None:
    assert run(plain, where).is_complete
    assert not files_with(plain, "person-4@")
    assert set(emails(plain)) == {0, 1, 3, 5}


def test_a_column_that_the_log_lacks_is_refused(plain: Project) -> None:
    """Another tool renamed it: the values that were replaced are in the log alone, where nobody would look for them."""
    with plain.table(NAME).update_schema() as change:
        change.rename_column("email", "mail")
    before = plain.snapshots()
    with pytest.raises(
        SourceError, match=r"looked for in change_log\.shop_people, .*no member 'mail'.* such as the key id"
    ):
        run(plain, "mail = 'person-1@example.org'")
    assert plain.snapshots() == before


def test_a_table_of_format_version_1_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    catalog = open_catalog(load(tmp_path / "nevermore.yaml"))
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([1, 2])})
    catalog.create_table(NAME, rows.schema, properties={"format-version": "1"}).append(rows)
    with pytest.raises(SourceError, match=r"shop\.people has format version 1; versions 2 and 3 are written"):
        run(project, "id = 1")


ABSENT = [
    "nick is null",
    "not nick is not null",
    "nick <=> null",
    "coalesce(nick, 'none') = 'none'",
    "case when nick is null then true else false end",
    "nick is null and id < 90",
    "nick is null or id = 90",
    "id = 90 or coalesce(nick, 'none') in ('none')",
]


@pytest.mark.each(8)
@pytest.mark.parametrize("where", ABSENT)
def test_a_null_that_no_row_had_erases_nobody(tmp_path: Path, where: str) -> None:
    """Deletes have no new row, inserts no old one, old rows often just a key, and unchanged long texts are not sent."""
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    project.land(
        "0.jsonl",
        [
            people("c", {"id": 0, "nick": None, "city": "Oslo"}),
            *(people("c", {"id": key, "nick": f"nick-{key}", "city": "Oslo"}) for key in range(1, 7)),
        ],
    )
    project.run()
    project.land(
        "1.jsonl",
        [
            people("u", {"id": 1, "nick": "__debezium_unavailable_value", "city": "Moss"}, before=None),
            people("u", {"id": 2, "nick": "other-2", "city": "Moss"}, before={"id": 2}),
            people("d", {"id": 3}),
            people("d", {"id": 4, "nick": "nick-4", "city": "Oslo"}),
            people("u", {"id": 5, "nick": None, "city": "Oslo"}, before=None),
            people("u", {"id": 5, "nick": "again-5", "city": "Oslo"}, before=None),
            people("u", {"id": 16, "nick": "__debezium_unavailable_value", "city": "Moss"}, before={"id": 6}),
        ],
    )
    project.run()
    assert {row["id"]: row["nick"] for row in project.rows(NAME)} == {
        0: None,
        1: "nick-1",
        2: "other-2",
        5: "again-5",
        16: "nick-6",
    }
    done = run(project, where)
    assert (done.keys, done.is_complete) == (2, True)
    assert [row["id"] for row in project.rows(NAME)] == [1, 2, 16]
    assert {row["key"]["id"] for row in project.rows(LOG, "ordinal")} >= {1, 2, 3, 4, 6}
    assert passes_checks(project)


@pytest.mark.slow
def test_all_rows_may_go(plain: Project) -> None:
    assert run(plain, "id >= 0").is_complete
    assert plain.rows(NAME) == []
    assert not files_with(plain, "@example.org")
    plain.land("3.jsonl", [people("c", person(8))])
    plain.run()
    assert emails(plain) == {8: "person-8@example.org"}
    assert passes_checks(plain)


@pytest.mark.slow
def test_a_row_whose_key_changed_goes_under_all_its_keys(tmp_path: Path) -> None:
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    project.land("0.jsonl", [people("c", person(key)) for key in range(3)])
    project.run()
    project.land("1.jsonl", [people("u", person(11, "a@example.org"), before=person(1))])
    project.run()
    project.land("2.jsonl", [people("u", person(21, "b@example.org"), before=person(11, "a@example.org"))])
    project.run()
    done = run(project, "email = 'person-1@example.org'")
    assert done.keys == 3
    assert set(emails(project)) == {0, 2}
    assert not files_with(project, "person-1@", "a@example.org", "b@example.org")
    assert passes_checks(project)


@pytest.mark.each(3)
@pytest.mark.parametrize("kind", ["text", "uuid", "two columns"])
def test_keys_of_other_types_are_found_in_quarantined_events_too(tmp_path: Path, kind: str) -> None:
    key = {
        "text": {"id": "customer-4711"},
        "uuid": {"id": "0e4f5b86-2a4a-4c5e-9e2a-7d3f6a1b2c3d"},
        "two columns": {"id": 4711, "region": "north-east"},
    }[kind]
    other = {
        name: 1 if isinstance(value, int) else "ffffffff-2a4a-4c5e-9e2a-7d3f6a1b2c3d" for name, value in key.items()
    }
    types = {"types": {"id": "uuid"}} if kind == "uuid" else {}
    project = Project(tmp_path, {NAME: {"key": list(key), **types}})
    broken = '{"op": "u", "source": {"table": "people"}, "after": ' + json.dumps(key)
    kept = '{"op": "u", "source": {"table": "people"}, "after": ' + json.dumps(other)
    rows = [people("c", {**row, "name": "Anna"}) for row in (key, other)]
    project.land("0.jsonl", [*rows, broken, kept])
    project.run()
    column, value = next(iter(key.items()))
    assert run(project, f"{column} = {value!r}").is_complete
    raw = [row["raw"] for row in project.rows(QUARANTINE, "raw")]
    assert [one.rstrip(b"\n") for one in raw] == [kept.encode()]
    assert len(project.rows(NAME, "name")) == 1
    assert passes_checks(project)


@pytest.mark.each(24)
@pytest.mark.parametrize("escapes", ["none", "ASCII", "capitals", "slashes"])
@pytest.mark.parametrize("key", ["Jürgen-4711", 'a "quoted" name', "two\tcolumns", "north/south", "日本 4711"])
def test_quarantined_events_are_found_however_json_writes_the_key(tmp_path: Path, key: str, escapes: str) -> None:
    written = json.dumps({"id": key}, ensure_ascii=escapes != "none")
    if escapes == "capitals":
        written = re.sub(r"\\u....", lambda found: "\\u" + found[0][2:].upper(), written)
    if escapes == "slashes":
        written = written.replace("/", r"\/")
    assert key_is_erased(tmp_path, key, {}, f"id = '{key}'", written) == []


@pytest.mark.each(6)
@pytest.mark.parametrize(
    ("kind", "key", "where", "written"),
    [
        ("date", 20458, "id = '2026-01-05'", ["20458", '"2026-01-05"']),
        ("timestamptz", "2026-01-05T10:00:00Z", "id = '2026-01-05T10:00:00Z'", ['"2026-01-05T10:00:00.000Z"']),
        ("timestamptz", "2026-01-05T10:00:00Z", "id >= '2026-01-05'", ["1767607200000", "1767607200000000"]),
        ("decimal(10, 2)", "4711.50", "id = 4711.5", ['"4711.50"', "4711.50"]),
        ("long", 4711, "id = 4711", ["4711", '"4711"']),
    ],
)
def test_quarantined_events_are_found_however_they_write_a_value(
    tmp_path: Path, kind: str, key: object, where: str, written: list[str]
) -> None:
    for number, value in enumerate(written):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert key_is_erased(folder, key, {"types": {"id": kind}}, where, f'{{"id": {value}}}') == []


def test_quarantined_events_are_found_by_the_names_that_the_source_has(tmp_path: Path) -> None:
    options = {"key": ["person"], "rename": {"id": "person"}}
    assert key_is_erased(tmp_path, 4711, options, "person = 4711", '{"id": 4711}') == []


def key_is_erased(folder: Path, key: object, options: dict[str, Any], where: str, written: str) -> list[bytes]:
    """Erase a key of which a broken event is in quarantine; the events that are left there."""
    project = Project(folder, {NAME: {"key": ["id"], **options}})
    broken = f'{{"op": "u", "source": {{"table": "people"}}, "after": {written}'
    project.land(
        "0.jsonl", [people("c", {"id": key, "name": "Anna"}), people("c", {"id": key, "name": "Berta"}), broken]
    )
    project.run()
    done = run(project, where)
    assert (done.keys, done.is_complete) == (1, True)
    return [row["raw"] for row in project.rows(QUARANTINE, "raw")]


def test_a_table_without_key_loses_the_equal_rows(tmp_path: Path) -> None:
    project = Project(tmp_path, {NAME: {"identity": "full"}})
    rows = [{"name": "Anna", "city": "Oslo"}, {"name": "Berta", "city": "Oslo"}, {"name": "Anna", "city": "Moss"}]
    project.land("0.jsonl", [people("c", row) for row in rows])
    project.run()
    assert run(project, "name = 'Anna'").is_complete
    assert project.rows(NAME, "name") == [rows[1]]
    assert not files_with(project, "Anna")


@pytest.mark.each(3)
@pytest.mark.parametrize("suffix", ["parquet", "avro", "metadata.json.gz"])
def test_a_file_that_cannot_be_read_may_still_have_the_texts(plain: Project, suffix: str) -> None:
    folder = plain.folder / "warehouse" / "shop" / "people"
    assert folder.is_dir()
    (folder / "data" / f"damaged.{suffix}").write_bytes(b"PAR1 Obj damaged")
    done = run(plain, "email = 'person-1@example.org'")
    assert not done.is_complete
    (held,) = (line for one in done.tables for line in one.held)
    assert f"damaged.{suffix} has values that cannot be read" in held
    assert "kept by nothing" in held


def test_a_dry_run_says_the_same_and_changes_nothing(plain: Project) -> None:
    before, states = sorted(p.name for p in (plain.folder / "warehouse").rglob("*")), plain.snapshots()
    config = load(plain.folder / "nevermore.yaml")
    foreseen = erase(open_catalog(config), config, NAME, "id = 1")
    assert (sorted(p.name for p in (plain.folder / "warehouse").rglob("*")), plain.snapshots()) == (before, states)
    done = run(plain, "id = 1")
    for was, one in zip(foreseen.tables, done.tables, strict=True):
        assert (was.table, was.rows, was.data_files, was.delete_files) == (
            one.table, one.rows, one.data_files, one.delete_files,
        )  # fmt: skip
    assert foreseen.source_files == done.source_files


def test_a_condition_that_nothing_matches_changes_nothing(plain: Project) -> None:
    before = plain.snapshots()
    done = run(plain, "id = 99")
    assert (done.keys, done.is_complete, plain.snapshots()) == (0, True, before)


@pytest.mark.each(2)
@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_tag_or_branch_holds_rows_until_it_goes(plain: Project, kind: str) -> None:
    table = plain.table(NAME)
    with table.manage_snapshots() as change:
        getattr(change, f"create_{kind}")(table.metadata.current_snapshot_id, "audit")
    done = run(plain, "id = 1")
    assert not done.is_complete
    (mirror,) = [one for one in done.tables if one.table == NAME]
    assert any(f"{kind} audit" in reason for reason in mirror.held), mirror.held
    assert 1 not in emails(plain)
    table = plain.table(NAME)
    with table.manage_snapshots() as change:
        getattr(change, f"remove_{kind}")("audit")
    again = run(plain, "id = 1")
    assert again.is_complete, list(again.lines)
    assert not files_with(plain, "person-1@", "moved-1@")


POINTS = [(point, time) for point in ("after-files", "after-manifests", "after-commit") for time in range(1, 9)]


@pytest.mark.each(24)
@pytest.mark.parametrize(("point", "time"), POINTS)
def test_killed_anywhere_it_ends_when_it_is_run_again(
    plain: Project, monkeypatch: pytest.MonkeyPatch, point: str, time: int
) -> None:
    reached: list[str] = []

    def stop(here: str) -> None:
        reached.append(here)
        if reached.count(point) == time:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(storage, "reached", stop)
        try:
            run(plain, "id = 1")
        except Crash:
            pass
        else:
            pytest.skip(f"{point} is not reached {time} times")
    plain.run()
    again = run(plain, "id = 1")
    config = load(plain.folder / "nevermore.yaml")
    left = [reason for one in again.tables for reason in one.held if "nevermore orphans" not in reason]
    assert not left
    if not again.is_complete:  # files of the killed commit, which no other run may delete before they are old
        with pytest.raises(SystemExit) as end:
            main(["orphans", "--older-than", "1ms", "--delete", "--config", str(plain.folder / "nevermore.yaml")])
        assert not end.value.code
        assert erase(open_catalog(config), config, NAME, "id = 1", is_dry=False).is_complete
    assert not files_with(plain, "person-1@", "moved-1@")
    assert set(emails(plain)) == {0, 3, 4, 5}
    assert passes_checks(plain)


@pytest.mark.each(6)
@pytest.mark.parametrize("time", [1, 2, 3, 4, 5])
def test_an_ingest_meanwhile_loses_nothing(plain: Project, monkeypatch: pytest.MonkeyPatch, time: int) -> None:
    plain.land("3.jsonl", [people("u", person(4, "four@example.org")), people("u", person(1, "late-1@example.org"))])
    reached: list[str] = []

    def ingest(here: str) -> None:
        if here == "after-files":
            reached.append(here)
            if len(reached) == time:
                plain.run()

    with monkeypatch.context() as patch:
        patch.setattr(storage, "reached", ingest)
        with suppress(CommitConflictError, SourceError):
            run(plain, "id = 1")
    plain.run()
    assert run(plain, "id = 1").is_complete
    assert not files_with(plain, "person-1@", "moved-1@", "late-1@")
    assert emails(plain)[4] == "four@example.org"
    assert 1 not in emails(plain)
    assert passes_checks(plain)


def test_changes_that_the_mirror_lacks_are_refused(plain: Project) -> None:
    plain.land("3.jsonl", [people("u", person(4, "four@example.org"))])
    plain.run(log_only=True)
    with pytest.raises(SourceError, match=r"1 change of its change log not applied yet.*nevermore ingest shop\.people"):
        run(plain, "id = 1")
    assert 1 in emails(plain)


@pytest.mark.each(2)
@pytest.mark.parametrize(
    ("name", "where", "error", "message"),
    [
        ("shop.poeple", "id = 1", ConfigError, "did you mean"),
        (NAME, "idd = 1", ScanError, "idd"),
        (NAME, "id = ", ScanError, "id ="),
        (NAME, "id", ScanError, "id"),
    ],
)
def test_a_mistake_changes_nothing(plain: Project, name: str, where: str, error: type[Exception], message: str) -> None:
    before = plain.snapshots()
    with pytest.raises(error, match=message):
        run(plain, where, name)
    assert plain.snapshots() == before


def published_from(project: Project) -> Any:
    """A published table made of the mirror as it is, with a row of person 1."""
    path = project.folder / "nevermore.yaml"
    path.write_text(f"{path.read_text()}published:\n  shop.mails: {{sql: 'select id, email from shop.people'}}\n")
    catalog, mirror = open_catalog(load(path)), project.table(NAME)
    made = new_table(catalog, {"id": "long"}, name="shop.mails")
    source = SourceState(str(mirror.metadata.table_uuid), mirror.metadata.current_snapshot_id, "")
    append(made, 1, **{STATE: PublishedState("q", {NAME: source}).as_json()})
    return made


def publisher(project: Project) -> Callable[[str], object]:
    """Publishes the ids of the mirror as they are now."""

    def publish(name: str) -> object:
        catalog, mirror = open_catalog(load(project.folder / "nevermore.yaml")), project.table(NAME)
        made = catalog.load_table(name)
        source = SourceState(str(mirror.metadata.table_uuid), mirror.metadata.current_snapshot_id, "")
        return append(made, 0, replace=True, **{STATE: PublishedState("q", {NAME: source}).as_json()})

    return publish


def test_published_tables_are_published_again_and_expire(plain: Project) -> None:
    published_from(plain)
    done = run(plain, "id = 1", publish=publisher(plain))
    assert done.is_complete, list(done.lines)
    made = open_catalog(load(plain.folder / "nevermore.yaml")).load_table("shop.mails")
    assert len(made.metadata.snapshots) == 1
    assert made.scan().to_arrow() == pa.table({"id": pa.array([0], pa.int64())}, schema=made.scan().to_arrow().schema)


def mails(project: Project, name: str = "shop.mails", read: str = NAME) -> Callable[[str], object]:
    """Publishes the rows of a table, as `incremental: keys` does: the files of the last time are listed as removed."""
    path = project.folder / "nevermore.yaml"
    path.write_text(f"{path.read_text()}published:\n  {name}: {{sql: 'select * from {read}'}}\n")
    columns = {"id": "long", "email": "string", "home": "string"}
    new_table(open_catalog(load(path)), columns, ("identity", "home"), name=name)

    def publish(name: str) -> object:
        delta = RowDelta(open_catalog(load(path)).load_table(name))
        found = [row["after"] if read == LOG else row for row in project.rows(read, "ordinal" if read == LOG else "id")]
        rows = [{k: row[k] for k in ("id", "email")} | {"home": f"home of {row['email']}"} for row in found if row]
        files = write_rows(pa.Table.from_pylist(rows), delta.target, delta.default_spec)
        metadata = project.table(read).metadata
        source = SourceState(str(metadata.table_uuid), metadata.current_snapshot_id, "")
        state = PublishedState("q", {read: source}).as_json()
        return delta.commit(files, {STATE: state, SOURCE + read: str(metadata.current_snapshot_id)}, remove=everything)

    return publish


@pytest.mark.each(3)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_no_manifest_of_a_published_table_lists_what_was_removed(plain: Project, times: int) -> None:
    publish = mails(plain)
    for _ in range(times):
        publish("shop.mails")
    done = run(plain, "id = 1", publish=publish)
    assert done.is_complete, list(done.lines)
    assert not files_with(plain, "person-1@", "moved-1@")
    made = open_catalog(load(plain.folder / "nevermore.yaml")).load_table("shop.mails")
    assert not removed_files(plain)
    assert base_of(made, "replace").state is not None  # the next publication goes on from there
    assert sorted(row["id"] for row in made.scan().to_arrow().to_pylist()) == [0, 3, 4, 5]


@pytest.mark.each(6)
@pytest.mark.parametrize("read", [NAME, LOG], ids=["mirror", "log"])
@pytest.mark.parametrize("life", ["alive", "deleted and expired", "one batch"])
def test_published_rows_go_wherever_the_mirror_had_them(tmp_path: Path, read: str, life: str) -> None:
    """What is published from a change log has rows that the mirror never had, and older snapshots those that it no longer has."""
    project = three_commits(tmp_path, {"partition_by": ["email"]})
    publish = mails(project, read=read)
    come, gone = people("c", person(8)), people("d", person(8))
    for batch in {"alive": [[come]], "one batch": [[come, gone]]}.get(life, [[come], [gone]]):
        project.land(f"{len(batch)}-{batch[0] == gone}.jsonl", batch)
        project.run()
        publish("shop.mails")
    if "expired" in life:
        main_(project, "compact", NAME)
        main_(project, "expire", NAME, "--keep-for", "1ms", "--keep-snapshots", "1")
    done = run(project, "id = 8", publish=publish)
    assert done.is_complete, list(done.lines)
    assert not files_with(project, "person-8@")
    assert not [path for path in (tmp_path / "warehouse").rglob("*") if "person-8" in path.name]
    assert run(project, "id = 8", publish=publish).is_complete


@pytest.mark.each(2)
@pytest.mark.parametrize("has_rows", [True, False])
def test_an_erasure_of_others_does_not_count(plain: Project, *, has_rows: bool) -> None:
    """A published table that keeps its rows was erased for somebody else before: that says nothing of this person."""
    mails(plain)("shop.mails")
    path = plain.folder / "nevermore.yaml"
    path.write_text(path.read_text().replace("'}", "', mode: append}"))
    assert run(plain, "id = 0", "shop.mails").is_complete
    if not has_rows:
        assert run(plain, "id = 1", "shop.mails").is_complete
    assert not run(plain, "id = 1").is_complete
    assert run(plain, "id = 1", "shop.mails").is_complete
    assert run(plain, "id = 1").is_complete
    assert not files_with(plain, "person-1@", "moved-1@")


def removed_files(project: Project) -> list[Any]:
    """The entries of removed files in all manifests below the warehouse."""
    manifests = (project.folder / "warehouse").rglob("*-m0.avro")
    rows = (row for path in manifests for row in read_avro(path.read_bytes(), str(path)).rows)
    return [row["data_file"] for row in rows if row["status"] == 2]


def test_no_manifest_has_bounds_of_files_that_a_commit_removed(plain: Project) -> None:
    """A person whose rows are in no file, no snapshot and no log is found by nothing, and must be named by nothing."""
    publish = mails(plain)
    for _ in range(2):
        publish("shop.mails")
    main_(plain, "compact", NAME)
    removed = removed_files(plain)
    assert len(removed) > 4
    assert not any(file["lower_bounds"] or file["upper_bounds"] for file in removed)


def test_bounds_of_removed_files_by_another_writer_are_forgotten(
    plain: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has the rows any more, but the manifest that removed their file: other writers keep its bounds."""
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "METRIC_MAPS", manifests.METRIC_MAPS[::-1])
        run(plain, "id = 1")
        plain.land("3.jsonl", [people("c", person(9)), people("d", person(9))])
        plain.run()
        main_(plain, "compact", NAME)
    assert any(file["lower_bounds"] for file in removed_files(plain))
    assert run(plain, "email = 'person-9@example.org'").is_complete
    assert not removed_files(plain)


def main_(project: Project, *command: str) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command, "--config", str(project.folder / "nevermore.yaml")])
    assert not end.value.code


def test_caches_and_spilled_files_go_and_the_rest_is_named(
    plain: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "caches"))
    held = [user_folder(purpose) for purpose in ("indexes", "spill")]
    for folder, name in zip(held, ("4f.index", "4f"), strict=True):
        with (folder.folder(name) if folder is held[1] else folder).replace("keys") as file:
            file.write(b"person-1@example.org")
    with held[1].existing_folder("4f").replace("lock") as file:
        file.write(b"")  # of a killed process
    for name in (".dagster/storage/run.db", "data_docs/index.html"):
        (plain.folder / name).parent.mkdir(parents=True)
        (plain.folder / name).write_text("person-1@example.org")
    done = run(plain, "email = 'person-1@example.org'")
    assert not [path for path in (tmp_path / "caches").rglob("*") if path.is_file() and b"person" in path.read_bytes()]
    assert sum("not touched" in line for line in done.lines) == 3  # the landed files, too
    assert set(done.not_touched) == {str(plain.folder / ".dagster"), str(plain.folder / "data_docs")}


def test_published_tables_that_are_left_as_they_are_are_named(plain: Project) -> None:
    published_from(plain)
    done = run(plain, "id = 1")
    assert not done.is_complete
    assert "nevermore publish shop.mails" in next(one for one in done.tables if one.table == "shop.mails").held[0]
    publisher(plain)("shop.mails")
    assert run(plain, "id = 1").is_complete


def test_the_command_reports_and_has_an_exit_code(plain: Project, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", str(plain.folder / "nevermore.yaml")]
    with pytest.raises(SystemExit) as end:
        main(["erase", NAME, "--where", "id = 1", *config])
    assert end.value.code == 0
    assert "nothing was changed; --delete erases the rows" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["erase", NAME, "--where", "id = 1", "--delete", "--json", *config])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_complete"]
    assert found["keys"] == 1
    assert {one["table"] for one in found["tables"]} == {NAME, LOG, QUARANTINE}
    with pytest.raises(SystemExit) as end:
        main(["erase", NAME, "--where", "idd = 1", *config])
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
