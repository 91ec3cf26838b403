"""The mirror is compared with its table: what is missing, extra or different is found, and what changes meanwhile is not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
import pytest
import yaml

from nevermore.assets.definitions import project_definitions
from nevermore.assets.project import mirror_key
from nevermore.checks import source_equality
from nevermore.checks.source_equality import mirror_equals_source
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import load
from nevermore.pipelines.errors import PipelineError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain import replay
from nevermore.pipelines.maintain.replay import resync_keys
from nevermore.pipelines.sources.live import RANGE_ROWS
from nevermore.pipelines.sources.postgres.load import PostgresBatch
from nevermore.pipelines.sources.postgres.reader import PostgresReader
from nevermore.pipelines.sources.postgres.server import Server
from tests.support.lost_rows import found_after_losses, loaded_again, resync

ROWS = 30_000
KEYS = {
    "integer": ("id int PRIMARY KEY", "i"),
    "text": ('id text COLLATE "C" PRIMARY KEY', "(CASE i % 2 WHEN 0 THEN 'b' ELSE 'B' END) || i"),
    "uuid": ("id uuid PRIMARY KEY", "md5(i::text)::uuid"),
    "composite": ("id int, PRIMARY KEY (id, body)", "i % 7"),
    "none": ("id int", "i"),
}


def items(shop: Any, key: str = "integer", **settings: Any) -> Any:
    columns, value = KEYS[key]
    shop.sql(
        f"CREATE TABLE items (n int, body text, amount numeric(12, 2), {columns})",
        f"INSERT INTO items SELECT i, 'row ' || i, i / 8.0, {value} FROM generate_series(1, {ROWS}) i",
        *(["ALTER TABLE items REPLICA IDENTITY FULL"] if key == "none" else []),
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    shop.source["chunk_bytes"] = "1MiB"
    config = shop.config("items", **({"identity": "full"} if key == "none" else {}), **settings)
    shop.ingest(config)
    return config


def lose(shop: Any, config: Any, *statements: str) -> None:
    """Make changes, and read on without them, as a connector with a fault does."""
    shop.sql(*statements)

    def prepared(_: object, payload: bytes) -> Iterator[bytes]:
        yield from [payload] if payload[:1] in b"BC" else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresReader, "_prepared", prepared)
        patch.setattr(PostgresBatch, "is_due", lambda *_: True)
        shop.ingest(config)


@pytest.mark.parametrize(
    "key", [k if k in {"integer", "none"} else pytest.param(k, marks=pytest.mark.slow) for k in KEYS]
)
def test_missing_extra_and_changed_rows_are_found(shop: Any, key: str) -> None:
    config, value = items(shop, key), KEYS[key][1]
    inserted = f"INSERT INTO items SELECT i, 'new', 1, {value} FROM (VALUES ({ROWS + 8})) v(i)"
    found, wrong = found_after_losses(shop, config, lose, inserted, num_rows=ROWS, has_key=key != "none")
    assert not found.passed
    hint = "load these rows again: nevermore resync shop.items --keys="
    lacking = "load the table again: nevermore resync shop.items --from-source"
    assert (hint if key in {"integer", "composite"} else lacking) in "\n".join(found.details)
    shown = [(row["database"], row["mirror"]) for row in found.offending_keys]
    assert min(row["n"] for pair in shown for row in pair if row is not None and "n" in row) == 7
    if key != "none":
        (other,) = (pair for pair in shown if None not in pair)
        assert {str(side["amount"]) for side in other} == {"None", "1.13"}
    shop.ingest(config)
    assert mirror_equals_source(config, "shop.items").details[: len(wrong)] == wrong


@pytest.mark.each(2)
@pytest.mark.parametrize("columns", ["id int PRIMARY KEY", "id bigint, PRIMARY KEY (id, body)"], ids=["one", "two"])
def test_keys_that_differ_are_loaded_again(shop: Any, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KEYS, "given", (columns, "i"))
    loaded_again(shop, items(shop, "given"), lose, f"INSERT INTO items VALUES ({ROWS + 8}, 'new', 1, {ROWS + 8})")


def test_each_table_is_read_by_its_own_settings(shop: Any) -> None:
    columns = "(id int PRIMARY KEY, n int, body text)"
    shop.sql(
        *(f"CREATE TABLE {name} {columns}" for name in ("first", "items")),
        *(f"INSERT INTO {name} SELECT i, i, 'row' FROM generate_series(1, 99) i" for name in ("first", "items")),
        "CREATE PUBLICATION pub FOR TABLE first, items",
    )
    source = {"type": "postgres", "dsn": shop.dsn, "slot": shop.slot, "publication": "pub"}
    tables = {"shop.first": {"source": source, "rename": {"id": "number"}, "exclude": ["body"]}}
    path = shop.folder / "nevermore.yaml"
    path.write_text(yaml.safe_dump({"tables": {**tables, "shop.items": {"source": source}}}))
    config = load(path)
    shop.ingest(config)
    assert mirror_equals_source(config, "shop.first").passed
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 9", "DELETE FROM items WHERE n = 10")
    (hint,) = (line for line in mirror_equals_source(config, "shop.items").details if "resync" in line)
    assert hint.endswith("nevermore resync shop.items --keys=9..10")
    assert resync(config, ["shop.items", "--keys", "9..10"]) == 0
    found = mirror_equals_source(config, "shop.items")
    assert (found.passed, found.compared) == (True, {"rows in database": 98, "rows in mirror": 98})


def test_keys_are_compared_in_parts(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = items(shop, "composite", memory_limit_bytes="16MiB")
    monkeypatch.setattr(replay, "BATCH_SHARE", 256)
    lose(shop, config, "DELETE FROM items WHERE n % 10 = 0", "UPDATE items SET body = 'new' WHERE n = 9")
    sizes, spread = list[int](), replay.spread
    monkeypatch.setattr(
        replay, "spread", lambda *given: (sizes.append(part.num_rows) or part for part in spread(*given))
    )
    done = resync_keys(open_catalog(config), config, "shop.items", "0..6")
    assert (done.num_rows, done.num_changes) == (ROWS - ROWS // 10, ROWS + 1)
    assert len(sizes) > 10
    assert max(sizes) < ROWS / 4
    assert mirror_equals_source(config, "shop.items").details == []


@pytest.mark.slow
def test_keys_are_loaded_again_while_others_write(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = items(shop)
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n % 1000 = 0", "DELETE FROM items WHERE n % 1000 = 500")
    load, others = PostgresReader.load, iter([shop.ingest, shop.ingest])

    def load_after_others(*given: Any) -> Any:
        next(others, id)(config)  # so that the first tries find another position when they commit
        return load(*given)

    monkeypatch.setattr(PostgresReader, "load", load_after_others)
    with written_and_read(shop, config, pause_seconds=10_000):
        for begin in range(500, ROWS, 5_000):
            resync_keys(
                open_catalog(config), config, "shop.items", f"{begin}..{begin + 2},{begin + 500}..{begin + 5000}"
            )
            shop.ingest(config)
    shop.ingest(config)
    found = mirror_equals_source(config, "shop.items")
    assert (found.passed, found.details) == (True, [])


@pytest.mark.each(5)
@pytest.mark.parametrize(
    ("key", "words", "why"),
    [
        ("integer", ["--keys", "1..x"], "keys: 1..x is neither an integer nor a range of them, as in 17,20..30"),
        ("integer", ["--keys", "9..8"], "keys: 9..8 is neither an integer nor a range of them"),
        ("integer", ["--keys", "9", "--from-source"], "are mutually exclusive"),
        ("text", ["--keys", "9"], "rows are loaded by ranges of an integer with which the key begins"),
        ("none", ["--keys", "9"], "nevermore resync shop.items --from-source"),
    ],
    ids=range(5),
)
def test_keys_that_cannot_be_loaded_are_refused(
    shop: Any, key: str, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resync(items(shop, key), ["shop.items", *words]) in {1, 2}
    assert why in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_equal_rows_stay_in_the_database(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config, fetched = items(shop), list[int]()
    query = Server.query
    monkeypatch.setattr(Server, "query", lambda *given: fetched.append(len(found := query(*given))) or found)
    monkeypatch.setattr(PostgresReader, "load", None)  # nothing is decoded
    found = mirror_equals_source(config, "shop.items")
    assert (found.passed, found.details, found.compared["rows in database"]) == (True, [], ROWS)
    assert sum(fetched) < 100
    shop.sql(
        "UPDATE items SET body = 'later' WHERE n IN (5, 20000)", f"INSERT INTO items VALUES (-1, 'new', 1, {-ROWS})"
    )
    found = mirror_equals_source(config, "shop.items")
    assert (found.passed, found.details) == (True, ["3 rows that changed meanwhile not compared"])
    assert sum(fetched) < 5 * RANGE_ROWS
    limited = shop.config("items", checks={"max_rows_per_second": 20_000})
    assert mirror_equals_source(limited, "shop.items").compared == found.compared


def test_a_fault_of_the_decoder_is_found(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = items(shop)
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 77")
    monkeypatch.setattr(source_equality._Reading, "rows", lambda *_: [shop.mirror(config, "items")])
    found = mirror_equals_source(config, "shop.items")
    assert found.details[0].startswith("1 row that the database writes as other text, though a load reads the same")


def test_one_row_in_a_hundred_is_wrong(shop: Any) -> None:
    config = items(shop)
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n % 100 = 0")
    found = mirror_equals_source(config, "shop.items")
    assert found.details[0] == f"{ROWS // 100} rows with other values than in the database"
    assert len(found.offending_keys) == 20
    assert found.offending_keys[0] == {"id": 100, "database": {"body": "lost"}, "mirror": {"body": "row 100"}}


@pytest.mark.slow
def test_changes_during_the_comparison_are_no_differences(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = items(shop, checks={"max_rows_per_second": 15_000})
    monkeypatch.setattr(source_equality, "RETRY_SECONDS", 0.1)
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 77")
    with written_and_read(shop, config, pause_seconds=0.2):
        found = [mirror_equals_source(config, "shop.items") for _ in range(3)]
    assert [one.details[0] for one in found] == ["1 row with other values than in the database"] * 3
    assert all("changed meanwhile" in str(one.details) for one in found)


@contextmanager
def written_and_read(shop: Any, config: Any, pause_seconds: float) -> Iterator[None]:
    """Others write to the table, except row 77, and ingest what they write."""
    shop.sql("CREATE INDEX ON items (n)")
    stop = threading.Event()
    writer = shop.server.connect(shop.database)

    def write() -> None:
        number = 0
        with writer.cursor() as cursor:
            while not stop.wait(0.002):
                number += 1
                at = number * 7919 % ROWS
                cursor.execute(f"UPDATE items SET body = 'w{number}' WHERE n = {at} AND n <> 77")
                cursor.execute(f"UPDATE items SET id = -id WHERE n = {at + 1} AND n <> 77")
                cursor.execute(f"DELETE FROM items WHERE n = {at + 2} AND n <> 77")
                cursor.execute(f"INSERT INTO items VALUES ({ROWS + number}, 'new', 1, {ROWS + number})")

    def ingest() -> None:
        while not stop.wait(pause_seconds):
            run_once(config)  # fails while others read the stream

    threads = [threading.Thread(target=work) for work in (write, ingest)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        writer.close()


def test_a_stream_that_another_process_holds_is_waited_for(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = items(shop)
    monkeypatch.setattr(source_equality, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(source_equality, "RETRY_SECONDS", 0.1)
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 77")
    held = source_equality.Readers()
    try:
        feed = source_equality.feeds_of(config, ["shop.items"], held)[0]
        position = source_equality.ChangeLog(source_equality.open_catalog(config), "change_log.shop_items").position
        feed.live.begin({"shop.items": position})
        for _ in feed.live.stream({"shop.items": position}, 1_000_000):
            pass
        found = mirror_equals_source(config, "shop.items")
    finally:
        held.close()
    assert found.details[0] == "1 row with other values than in the database"
    assert "changes that are not in the log after 0 s are unknown" in found.details[1]


class Interruption(BaseException):
    """What Ctrl-C raises in the middle of a comparison."""


def interrupted(config: Any, monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Compare until so many queries of sums were answered, or to the end; return the queries of sums."""
    asked, query = list[str](), Server.query

    def counted(server: Server, sql: str, *values: Any) -> Any:
        if "SUM(h)" in sql:
            if len(asked) == after:
                raise Interruption
            asked.append(sql)
        return query(server, sql, *values)

    with monkeypatch.context() as patch:
        patch.setattr(source_equality, "KEEP_SECONDS", 0.0)
        patch.setattr(source_equality.time, "sleep", lambda _: None)
        patch.setattr(Server, "query", counted)
        try:
            found = mirror_equals_source(config, "shop.items")
        except Interruption:
            return asked
    assert found.compared["rows in mirror"] > 0
    return [*asked, *found.details]


@pytest.mark.parametrize("meanwhile", ["nothing", "written", "lost", "lost later", "too old", "other server"])
def test_an_interrupted_comparison_goes_on(shop: Any, monkeypatch: pytest.MonkeyPatch, meanwhile: str) -> None:
    config = items(shop, checks={"max_rows_per_second": 4_000})
    whole = interrupted(config, monkeypatch, 99)
    assert interrupted(config, monkeypatch, 5) == whole[:5]
    rest, wrong, next_wrong = whole[5:], "", ""
    match meanwhile:
        case "written":  # in ranges that were read before, and in others
            shop.sql("UPDATE items SET body = 'a' WHERE n IN (5, 29000)", "DELETE FROM items WHERE n IN (6, 29001)")
            shop.ingest(config)
            shop.sql("UPDATE items SET body = 'on its way' WHERE n IN (5, 29000)")
        case "lost":  # after its range was read: as without an interruption, the next comparison finds it
            lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 5")
            next_wrong = "1 row with other values than in the database"
        case "lost later":
            lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 29000")
            wrong = next_wrong = "1 row with other values than in the database"
        case "too old":
            monkeypatch.setattr(source_equality, "RESUME_SECONDS", -1.0)
            rest = whole
        case "other server":
            monkeypatch.setattr(Server, "system", property(lambda _: "another"))
            rest = whole
    found = interrupted(config, monkeypatch, 99)
    assert found[: len(rest)] == rest
    first, *others = [*found[len(rest) :], ""]
    if wrong or rest == whole:
        assert first == wrong
    else:
        assert first.startswith("went on with what was read since 20")
        assert [text for text in others if text and "changed meanwhile" not in text] == []
    # one that came to its end is not gone on with
    again = interrupted(config, monkeypatch, 99)
    assert sum("SUM(h)" in text for text in again) == len(whole)
    assert [text for text in again if "went on" in text or "other values" in text] == [next_wrong] * bool(next_wrong)


def test_what_cannot_be_compared_is_said(shop: Any) -> None:
    config = items(shop)
    shop.sql("ALTER TABLE items DROP COLUMN amount", "UPDATE items SET n = n")
    found = mirror_equals_source(config, "shop.items")
    assert (found.passed, found.details) == (True, ["not compared: amount, which the database does not have"])
    shop.sql("TRUNCATE items")
    with pytest.raises(PipelineError, match="was truncated while it was compared"):
        mirror_equals_source(config, "shop.items")


@pytest.mark.slow
def test_the_command_and_dagster_compare_with_the_database(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = items(shop)

    def check(code: int | None) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["check", "--source", "--config", str(config.path)])
        assert ended.value.code in {code, None}
        return capsys.readouterr().out

    assert f"passed  shop.items  mirror_equals_source  {ROWS:,} rows in database" in check(0)
    lose(shop, config, "UPDATE items SET body = 'lost' WHERE n = 77")
    found = check(0)
    assert "WARNING  shop.items  mirror_equals_source" in found
    assert "key {'id': 77, 'database': {'body': 'lost'}, 'mirror': {'body': 'row 77'}}" in found
    blocking = shop.config("items", checks={"mirror_equals_source": "block"})
    assert "FAILED  shop.items  mirror_equals_source" in check(1)

    definitions = project_definitions(blocking)
    check_key = dg.AssetCheckKey(mirror_key("shop.items"), "mirror_equals_source")
    for job, is_run in (("ingest_job", False), ("check_job", False), ("source_check_job", True)):
        keys = definitions.resolve_job_def(job).asset_layer.asset_graph.asset_check_keys
        assert (check_key in keys) == is_run, job
    done = definitions.resolve_job_def("source_check_job").execute_in_process(raise_on_error=False)
    (evaluation,) = done.get_asset_check_evaluations()
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.ERROR)
    off = project_definitions(shop.config("items", checks={"mirror_equals_source": "off"}))
    assert not off.resolve_all_job_defs() or "source_check_job" not in {job.name for job in off.resolve_all_job_defs()}


def test_rows_of_deleted_keys_are_kept_where_the_mirror_keeps_them(shop: Any) -> None:
    config = items(shop, soft_delete=True)
    lose(shop, config, "DELETE FROM items WHERE n IN (7, 8)", "UPDATE items SET body = 'new' WHERE n = 9")
    assert resync(config, ["shop.items", "--keys", "1..9"]) == 0
    rows = {row["id"]: row for row in shop.mirror(config, "items").to_pylist()}
    assert [(rows[n]["body"], rows[n]["_deleted"]) for n in (7, 8, 9)] == [
        ("row 7", True),
        ("row 8", True),
        ("new", False),
    ]
    assert mirror_equals_source(config, "shop.items").passed
