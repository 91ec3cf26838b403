"""Writers change a database while an ingester and its connections are killed: `python -m tests.pipelines.postgres.soak`.

Each writer owns a range of keys, and a row that counts its transactions. It remembers a digest of its rows after each of them.
So of every snapshot of a mirror one can tell, for each writer, after which transaction it was, and whether it has exactly the
rows of that moment. At the end the mirrors equal the tables row by row.

Money moves between two more tables in transactions, so that what a published table reads of both, at any time, sums to zero.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg import positions
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current, storage_of
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.compact import compact_mirror
from nevermore.pipelines.publish.mirror_reads import mirror_scans
from nevermore.pipelines.publish.query import published_query
from nevermore.scan_core import open_table
from tests.support.postgres_server import PostgresServer, postgres, programs_or_skip
from tests.support.soaking import run_as_command

WRITERS = 3
SPAN = 1_000_000
TABLES = {
    "accounts": "id bigint PRIMARY KEY, amount numeric(12,2), body text",
    "docs": "id text PRIMARY KEY, amount numeric(12,2), body text",
}
LEDGERS = ("debits", "credits")
LARGE = 20_000
FIRST = 20_000
"""Rows of a writer before anything is read: several chunks."""
Row = tuple[str, str | None]


def hashed(key: int, row: Row) -> int:
    return int.from_bytes(hashlib.blake2b(repr((key, row)).encode(), digest_size=16).digest(), "big")


class State(dict[int, Row]):
    """Rows of a writer by key, and the sum of their hashes, which identifies them."""

    def __init__(self, rows: dict[int, Row]) -> None:
        super().__init__(rows)
        self.total = rows.total if isinstance(rows, State) else sum(hashed(k, r) for k, r in rows.items()) % 2**128

    def __setitem__(self, key: int, row: Row) -> None:
        if key in self:
            self.total -= hashed(key, self[key])
        self.total = (self.total + hashed(key, row)) % 2**128
        super().__setitem__(key, row)

    def __delitem__(self, key: int) -> None:
        self.total = (self.total - hashed(key, self[key])) % 2**128
        super().__delitem__(key)


class Writer(threading.Thread):
    """Changes the rows of its own range of one table."""

    def __init__(
        self, server: PostgresServer, table: str, number: int, seed: int, stop: threading.Event, gate: threading.RLock
    ) -> None:
        super().__init__(daemon=True)
        self.table = table
        self.number = number
        self.rows = State({})
        self.states: list[int] = []
        self.failure: BaseException | None = None
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._connection = server.connect("soak")
        self._connection.autocommit = False
        self._stop_event = stop
        self._gate = gate

    def key(self, number: int) -> str:
        return f"'{number}'" if self.table == "docs" else str(number)

    @property
    def marker(self) -> int:
        return -1 - self.number

    def new_key(self) -> int:
        return self.number * SPAN + self._random.randrange(SPAN)

    def run(self) -> None:
        try:
            self.commit([], State(self.rows))
            while not self._stop_event.is_set():
                with self._gate:
                    self.step()
                time.sleep(self._random.random() * 0.02)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            self.failure = error
        finally:
            self._connection.close()

    def commit(self, statements: list[str], rows: State) -> None:
        """Run a transaction that leads to these rows."""
        number = len(self.states)
        marker = self.key(self.marker)
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            cursor.execute(
                f"INSERT INTO {self.table} (id, amount) VALUES ({marker}, {number}) ON CONFLICT (id) DO UPDATE SET amount = {number}"
            )
        # The state must be known before others can see it.
        self.states.append(rows.total)
        self.rows = rows
        self._connection.commit()

    def step(self) -> None:
        kind = self._random.choices(("mixed", "large", "rollback", "move", "toast", "delete"), (50, 1, 8, 15, 15, 10))[
            0
        ]
        self.counts[kind] += 1
        getattr(self, kind)()

    def some(self, count: int) -> list[int]:
        return self._random.sample(sorted(self.rows), min(count, len(self.rows)))

    def upsert(self, key: int, amount: str, body: str | None) -> str:
        text = "NULL" if body is None else f"'{body}'"
        return (
            f"INSERT INTO {self.table} (id, amount, body) VALUES ({self.key(key)}, {amount}, {text}) "
            "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, body = excluded.body"
        )

    def mixed(self) -> None:
        rows, statements = State(self.rows), list[str]()
        for _ in range(self._random.randrange(1, 12)):
            key = self.new_key()
            amount = f"{self._random.randrange(100_000) / 100:.2f}"
            body = None if self._random.random() < 0.2 else f"b{self._random.randrange(10**6)}"
            statements.append(self.upsert(key, amount, body))
            rows[key] = (amount, body)
        for key in self.some(self._random.randrange(8)):
            amount = f"{self._random.randrange(100_000) / 100:.2f}"
            statements.append(f"UPDATE {self.table} SET amount = {amount} WHERE id = {self.key(key)}")
            rows[key] = (amount, rows[key][1])
        self.commit(statements, rows)

    def toast(self) -> None:
        """Long values, which later updates do not send."""
        rows, statements = State(self.rows), list[str]()
        for key in self.some(3):
            body = hashlib.sha512(str(self._random.random()).encode()).hexdigest() * 40
            statements.append(f"UPDATE {self.table} SET body = '{body}' WHERE id = {self.key(key)}")
            rows[key] = (rows[key][0], body)
        self.commit(statements, rows)

    def delete(self) -> None:
        rows, statements = State(self.rows), list[str]()
        for key in self.some(self._random.randrange(1, 8)):
            statements.append(f"DELETE FROM {self.table} WHERE id = {self.key(key)}")
            del rows[key]
        self.commit(statements, rows)

    def move(self) -> None:
        rows, statements = State(self.rows), list[str]()
        for key in self.some(3):
            new = self.new_key()
            if new in rows or key not in rows:
                continue
            statements.append(f"UPDATE {self.table} SET id = {self.key(new)} WHERE id = {self.key(key)}")
            rows[new] = rows[key]
            del rows[key]
        self.commit(statements, rows)

    def rollback(self) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {self.table} WHERE id = {self.key(self.marker)}")
            cursor.execute(self.upsert(self.new_key(), "0.01", "rolled back"))
        self._connection.rollback()
        rows, statements = State(self.rows), ["SAVEPOINT a", self.upsert(self.new_key(), "0.01", "x"), "ROLLBACK TO a"]
        self.commit(statements, rows)

    def large(self) -> None:
        rows, first = State(self.rows), self.number * SPAN
        count = self._random.randrange(LARGE)
        key = "i::text" if self.table == "docs" else "i"
        statement = (
            f"INSERT INTO {self.table} (id, amount, body) SELECT {key}, 1.25, 'large' FROM generate_series({first}, {first + count - 1}) i "
            "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, body = excluded.body"
        )
        for i in range(count):
            rows[first + i] = ("1.25", "large")
        for k in [k for k in rows if k % 3 == 0 and k < first + count]:
            del rows[k]
        numbers = f"id::bigint >= {first} AND id::bigint < {first + count} AND id::bigint % 3 = 0"
        self.commit(
            [statement, f"DELETE FROM {self.table} WHERE {numbers}"],
            rows,
        )


class Mover(threading.Thread):
    """Moves money from one table to another, so that all amounts of both sum to zero after each transaction."""

    def __init__(self, server: PostgresServer, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.failure: BaseException | None = None
        self._random = random.Random(seed)
        self._connection = server.connect("soak")
        self._connection.autocommit = False
        self._stop_event = stop

    def run(self) -> None:
        try:
            while not self._stop_event.is_set():
                with self._connection.cursor() as cursor:
                    for _ in range(self._random.choice((1, 1, 3, 500))):
                        amount = self._random.randrange(1, 1000)
                        for table, value in zip(LEDGERS, (-amount, amount), strict=True):
                            key = self._random.randrange(1000)
                            cursor.execute(
                                f"INSERT INTO {table} VALUES ({key}, {value}) ON CONFLICT (id) DO UPDATE SET "
                                f"amount = {table}.amount + excluded.amount"
                            )
                if self._random.random() < 0.1:
                    self._connection.rollback()
                else:
                    self._connection.commit()
                self.count += 1
                time.sleep(self._random.random() * 0.02)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            self.failure = error
        finally:
            self._connection.close()


class Soak:
    """A run: a database, its writers, an ingester that is killed again and again."""

    def __init__(self, server: PostgresServer, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.random = random.Random(seed)
        self.stop = threading.Event()
        self.gates = {table: threading.RLock() for table in TABLES}
        self.counts: Counter[str] = Counter()
        self.loaded: set[str] = set()
        self.moments: set[tuple[int | None, ...]] = set()
        """Snapshots of the ledgers that were read together."""
        admin = server.connect("postgres")
        admin.cursor().execute("CREATE DATABASE soak")
        admin.close()
        self.admin = server.connect("soak")
        for table, columns in TABLES.items():
            self.sql(f"CREATE TABLE {table} ({columns})", f"ALTER TABLE {table} ALTER COLUMN body SET STORAGE EXTERNAL")
        for table in LEDGERS:
            self.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, amount bigint NOT NULL)")
        self.sql("CREATE PUBLICATION pub FOR ALL TABLES")
        # large transactions are sent while they are in progress
        self.sql("ALTER DATABASE soak SET logical_decoding_work_mem = '64kB'")
        self.mover = Mover(server, seed, self.stop)
        self.writers = [
            Writer(server, table, number, seed * 100 + number, self.stop, self.gates[table])
            for table in TABLES
            for number in range(WRITERS)
        ]
        for writer in self.writers:
            writer.rows = State({writer.number * SPAN + i * 7: ("1.00", "first") for i in range(FIRST)})
            key = "i::text" if writer.table == "docs" else "i"
            self.sql(
                f"INSERT INTO {writer.table} SELECT {key}, 1.00, 'first' FROM (SELECT {writer.number * SPAN} + i * 7 AS i "
                f"FROM generate_series(0, {FIRST - 1}) i) s"
            )
            writer.commit([], writer.rows)
        self.config = self.write_config()

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.admin.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def write_config(self) -> Config:
        source = {
            "type": "postgres",
            "dsn": self.server.dsn("soak"),
            "slot": "soak",
            "publication": "pub",
            "chunk_bytes": "1MiB",
        }
        tables = {f"shop.{table}": {"source": source, "memory_limit_bytes": "64MiB"} for table in (*LEDGERS, *TABLES)}
        sql = "select d.amount, c.amount as other from shop.debits d cross join shop.credits c"
        document = {
            "tables": tables,
            "published": {"shop.money": {"sql": sql}},
            "maintenance": {"keep_snapshots": 100_000},
        }
        path = self.folder / "nevermore.yaml"
        path.write_text(yaml.safe_dump(document))
        return load(path)

    def truncate(self) -> None:
        """Empty a table between transactions of its writers, each of which then has only its marker."""
        table = self.random.choice(list(TABLES))
        with self.gates[table]:
            mine = [writer for writer in self.writers if writer.table == table]
            with self.server.connect("soak") as connection:
                connection.autocommit = False
                with connection.cursor() as cursor:
                    cursor.execute(f"TRUNCATE {table}")
                    for writer in mine:
                        cursor.execute(
                            f"INSERT INTO {table} (id, amount) VALUES ({writer.key(writer.marker)}, {len(writer.states)})"
                        )
                for writer in mine:
                    writer.rows = State({})
                    writer.states.append(0)
                connection.commit()
            connection.close()
        self.counts["truncates"] += 1

    def alter(self) -> None:
        table = self.random.choice(list(TABLES))
        name = f"extra{self.counts['columns']}"
        self.sql(f"ALTER TABLE {table} ADD COLUMN {name} int DEFAULT {self.counts['columns']}")
        if self.counts["columns"] % 2:
            self.sql(f"ALTER TABLE {table} DROP COLUMN {name}")
        self.counts["columns"] += 1

    def look(self) -> None:
        """What a published table reads of several mirrors now is a state of the database."""
        catalog = open_catalog(self.config)
        if not all(self.is_loaded(catalog, table) for table in LEDGERS):
            self.counts["looks before the first load"] += 1
            return
        try:
            scans = mirror_scans(catalog, self.config, published_query(self.config, "shop.money"))
        except PublishError:
            self.counts["looks without a moment"] += 1
            return
        amounts = {name: sum(scan.to_table().column("amount").to_pylist()) for name, scan in scans.items()}
        assert sum(amounts.values()) == 0, (amounts, {name: scan.snapshot for name, scan in scans.items()})
        self.counts["looks at several mirrors"] += 1
        current = {name: catalog.load_table(name).metadata.current_snapshot_id for name in scans}
        pinned = {name: scan.snapshot and scan.snapshot.snapshot_id for name, scan in scans.items()}
        self.counts["of these at older snapshots"] += current != pinned
        self.moments.add(tuple(pinned.values()))

    def is_loaded(self, catalog: Any, table: str) -> bool:
        """Whether the first load of a mirror was complete and followed by its changes at some time."""
        if table not in self.loaded and catalog.table_exists(f"change_log.shop_{table}"):
            log = catalog.load_table(f"change_log.shop_{table}")
            snapshot = log.current_snapshot()
            text = (
                None
                if snapshot is None
                else positions.position_in(positions.summary_properties(snapshot), storage_of(log))
            )
            if text is not None and "load" not in json.loads(text):
                self.loaded.add(table)
        return table in self.loaded

    def compact(self) -> None:
        table = self.random.choice((*TABLES, *LEDGERS))
        if (
            open_catalog(self.config).table_exists(f"shop.{table}")
            and compact_mirror(self.config, f"shop.{table}") is not None
        ):
            self.counts["compactions"] += 1

    def break_connections(self) -> None:
        self.counts["broken connections"] += self.sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'nevermore'"
        )[0][0]

    def disturb(self) -> None:
        for chance, step in (
            (0.3, self.look),
            (0.03, self.compact),
            (0.01, self.truncate),
            (0.01, self.alter),
            (0.05, self.break_connections),
        ):
            if self.random.random() < chance:
                step()

    def ingester(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from nevermore.pipelines.cli.main import main; main()",
                "run",
                "--config",
                str(self.config.path),
                "--interval",
                "0.2",
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "ingester.log").open("ab"),
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )

    def next_kill(self) -> Callable[[], bool]:
        """When the ingester is killed: at some time, or after some commits, however busy the machine is."""
        if self.random.random() < 0.3:
            at = time.monotonic() + self.random.uniform(0.5, 12)
            return lambda: time.monotonic() > at
        enough = self.commits() + self.random.randrange(1, 20)
        return lambda: self.commits() >= enough

    def commits(self) -> int:
        """Commits of all change logs and mirrors so far."""
        return sum(1 for _ in self.folder.rglob("*.metadata.json"))

    def run(self, seconds: float) -> dict[str, Any]:
        for writer in self.writers:
            writer.start()
        self.mover.start()
        ends = time.monotonic() + seconds
        process = self.ingester()
        try:
            is_due = self.next_kill()
            while time.monotonic() < ends:
                time.sleep(0.3)
                assert all(writer.failure is None for writer in self.writers), [w.failure for w in self.writers]
                assert self.mover.failure is None, self.mover.failure
                self.disturb()
                if process.poll() is not None:
                    self.counts["ingester ended by itself"] += 1
                    process = self.ingester()
                if is_due():
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    self.counts["kills"] += 1
                    process = self.ingester()
                    is_due = self.next_kill()
        finally:
            self.stop.set()
            for writer in self.writers:
                writer.join()
            self.mover.join()
            process.send_signal(signal.SIGTERM)
            process.wait(300)
        assert all(writer.failure is None for writer in self.writers), [w.failure for w in self.writers]
        return self.check()

    def check(self) -> dict[str, Any]:
        """Compare the mirrors with the tables, and each of their snapshots with the states of the writers."""
        for _ in range(5):
            report = run_once(self.config)
            errors = [t.error for t in report.tables if t.error]
            if not errors:
                break
        assert not errors, errors
        self.look()
        catalog = open_catalog(self.config)
        for table in LEDGERS:
            rows = open_current(catalog.load_table(f"shop.{table}")).scan().to_table().to_pylist()
            assert {(row["id"], row["amount"]) for row in rows} == set(self.sql(f"SELECT id, amount FROM {table}"))
        checked = 0
        for table in TABLES:
            assert not catalog.table_exists(f"quarantine.shop_{table}"), (
                open_current(catalog.load_table(f"quarantine.shop_{table}"))
                .scan()
                .select("reason")
                .to_table()
                .to_pylist()[:5]
            )
            mirror = catalog.load_table(f"shop.{table}")
            names = "id, amount, body"
            source = {tuple(map(str, row)) for row in self.sql(f"SELECT {names} FROM {table}")}
            rows = open_current(mirror).scan().select("id", "amount", "body").to_table().to_pylist()
            assert len(rows) == len(source)
            assert {tuple(str(v) for v in row.values()) for row in rows} == source
            checked += self.check_snapshots(catalog, table, mirror)
        writers = {f"{w.table}/{w.number}": len(w.states) for w in self.writers}
        transactions = sum(writers.values()) + self.mover.count
        assert checked, "no snapshot of a whole table was seen"
        streamed = self.sql("SELECT sum(stream_txns)::int FROM pg_stat_replication_slots")[0][0]
        looks = self.counts["looks at several mirrors"]
        assert looks >= self.counts["looks without a moment"], self.counts
        self.counts["moments looked at"] = len(self.moments)
        return {**self.counts, "transactions": transactions, "snapshots checked": checked, "sent while open": streamed}

    def check_snapshots(self, catalog: Any, table: str, mirror: Any) -> int:
        log = catalog.load_table(f"change_log.shop_{table}")
        storage = storage_of(log)
        whole: dict[int, bool] = {}
        for snapshot in log.metadata.snapshots:
            properties = positions.summary_properties(snapshot)
            position = positions.position_in(properties, storage)
            if position is not None and positions.LAST_ORDINAL in properties:
                whole[int(properties[positions.LAST_ORDINAL])] = "load" not in json.loads(position)
        checked = 0
        writers = {w.marker: w for w in self.writers if w.table == table}
        seen: set[int] = set()
        for snapshot in mirror.metadata.snapshots:
            ordinal = int(positions.summary_properties(snapshot).get(positions.LOG_ORDINAL, "0"))
            if not whole.get(ordinal, False) or ordinal in seen:
                continue
            seen.add(ordinal)
            rows = (
                open_table(mirror.metadata_location)
                .scan()
                .as_of_snapshot(snapshot.snapshot_id)
                .select("id", "amount", "body")
                .to_table()
            )
            states = {marker: dict[int, Row]() for marker in writers}
            marks: dict[int, int] = {}
            for key, amount, body in zip(*(rows.column(n).to_pylist() for n in ("id", "amount", "body")), strict=True):
                number = int(key)
                if number < 0:
                    marks[number] = int(amount)
                else:
                    states[-1 - number // SPAN][number] = (str(amount), body)
            for marker, mark in marks.items():
                writer = writers[marker]
                assert State(states[marker]).total == writer.states[mark], (table, snapshot.snapshot_id, marker, mark)
            checked += 1
        return checked


def soak(seconds: float, seed: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="nevermore-soak-"))  # stays after a failure, with the log of the ingester
    with postgres(programs_or_skip()) as server:
        result = Soak(server, folder, seed).run(seconds)
    shutil.rmtree(folder)
    return result


if __name__ == "__main__":
    run_as_command(soak, __doc__)
