"""Readers of several mirrors of one database see a state that the database had."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
import pytest

from nevermore.pipelines.changes.change_log import ChangeLog
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.config.project import Config, change_log_name
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.errors import PublishError, SourceError
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest import feed_run
from nevermore.pipelines.ingest.feed_run import apply_logs, run_once
from nevermore.pipelines.ingest.project import Project
from nevermore.pipelines.maintain.compact import compact_mirror
from nevermore.pipelines.maintain.replay import resync_from_source
from nevermore.pipelines.maintain.retention import expire_all
from nevermore.pipelines.mirrors.moments import moments_of, snapshots_at
from nevermore.pipelines.publish.mirror_reads import mirror_scans
from nevermore.pipelines.publish.query import published_query
from nevermore.pipelines.sources.postgres.reader import PostgresReader
from nevermore.scan_core import SnapshotNotFoundError, open_table

ACCOUNTS = 20
SQL = "select c.amount, s.amount as other from shop.checking c cross join shop.savings s"


@pytest.fixture
def bank(shop: Any) -> Any:
    """Money moves between two tables; there is always the same amount."""
    for name in ("checking", "savings"):
        shop.sql(
            f"CREATE TABLE {name} (id int PRIMARY KEY, amount int)",
            f"INSERT INTO {name} SELECT i, 100 FROM generate_series(1, {ACCOUNTS}) i",
        )
    shop.sql("CREATE TABLE notes (id int PRIMARY KEY)", "CREATE PUBLICATION pub FOR ALL TABLES")
    shop.top = {
        "parallel_tables": 1,
        "published": {"shop.money": {"sql": SQL}, "shop.loose": {"sql": SQL, "consistent": False}},
    }
    return shop


def transfer(shop: Any, number: int) -> None:
    shop.sql(
        f"BEGIN; UPDATE checking SET amount = amount - {number} WHERE id = {1 + number % ACCOUNTS}; "
        f"UPDATE savings SET amount = amount + {number} WHERE id = {1 + number * 7 % ACCOUNTS}; COMMIT"
    )


def total(config: Config, published: str = "shop.money") -> int:
    scans = mirror_scans(open_catalog(config), config, published_query(config, published))
    return sum(sum(scan.to_table().column("amount").to_pylist()) for scan in scans.values())


@pytest.mark.slow
def test_every_state_that_is_published_is_one_of_the_database(bank: Any) -> None:
    config = bank.config("checking", "savings", "notes")
    bank.ingest(config)
    seen, loose = [], []

    def look(_: object) -> None:
        transfer(bank, 1000 + len(seen))
        seen.append(total(config))
        loose.append(total(config, "shop.loose"))

    for number in range(1, 9):
        transfer(bank, number)
        run_once(config, look)
        seen.append(total(config))
    assert set(seen) == {2 * ACCOUNTS * 100}
    assert set(loose) != set(seen)  # some looks were between the commits of the two mirrors
    # the last moment is that of the last round
    bank.ingest(config)
    scans = mirror_scans(open_catalog(config), config, published_query(config, "shop.money"))
    assert sorted(scans["shop.savings"].to_table().column("amount").to_pylist()) == sorted(
        amount for (amount,) in bank.sql("SELECT amount FROM savings")
    )


def test_mirrors_that_were_read_apart_are_published_as_they_were_together(bank: Any) -> None:
    config = bank.config("checking", "savings")
    bank.ingest(config)
    transfer(bank, 5)
    run_once(config, tables=["shop.checking"])
    assert total(config) == 2 * ACCOUNTS * 100
    assert total(config, "shop.loose") != 2 * ACCOUNTS * 100
    # rewriting files is no other moment
    assert compact_mirror(config, "shop.savings") is not None
    transfer(bank, 6)
    run_once(config, tables=["shop.savings"])
    assert total(config) == 2 * ACCOUNTS * 100
    bank.ingest(config)
    assert total(config) == total(config, "shop.loose") == 2 * ACCOUNTS * 100


@pytest.mark.slow
def test_any_time_shows_the_mirrors_at_one_commit(bank: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = bank.config("checking", "savings", "notes")
    bank.sql("INSERT INTO notes VALUES (1)")  # and no change after the load
    before = datetime.now(UTC)
    bank.ingest(config)
    names, times, project = ["shop.checking", "shop.savings", "shop.notes"], [datetime.now(UTC)], Project(config)
    for number in range(1, 10):
        transfer(bank, number)
        run_once(config, tables=names[number % 2 : 1 + number % 2] if number % 3 == 0 else None)
        times.append(datetime.now(UTC))
    assert compact_mirror(config, "shop.savings") is not None

    def amounts(scans: Any) -> int:
        return sum(sum(scans[name].to_table().column("amount").to_pylist()) for name in names[:2])

    assert {amounts(project.as_of(time, names)) for time in times} == {2 * ACCOUNTS * 100}
    assert len({amounts({name: project.scan(name).as_of(time) for name in names}) for time in times}) > 1
    seen = [sorted(project.as_of(time, names)[names[0]].to_table().column("amount").to_pylist()) for time in times]
    assert len({*map(tuple, seen)}) > 5
    sums = "select (select sum(amount) from checking) + (select sum(amount) from savings), (select count(*) from notes)"
    for time in times:
        assert project.duckdb(names, as_of=time).sql(sums).fetchall() == [(2 * ACCOUNTS * 100, 1)]
    with pytest.raises(SystemExit, match="0"):
        main(["sql", sums, "--as-of", times[3].isoformat(), "--format", "csv", "--config", str(config.path)])
    assert f"{2 * ACCOUNTS * 100},1" in capsys.readouterr().out
    with pytest.raises(SnapshotNotFoundError, match="had no snapshot"):
        project.as_of(before, names)["shop.checking"].count()


def expire(config: Config) -> None:
    least = RetentionConfig(keep_snapshots=1, keep_for=0.001)
    assert not [one.error for one in expire_all(open_catalog(config), config, overrides=least) if one.error]


def test_all_mirrors_show_one_commit_also_when_their_snapshots_have_expired(bank: Any) -> None:
    config = bank.config("checking", "savings", "notes")
    bank.sql("INSERT INTO notes VALUES (1)")  # and no change after the load
    bank.ingest(config)
    names = ["shop.checking", "shop.savings", "shop.notes"]

    def state(time: datetime) -> list[Any]:
        scans = Project(config).as_of(time, names)
        return [sorted(map(str, scans[name].to_table().to_pylist())) for name in names]

    seen = []
    for number in range(1, 8):
        transfer(bank, number)
        if number == 4:
            bank.sql("DELETE FROM checking WHERE id = 3; UPDATE savings SET id = 99 WHERE id = 4")
        if number == 6:
            bank.sql("BEGIN; TRUNCATE savings; INSERT INTO savings VALUES (1, 5); COMMIT")
        run_once(config, tables=names[number % 2 : 1 + number % 2] if number % 3 == 0 else None)
        time = datetime.now(UTC)
        seen.append((time, state(time)))
    assert len({str(rows) for _, rows in seen}) == 5  # two were read by one table alone
    expire(config)
    assert [rows for _, rows in seen] == [state(time) for time, _ in seen]


def test_a_time_within_a_transaction_or_a_load_is_an_error(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.settings = {"commit_rows": 5}
    config = bank.config("checking")
    bank.ingest(config)
    monkeypatch.setattr("nevermore.pipelines.sources.postgres.reader.MAX_MESSAGES", 4)
    bank.sql("UPDATE checking SET amount = 7 WHERE id = 1", "UPDATE checking SET amount = amount + 1")
    bank.ingest(config)
    monkeypatch.setattr("nevermore.pipelines.sources.postgres.load.chunk_rows", lambda *_: 3)
    bank.sql("DELETE FROM checking WHERE id > 18")
    resync_from_source(open_catalog(config), config, "shop.checking")
    bank.sql("INSERT INTO checking VALUES (99, 1)")
    bank.ingest(config)
    expire(config)
    log = ChangeLog(open_catalog(config), change_log_name("shop.checking"))
    logged = log.scan().to_table().sort_by("ordinal")
    times = sorted(set(logged["ingested_at"].to_pylist()))
    assert len(times) > 5
    states, refused = set(), []
    for time in times[1:]:
        try:
            rows = Project(config).as_of(time, ["shop.checking"])["shop.checking"].to_table()
        except SourceError as error:
            refused.append(str(error))
        else:
            states.add((rows.num_rows, pc.sum(rows["amount"]).as_py()))
    total = ACCOUNTS * 100
    assert states <= {(20, total), (20, total - 93), (20, total - 73), (18, total - 273 - 2), (18, total - 73 - 202)}
    assert {count for count, _ in states} == {20, 18}
    for what in ("load of", "/"):
        assert any(
            what in one and one.endswith("was being read then: ask for a time before or after that") for one in refused
        )


def test_a_time_without_a_common_commit_is_an_error(bank: Any) -> None:
    config = bank.config("checking", "savings")
    run_once(config, tables=["shop.checking"])
    run_once(config, tables=["shop.savings"])
    time = datetime.now(UTC)
    transfer(bank, 1)
    bank.ingest(config)
    names = ["shop.checking", "shop.savings"]
    with pytest.raises(SourceError, match="not known which of their changes are of one commit at that time"):
        Project(config).as_of(time, names)
    assert Project(config).as_of(time, names[:1])["shop.checking"].count() == ACCOUNTS


def test_a_time_of_which_the_moments_are_gone_is_an_error(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nevermore.pipelines.mirrors.moments.RECENT_TABLES", 1)  # keeps four
    config, names, amounts = bank.config("checking", "savings", "notes"), ["shop.checking", "shop.notes"], []
    bank.sql("INSERT INTO notes VALUES (1)")  # and no change after the load
    for number in range(9):
        transfer(bank, number)
        bank.ingest(config)
        amounts.append((datetime.now(UTC), bank.sql("SELECT sum(amount) FROM checking")[0][0]))
    for number, (time, amount) in enumerate(amounts):
        if number >= 5:
            rows = Project(config).as_of(time, names)["shop.checking"].to_table()
            assert sum(rows.column("amount").to_pylist()) == amount
        else:
            with pytest.raises(SourceError, match="ask for a later time, or for each table alone"):
                Project(config).as_of(time, names)


def test_a_failing_mirror_holds_back_only_what_reads_it(bank: Any) -> None:
    bank.top["published"]["shop.two"] = {
        "sql": "select c.amount, n.id from shop.checking c cross join shop.notes n",
    }
    bank.sql("INSERT INTO notes VALUES (1)")
    config = bank.config("checking", "savings", "notes")
    bank.ingest(config)
    bank.sql("ALTER TABLE savings ALTER COLUMN amount TYPE text USING 'x' || amount")
    bank.sql("UPDATE savings SET amount = 'broken' WHERE id = 1", "UPDATE checking SET amount = 7 WHERE id = 1")
    bank.sql("INSERT INTO notes VALUES (2)")
    failed = [table.table for table in run_once(config).tables if table.error is not None]
    assert failed == ["shop.savings"]
    assert total(config) == 2 * ACCOUNTS * 100
    scans = mirror_scans(open_catalog(config), config, published_query(config, "shop.two"))
    assert 7 in scans["shop.checking"].to_table().column("amount").to_pylist()
    assert sorted(scans["shop.notes"].to_table().column("id").to_pylist()) == [1, 2]


def test_without_a_moment_nothing_is_published(bank: Any) -> None:
    config = bank.config("checking", "savings")
    run_once(config, tables=["shop.checking"])
    run_once(config, tables=["shop.savings"])
    with pytest.raises(PublishError, match="no commit of which all of them have a snapshot"):
        total(config)
    bank.ingest(config)
    assert total(config) == 2 * ACCOUNTS * 100
    logs = [change_log_name(name) for name in config.tables]
    assert [len(m) for m in moments_of(open_catalog(config), logs)] == [2]


@pytest.mark.slow
def test_mirrors_that_follow_their_logs_later_are_published_at_a_moment_of_both(bank: Any) -> None:
    config = bank.config("checking", "savings")
    bank.ingest(config)
    for number in range(1, 7):
        transfer(bank, number)
        run_once(config, log_only=True)
        apply_logs(config, tables=["shop.checking"])
        assert total(config) == 2 * ACCOUNTS * 100
        apply_logs(config, tables=["shop.savings"])
        assert total(config) == total(config, "shop.loose") == 2 * ACCOUNTS * 100
    # another round between the two
    transfer(bank, 70)
    run_once(config, log_only=True)
    apply_logs(config, tables=["shop.checking"])
    transfer(bank, 80)
    run_once(config, log_only=True)
    apply_logs(config, tables=["shop.savings"])
    assert total(config) == 2 * ACCOUNTS * 100
    assert total(config, "shop.loose") != 2 * ACCOUNTS * 100


def test_a_load_does_not_keep_the_other_mirrors_from_a_moment(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = bank.config("checking", "savings", "notes")
    bank.ingest(config)
    bank.sql("ALTER TABLE notes ADD COLUMN n int DEFAULT 5")
    transfer_and_kill(bank, config, monkeypatch, PostgresReader, "load")
    bank.ingest(config)
    assert len(moments_of(open_catalog(config), [change_log_name(name) for name in config.tables])[-1]) == 3


def transfer_and_kill(bank: Any, config: Config, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str) -> None:
    """Ingest transfers with runs that end at a step; each time, the mirrors show what the database has."""
    for number in range(1, 4):
        transfer(bank, number)
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, killed)
            with pytest.raises(KeyboardInterrupt):
                run_once(config)
        assert changes_since(bank, config) == 0
        assert total(config) == 2 * ACCOUNTS * 100


def killed(*_: object) -> Any:
    raise KeyboardInterrupt


def changes_since(bank: Any, config: Config) -> int:
    """How many amounts of the tables a publication does not read yet."""
    scans = mirror_scans(open_catalog(config), config, published_query(config, "shop.money"))
    missing = 0
    for name, scan in scans.items():
        amounts = Counter(amount for (amount,) in bank.sql(f"SELECT amount FROM {name.removeprefix('shop.')}"))
        missing += (amounts - Counter(scan.to_table().column("amount").to_pylist())).total()
    return missing


def test_a_stream_that_breaks_leaves_the_mirrors_at_one_moment(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = bank.config("checking", "savings")
    bank.ingest(config)
    monkeypatch.setattr("nevermore.pipelines.sources.postgres.reader.MAX_MESSAGES", 8)
    for number in range(1, 11):
        transfer(bank, number)
    receive = PostgresReader._messages

    def broken(*arguments: Any) -> Any:
        for count, message in enumerate(receive(*arguments)):
            if count == 25:
                raise SourceError("the connection broke")
            yield message

    with monkeypatch.context() as patch:
        patch.setattr(PostgresReader, "_messages", broken)
        assert all("broke" in str(table.error) for table in run_once(config).tables)
    assert total(config) == 2 * ACCOUNTS * 100
    assert 0 < changes_since(bank, config) < 20
    moments = moments_of(open_catalog(config), [change_log_name(name) for name in config.tables])
    assert len({tuple(moment.values()) for moment in moments}) == 2


def test_a_table_that_is_committed_takes_the_others_along(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.settings = {"commit_rows": 5}
    config = bank.config("checking", "savings")
    bank.ingest(config)
    monkeypatch.setattr("nevermore.pipelines.sources.postgres.reader.MAX_MESSAGES", 8)
    for number in range(1, 31):
        transfer(bank, number)
    bank.sql("UPDATE savings SET amount = amount WHERE id < 4")
    run_once(config)
    moments = moments_of(open_catalog(config), [change_log_name(name) for name in config.tables])
    assert len(moments) >= 4
    catalog = open_catalog(config)
    mirrors = {name: catalog.load_table(name) for name in config.tables}
    for moment in moments:
        pinned = snapshots_at([moment], mirrors)
        assert pinned is not None
        scans = [open_table(mirrors[n].metadata_location).scan().as_of_snapshot(s) for n, s in pinned.items()]
        assert sum(sum(scan.to_table().column("amount").to_pylist()) for scan in scans) == 2 * ACCOUNTS * 100


def test_a_moment_that_a_killed_run_has_not_recorded_is_seen_in_the_logs(
    bank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = bank.config("checking", "savings")
    bank.ingest(config)
    transfer(bank, 3)
    bank.ingest(config)
    transfer_and_kill(bank, config, monkeypatch, feed_run, "record_moment")
    transfer(bank, 9)
    run_once(config, tables=["shop.checking"])
    assert total(config) == 2 * ACCOUNTS * 100
    assert changes_since(bank, config) == 2
