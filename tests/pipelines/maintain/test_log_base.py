"""Old changes of a log are replaced by the last change of each key, and everything that reads the log finds the same rows."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.checks.equality import difference_of_base
from nevermore.checks.mirror_checks import checks_of, run_checks
from nevermore.checks.reference.expected_rows import RefusedError, fold_changes, fold_log
from nevermore.pipelines.changes.change_log import ChangeLog, LogBase, last_offsets
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.config.tables import RetentionConfig, TableConfig
from nevermore.pipelines.errors import PipelineError, PositionLostError
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.maintain import log_base
from nevermore.pipelines.maintain.erase import erase
from nevermore.pipelines.maintain.log_base import BaseToCheck, Trimmed, last_states, trim_log, trim_logs
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.replay import replay, resync
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.pipelines.maintain.rollback import roll_back
from tests.pipelines.change_batches import Change, Pipeline, batch_of, change
from tests.pipelines.iceberg_tables import catalog_in
from tests.pipelines.maintain.test_adoption import adopted, assert_changed, changes, project_with_table
from tests.pipelines.project import Project, event, product

NAME, LOG = "shop.products", "change_log.shop_products"
COLUMNS = {"id": pa.int64(), "n": pa.int64(), "text": pa.string(), "blob": pa.string()}
LEAST = RetentionConfig(keep_snapshots=1, keep_for=0.001)


def at_random(draw: random.Random, count: int, *, truncates: float = 0.02, text: str = "t") -> list[Change]:
    """Changes of few keys: columns that were not sent, key changes, deletes, truncates."""
    result = []
    for number in range(count):
        key, kind = draw.randrange(6), draw.random()
        row = {"id": key, "n": number, "text": f"{text}{number}", "blob": f"b{number}"}
        unsent = [name for name in ("text", "blob") if draw.random() < 0.3]
        if kind < truncates:
            result.append(change("t"))
        elif kind < 0.2:
            result.append(change("d", key={"id": key}))
        elif kind < 0.4:
            result.append(change("c", row))
        else:
            new = draw.randrange(6) if draw.random() < 0.15 else key
            sent = {**row, "id": new, **dict.fromkeys(unsent)}
            result.append(change("u", sent, key={"id": key}, unchanged=unsent))
    return result


def numbered(changes: list[Change]) -> pa.Table:
    table = batch_of(changes, COLUMNS).table
    return table.add_column(0, "ordinal", pa.array(range(1, table.num_rows + 1), pa.int64()))


def by_id(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: row["id"])


@pytest.mark.each(2)
@pytest.mark.parametrize("keep_deletes", [False, True])
def test_the_last_change_of_each_key_leads_to_the_same_rows_however_often_it_is_taken(
    keep_deletes: bool,  # noqa: FBT001 - a parameter
) -> None:
    for seed in range(5):
        draw = random.Random(seed)
        changes = numbered(at_random(draw, draw.randrange(1, 50), truncates=0.0))
        cut = draw.randrange(changes.num_rows + 1)
        states = last_states(changes.slice(0, cut), ["id"], keep_deletes=keep_deletes, from_start=True)
        both = pa.concat_tables([states, changes.slice(cut)])
        again = last_states(both.combine_chunks(), ["id"], keep_deletes=keep_deletes, from_start=True)
        required = fold_changes(changes, ["id"])
        for found in (both, again):
            assert by_id(fold_changes(found, ["id"]).rows) == by_id(required.rows), seed
        if keep_deletes:
            assert by_id(fold_changes(again, ["id"]).deleted_keys) == by_id(required.deleted_keys), seed
        assert len(set(states.column("ordinal").to_pylist())) == states.num_rows


def test_values_that_only_an_adopted_row_has_are_found_under_the_key_that_it_had() -> None:
    changes = numbered(
        [
            change("u", {"id": 2, "n": 1, "text": None, "blob": "b"}, key={"id": 1}, unchanged=["text"]),
            change("u", {"id": 2, "n": 2, "text": None, "blob": "b"}, unchanged=["text"]),
            change("u", {"id": 5, "n": 3, "text": "t", "blob": None}, unchanged=["blob"]),
            change("u", {"id": 5, "n": 4, "text": "u", "blob": None}, unchanged=["blob"]),
        ]
    )
    states = last_states(changes, ["id"], keep_deletes=True, from_start=False)
    assert states.column("ordinal").to_pylist() == [1, 2, 4]
    assert states.column("unchanged").to_pylist() == [["text"], ["text"], ["blob"]]


def test_last_rows_and_their_deletes_lead_to_the_same_rows_however_often_they_are_taken() -> None:
    for seed in range(5):
        draw = random.Random(seed)
        changes = numbered(at_random(draw, draw.randrange(1, 50), truncates=0.0))
        cut = draw.randrange(changes.num_rows + 1)

        def taken(some: pa.Table) -> pa.Table:
            found = last_states(some.combine_chunks(), ["id"], keep_deletes=False, from_start=True, is_soft=True)
            return found.combine_chunks()

        states = taken(changes.slice(0, cut))
        assert len(set(states.column("ordinal").to_pylist())) == states.num_rows
        both = pa.concat_tables([states, changes.slice(cut)])
        required = fold_changes(changes, ["id"], with_deleted=True)
        for found in (both, taken(both), taken(taken(changes))):
            folded = fold_changes(found.sort_by("ordinal"), ["id"], with_deleted=True)
            assert by_id(folded.rows) == by_id(required.rows), seed
            assert by_id(folded.deleted_rows) == by_id(required.deleted_rows), seed


def pipeline_trim(pipeline: Pipeline, **options: Any) -> Trimmed:
    config = TableConfig.model_validate({"source": {"path": "x"}, "key": list(pipeline.key), **pipeline.options})
    return trim_log(catalog_in(pipeline.folder), "shop.t", config, difference_of_base, 1.0, **options)


def log_location(pipeline: Pipeline) -> str:
    return str(ChangeLog(catalog_in(pipeline.folder), "change_log.shop_t").table.metadata_location)


def rebuilt(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The rows of a mirror that is built from the log alone."""
    catalog = catalog_in(pipeline.folder)
    catalog.drop_table("shop.t")
    pipeline.catch_up()
    return pipeline.rows


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "spilled": {"memory_limit_bytes": 1024**2, "commit_rows": 20},
    "partitioned": {"partition_by": ["bucket(3, id)"]},
    "soft": {"soft_delete": True},
    "soft, spilled": {"soft_delete": True, "memory_limit_bytes": 1024**2, "commit_rows": 20},
}
SLOW = ("partitioned", "soft, spilled")


@pytest.mark.parametrize(
    "options",
    [pytest.param(one, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, one in OPTIONS.items()],
)
def test_a_log_that_is_trimmed_now_and_then_leads_to_the_same_mirror(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_base, "_oldest_applied", lambda _: 10**9)  # as if older snapshots had expired
    draw = random.Random(11)
    key = ("id",)
    pipeline, untrimmed = (Pipeline(tmp_path / name, COLUMNS, key=key, options=options) for name in ("a", "b"))
    some = {"truncates": 0.0} if "soft_delete" in options else {}
    text = "t" * (4_000 if "memory_limit_bytes" in options else 1)
    bases = []
    for number in range(4):
        changes = at_random(draw, 40, text=text, **some)
        for one in (pipeline, untrimmed):
            one.run(*changes)
        if number % 2:
            done = pipeline_trim(pipeline)
            assert done.reason is None
            bases.append(LogBase(done.ordinal, done.base or 0))
            log = ChangeLog(catalog_in(pipeline.folder), "change_log.shop_t")
            assert (log.base, log.last_ordinal) == (bases[-1], 40 * (number + 1))
        made, required = (fold_log(log_location(one), key, with_deleted=True) for one in (pipeline, untrimmed))
        assert in_order(made.rows) == in_order(required.rows)
        assert made.num_missed == required.num_missed
        if made.deleted_rows is not None and required.deleted_rows is not None and "soft_delete" in options:
            assert in_order(made.deleted_rows) == in_order(required.deleted_rows)
            flagged = [{k: v for k, v in row.items() if k != "_deleted"} for row in pipeline.rows if row["_deleted"]]
            assert sorted(map(str, flagged)) == in_order(made.deleted_rows)
        assert sorted(map(str, pipeline.rows)) == sorted(map(str, untrimmed.rows))
    assert [base.ordinal for base in bases] == [80, 160]
    assert max(base.num_changes for base in bases) < (30 if "soft_delete" in options else 20)
    rows = sorted(map(str, pipeline.rows))
    assert sorted(map(str, rebuilt(pipeline))) == rows


def in_order(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Five keys that were written in each of four runs; one was deleted."""
    return project_of({"key": ["id"]}, tmp_path)


def project_of(table: dict[str, Any], folder: Path) -> Project:
    made = Project(folder, {NAME: table})
    for number in range(4):
        lines = [
            event("u" if number else "c", product(key, f"v{number}"), before=product(key, f"v{number - 1}"))
            if number
            else event("c", product(key, "v0"))
            for key in range(5)
        ]
        made.land(f"{number}.jsonl", [*lines, *([event("d", product(4, "v3"))] if number == 3 else [])])
        made.run()
    return made


def config_of(project: Project) -> Any:
    return load(project.folder / "nevermore.yaml")


def expired(project: Project) -> None:
    time.sleep(0.005)
    config = config_of(project)
    assert not [one.error for one in expire_all(open_catalog(config), config, overrides=LEAST) if one.error]


def trimmed(project: Project, check: Callable[[BaseToCheck], str | None] = difference_of_base, **more: Any) -> Trimmed:
    config = config_of(project)
    (done,) = trim_logs(open_catalog(config), config, check, keep_seconds=0.001, **more)
    return done


def log_of(project: Project) -> ChangeLog:
    return ChangeLog(open_catalog(config_of(project)), LOG)


def passes_checks(project: Project) -> None:
    config = config_of(project)
    for result in run_checks(config, NAME, checks_of(config, NAME)):
        assert result.passed, result.summary()
        assert "not compared" not in result.summary()


@pytest.mark.slow
def test_replay_resync_checks_and_ingest_work_from_base_and_tail(project: Project) -> None:
    expired(project)
    rows = project.rows()
    done = trimmed(project)
    assert (done.ordinal, done.replaced, done.tail, done.error) == (21, 21, 0, None)
    # four live keys, and the last place of each of the three older files, by which it is known if it comes again
    assert done.base == 4 + 1 + 3
    passes_checks(project)
    project.land("4.jsonl", [event("u", product(0, "v4")), event("d", product(1)), event("c", product(7, "v4"))])
    project.run()
    passes_checks(project)
    rows = project.rows()
    assert [row["id"] for row in rows] == [0, 2, 3, 7]
    config = config_of(project)
    replay(open_catalog(config), config, NAME, "1", None)
    assert project.rows() == rows
    resync(open_catalog(config), config, NAME)
    assert project.rows() == rows
    passes_checks(project)
    open_catalog(config).drop_table(NAME)
    project.run()
    assert project.rows() == rows
    passes_checks(project)


def test_the_old_files_go_with_their_snapshots(project: Project) -> None:
    expired(project)
    trimmed(project)
    folder = project.folder / "warehouse" / "change_log"
    before = {p.name for p in folder.rglob("*.parquet")}
    time.sleep(0.005)
    project.land("4.jsonl", [event("u", product(0, "v4"))])
    project.run()
    expired(project)
    assert len(before) == 5
    assert len([p for p in folder.rglob("*.parquet") if p.name in before]) == 1
    passes_checks(project)


def test_changes_stay_that_a_snapshot_of_the_mirror_may_need(project: Project) -> None:
    done = trimmed(project)
    assert done.ordinal == 5
    assert "up to 5" in str(trimmed(project).reason)
    config = config_of(project)
    oldest = project.table(NAME).metadata.snapshots[0].snapshot_id
    assert roll_back(open_catalog(config), config, NAME, snapshot_id=oldest, before=None, is_dry=True)
    passes_checks(project)


def test_changes_within_the_time_stay(project: Project) -> None:
    expired(project)
    config = config_of(project)
    (done,) = trim_logs(open_catalog(config), config, difference_of_base, keep_seconds=3600.0)
    assert "no change is older" in str(done.reason)
    assert not list(trim_logs(open_catalog(config), config, difference_of_base))  # no keep_log in the config


def test_few_new_changes_do_not_pay_a_rewrite(project: Project) -> None:
    expired(project)
    assert trimmed(project, min_share=0.5).base == 8
    project.land("4.jsonl", [event("u", product(0, "v4"))])
    project.run()
    expired(project)
    assert "too few" in str(trimmed(project, min_share=0.5).reason)
    assert trimmed(project).base == 8


def test_a_base_that_leads_to_other_rows_is_not_committed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    expired(project)
    states, files = project.snapshots(), set(project.folder.rglob("*.parquet"))
    with monkeypatch.context() as patch:
        patch.setattr(log_base, "last_states", lambda changes, *_, **__: changes.slice(0, 1))
        done = trimmed(project)
    assert "would lead to other rows" in str(done.error)
    assert (project.snapshots(), set(project.folder.rglob("*.parquet"))) == (states, files)
    passes_checks(project)


class Crash(BaseException):
    pass


KINDS: dict[str, dict[str, Any]] = {
    "key": {"key": ["id"]},
    "soft": {"key": ["id"], "soft_delete": True},
}


@pytest.mark.parametrize("point", ["after-files", "after-manifests", "after-commit"])
@pytest.mark.parametrize("kind", ["key", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("soft",))])
def test_killed_anywhere_the_log_is_whole_and_a_later_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, kind: str
) -> None:
    project = project_of(KINDS[kind], tmp_path)

    def stop(here: str) -> None:
        if here == point:
            raise Crash

    expired(project)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "reached", stop)
        with pytest.raises(Crash):
            trimmed(project)
    passes_checks(project)
    project.land("4.jsonl", [event("u", product(0, "v4"), before=product(0, "v3"))])
    project.run()
    expired(project)
    assert trimmed(project).error is None
    rows = project.rows()
    assert {row["id"] for row in rows} == ({0, 1, 2, 3, 4} if kind == "soft" else {0, 1, 2, 3})
    config = config_of(project)
    resync(open_catalog(config), config, NAME)
    assert in_any_order(project.rows()) == in_any_order(rows)
    left = list(orphans_of_all(open_catalog(config), config, overrides=RetentionConfig(orphan_age=0.001), delete=True))
    assert not any(one.error for one in left)
    passes_checks(project)


def in_any_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.each(2)
@pytest.mark.parametrize("point", ["after-files", "after-commit"])
def test_a_mirror_that_is_built_from_a_base_with_flagged_rows_is_begun_again_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    project = project_of(KINDS["soft"], tmp_path)
    expired(project)
    assert trimmed(project).error is None
    project.land("4.jsonl", [event("t"), event("c", product(1, "new")), event("c", product(2)), event("d", product(2))])
    project.run()
    rows = project.rows()
    assert [row["_deleted"] for row in sorted(rows, key=lambda row: row["id"])] == [True, False, True, True, True]
    open_catalog(config_of(project)).drop_table(NAME)
    shutil.rmtree(project.folder / "warehouse" / "shop" / "products")
    commits = 0

    def stop(here: str) -> None:
        nonlocal commits
        commits += here == point
        if commits == 2:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(storage, "reached", stop)
        with pytest.raises(Crash):
            project.run()
    project.land("5.jsonl", [event("u", product(3, "back"))])
    project.run()
    changed = [row if row["id"] != 3 else {**row, "name": "back", "_deleted": False} for row in rows]
    assert in_any_order(project.rows()) == in_any_order(changed)
    passes_checks(project)


@pytest.mark.parametrize(
    ("table", "last", "reason"),
    [
        ({"identity": "full"}, event("c", product(9)), "every row that was added stays"),
        ({"key": ["id"], "soft_delete": True}, event("t"), "the source was truncated"),
    ],
)
def test_a_log_of_which_hardly_a_change_could_go_stays(
    tmp_path: Path, table: dict[str, Any], last: str, reason: str
) -> None:
    project = project_of(table, tmp_path)
    project.land("4.jsonl", [last])
    project.run()
    expired(project)
    assert reason in str(trimmed(project).reason)
    assert log_of(project).base == LogBase()


def test_an_ingest_meanwhile_loses_nothing(project: Project) -> None:
    expired(project)

    def ingest(base: BaseToCheck) -> str | None:
        project.land("4.jsonl", [event("u", product(0, "late")), event("d", product(1))])
        project.run()
        return difference_of_base(base)

    assert trimmed(project, ingest).error is None
    assert log_of(project).base.ordinal == 21
    assert log_of(project).last_ordinal == 23
    passes_checks(project)
    assert [row["id"] for row in project.rows()] == [0, 2, 3]


def test_two_at_once_trim_once(project: Project) -> None:
    expired(project)

    def other(base: BaseToCheck) -> str | None:
        assert trimmed(project).error is None
        return difference_of_base(base)

    assert "meanwhile" in str(trimmed(project, other).error)
    passes_checks(project)
    assert len(list((project.folder / "warehouse" / "change_log").rglob("*.parquet"))) == 5


def test_later_changes_in_the_files_of_a_base_stay(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has merged all files of the log into one."""
    with pytest.raises(SystemExit):
        main(["compact", LOG, "--all", "--config", str(project.folder / "nevermore.yaml")])
    expired(project)
    monkeypatch.setattr(log_base, "_last_replaceable", lambda *_: (12, ""))
    done = trimmed(project)
    assert (done.files_before, done.tail) == (1, 9)
    log = log_of(project)
    held = fold_log(log.table.metadata_location, ["id"])
    assert by_id(held.rows) == project.rows()
    config = config_of(project)
    resync(open_catalog(config), config, NAME)
    passes_checks(project)


def test_there_is_no_way_back_behind_an_erasure_though_the_log_has_all_later_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure expires older snapshots at its end, also those that never had the row; this one is interrupted before."""
    monkeypatch.setattr("nevermore.pipelines.maintain.erase._Run._expire", lambda *_: None)
    project = Project(tmp_path, {NAME: {"key": ["id"]}})
    project.land("0.jsonl", [event("c", product(1)), event("t"), event("c", product(2))])
    project.run()
    project.land("1.jsonl", [event("c", product(3))])
    project.run()
    config = config_of(project)
    erase(open_catalog(config), config, NAME, "id = 1", is_dry=False)
    older, *_ = (s.snapshot_id for s in project.table(NAME).metadata.snapshots)
    rows = project.rows()
    with pytest.raises(PositionLostError, match="up to 4"):
        roll_back(open_catalog(config), config, NAME, snapshot_id=older, before=None)
    assert project.run().exit_code == 0
    assert project.rows() == rows


def test_a_mirror_within_the_base_must_be_rebuilt(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = project.table(NAME).metadata.snapshots[0].snapshot_id
    monkeypatch.setattr(log_base, "_oldest_applied", lambda _: 10**9)
    trimmed(project)
    config = config_of(project)
    with pytest.raises(PositionLostError, match="ordinal 5"):
        roll_back(open_catalog(config), config, NAME, snapshot_id=oldest, before=None, is_dry=True)
    table = project.table(NAME)
    table.manage_snapshots().set_current_snapshot(snapshot_id=oldest).commit()
    with pytest.raises(RefusedError, match="only the last change"):
        fold_log(log_of(project).table.metadata_location, ["id"], up_to_ordinal=5)
    assert "nevermore resync" in str(project.run().tables[0].error)
    resync(open_catalog(config), config, NAME)
    passes_checks(project)


def test_a_file_that_comes_again_is_not_applied_again(project: Project) -> None:
    expired(project)
    trimmed(project)
    log = log_of(project)
    assert last_offsets(log.table, [f"{n}.jsonl" for n in range(4)]) == {f"{n}.jsonl": 5 + (n == 3) for n in range(4)}


def test_an_event_in_quarantine_does_not_bring_back_a_row_that_was_deleted_later(tmp_path: Path) -> None:
    project = Project(tmp_path, {NAME: {"key": ["id"], "types": {"name": "int"}}})
    project.land("1.jsonl", [event("c", product(1, "12")), event("c", product(2, "none"))])
    project.run()
    project.land("2.jsonl", [event("d", product(2, "13")), event("d", product(1, "12"))])
    project.run()
    expired(project)
    assert trimmed(project).base == 3  # deletes of both keys, and the last place of the first file
    project.write({NAME: {"key": ["id"], "types": {"name": "string"}, "on_conflict": "new_column"}})
    with pytest.raises(SystemExit):
        main(["quarantine", "replay", NAME, "--config", str(project.folder / "nevermore.yaml")])
    assert project.rows() == []


def test_late_events_of_deleted_keys_have_no_effect(tmp_path: Path) -> None:
    project = Project(tmp_path, {NAME: {"key": ["id"], "order_by": ["source.at"]}})

    def at(op: str, key: int, when: int) -> str:
        document = json.loads(event(op, {"id": key, "at": when}))
        return json.dumps({**document, "source": {**document["source"], "at": when}})

    project.land("1.jsonl", [at("c", 1, 10), at("c", 2, 11), at("d", 1, 30), at("u", 2, 31)])
    assert project.run().exit_code == 0
    expired(project)
    assert trimmed(project).base == 2
    project.land("2.jsonl", [at("u", 1, 20), at("u", 2, 21)])
    assert project.run().exit_code == 0
    assert project.rows() == [{"id": 2, "at": 31}]
    passes_checks(project)


def test_deletes_of_adopted_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that a mirror was adopted with are not in its log, but deletes of them are."""
    monkeypatch.setattr(log_base, "_oldest_applied", lambda _: 10**9)
    project = project_with_table(tmp_path)
    adopted(project)
    changes(project)
    assert_changed(project)
    project.land("2.jsonl", [event("u", {"id": 1, "name": "again", "seen": None})])
    assert project.run().exit_code == 0
    assert trimmed(project).base == 3
    passes_checks(project)
    project.land("3.jsonl", [event("u", {"id": 3, "name": "later", "seen": None})])
    assert project.run().exit_code == 0
    passes_checks(project)


@pytest.mark.each(2)
@pytest.mark.parametrize("trims", [False, True])
def test_after_an_erasure_the_log_still_rebuilds_the_mirror(
    project: Project,
    trims: bool,  # noqa: FBT001 - a parameter
) -> None:
    expired(project)
    if trims:
        trimmed(project)
    config = config_of(project)
    assert erase(open_catalog(config), config, NAME, "id = 1", is_dry=False).is_complete
    rows = project.rows()
    resync(open_catalog(config), config, NAME)
    assert project.rows() == rows
    passes_checks(project)
    project.land("4.jsonl", [event("u", product(0, "v4")), event("c", product(1, "again"))])
    project.run()
    expired(project)
    assert trimmed(project).error is None
    rows = project.rows()
    resync(open_catalog(config), config, NAME)
    assert project.rows() == rows
    passes_checks(project)


def test_the_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["trim-log", *words, "--config", str(project.folder / "nevermore.yaml")])
        return int(end.value.code or 0)

    assert run() == 2
    assert "keep_log: 30d" in capsys.readouterr().err
    expired(project)
    assert run("--keep-log", "1ms", "--dry-run") == 0
    assert f"{LOG}: would replace 21 changes up to ordinal 21" in capsys.readouterr().out
    project.write({NAME: {"key": ["id"], "maintenance": {"keep_log": "1ms"}}})
    assert run("--json") == 0
    assert '"base":8' in capsys.readouterr().out
    assert run("shop.product") == 2
    passes_checks(project)


def test_errors_of_one_log_are_reported(project: Project) -> None:
    expired(project)

    def broken(_: BaseToCheck) -> str | None:
        raise PipelineError("the disk is gone")

    done = trimmed(project, broken)
    assert "the disk is gone" in str(done.error)
    assert next(done.lines).startswith(f"{LOG}: failed")
