"""MERGE, UPDATE and DELETE of Spark on mirrors, in turn with our ingest, conversion, compaction and upgrade: no row is lost or returns.

Java works on the mirrors themselves, through the same catalog. After each step the rows are those of a model, and the engine and
the reference read them; Java reads them before and after what we do.
"""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nevermore import scan_core
from nevermore.checks.damage import verify_table
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import Config, load
from nevermore.pipelines.config.tables import RetentionConfig
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.commit import upgrade
from nevermore.pipelines.iceberg.conversion import convert
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.pipelines.maintain.compact import CompactSettings, Order, compact
from nevermore.pipelines.maintain.manifest_order import arrange_manifests
from nevermore.pipelines.maintain.orphans import orphans_of_all
from nevermore.pipelines.maintain.retention import expire_all
from tests.pipelines.project import event

JAVA_PYTHON = os.environ.get("NEVERMORE_INTEROP_PYTHON")
pytestmark = [
    pytest.mark.skipif(JAVA_PYTHON is None, reason="make interop sets up the second environment"),
    pytest.mark.slow,
]
DRIVER = Path(__file__).with_name("java_statements.py")
KEYS = 40
REGIONS = ["north", "south", None]
DELETES: dict[str, dict[str, Any]] = {
    "equality-2": {"format_version": 2, "deletes": "equality"},
    "equality-3": {"format_version": 3, "deletes": "equality"},
    "converted-2": {"format_version": 2, "deletes": "converted"},
    "converted-3": {"format_version": 3, "deletes": "converted"},
    "vectors-3": {"format_version": 3, "deletes": "vectors"},
}
PARTITIONED: dict[str, list[str]] = {"whole": [], "region": ["region"], "bucket": ["bucket(3, n)", "region"]}
WAYS = ("merge-on-read", "copy-on-write")
"""How Spark writes changes: position deletes or vectors, or data files anew."""
CASES = [
    (mode, partitioned, way)
    for mode, partitioned, way in product(DELETES, PARTITIONED, WAYS)
    if partitioned != "bucket" or way == WAYS[0]
]
Row = dict[str, Any]


class Spark:
    """Spark in a process of its own, with Iceberg Java on the catalog of a project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = (folder / "java.log").open("w+", encoding="utf-8")
        command = [str(JAVA_PYTHON), "-W", "ignore", str(DRIVER), str(folder / "catalog.db"), str(folder / "lake")]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )

    def run(self, sql: str) -> None:
        """Execute a statement."""
        self._ask({"sql": sql})

    def rows(self, sql: str) -> list[Row]:
        """The rows of a query."""
        output = self.folder / "rows.parquet"
        self._ask({"sql": sql, "output": str(output)})
        return list(pq.read_table(output).to_pylist())

    def close(self) -> None:
        """End the process."""
        self.process.communicate(timeout=120)
        self.log.close()

    def _ask(self, question: dict[str, str]) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, (self.folder / "java.log").read_text(encoding="utf-8")[-4000:]
        error = json.loads(answer)["error"]
        assert error is None, f"{question['sql']}: {error}"


class Proof:
    """A mirror, and the rows that it must have."""

    def __init__(self, spark: Spark, name: str, options: dict[str, Any], seed: int) -> None:
        self.folder = spark.folder
        self.spark = spark
        self.name = name
        self.options = options
        self.draw = random.Random(seed)
        self.config: Config
        self.catalog: Any
        self.configure()
        self.rows: dict[int, Row] = {}
        self.source: dict[int, Row] = {}
        self.landed = 0
        self.steps: list[str] = []

    def configure(self) -> None:
        source = {"type": "files", "path": f"landing/{self.name}/*.jsonl", "format": "debezium-json"}
        types = {"n": "int", "region": "string", "note": "string"}
        folder = self.folder
        document = {
            "catalog": {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder / "lake")},
            "tables": {self.name: {"source": source, "key": ["id"], "types": types, **self.options}},
        }
        path = folder / f"{self.name}.yaml"
        path.write_text(json.dumps(document), encoding="utf-8")
        self.config = load(path)
        self.catalog = open_catalog(self.config)

    @property
    def table(self) -> Any:
        return find_table(self.catalog, self.name)

    @property
    def sql_name(self) -> str:
        return f"nevermore.{self.name}"

    def row(self, key: int) -> Row:
        draw = self.draw
        return {
            "id": key,
            "n": draw.randrange(9),
            "region": draw.choice(REGIONS),
            "note": draw.choice([None, f"v{len(self.steps)}"]),
        }

    def some_keys(self, count: int) -> list[int]:
        return sorted(self.draw.sample(range(KEYS), count))

    # What the source does, whose before-images know nothing of what Spark did.

    def ingest(self, count: int = 16) -> None:
        """Upserts, deletes, changes of keys and re-inserts; the source wins for each key that it names."""
        lines = []
        for key in self.some_keys(count):
            old = self.source.get(key)
            match self.draw.choice(["put", "put", "delete", "move"]):
                case "delete" if old is not None:
                    lines.append(event("d", self.source.pop(key)))
                    self.rows.pop(key, None)
                case "move" if old is not None and (target := self.draw.randrange(KEYS)) not in self.source:
                    row = self.row(target)
                    lines.append(event("u", row, before=self.source.pop(key)))
                    self.rows.pop(key, None)
                    self.source[target] = self.rows[target] = row
                case _:
                    row = self.row(key)
                    lines.append(event("c" if old is None else "u", row, before=old))
                    self.source[key] = self.rows[key] = row
        landing = self.folder / "landing" / self.name
        landing.mkdir(parents=True, exist_ok=True)
        named = [line.replace('"ts_ms": 1', f'"ts_ms": {self.landed + 2}') for line in lines]
        (landing / f"{self.landed:04}.jsonl").write_text("".join(f"{line}\n" for line in named), encoding="utf-8")
        self.landed += 1
        report = run_once(self.config, tables=[self.name])
        assert [table.error for table in report.tables] == [None]

    # What Spark does.

    def java_delete(self) -> None:
        remainder = self.draw.randrange(5)
        self.spark.run(f"DELETE FROM {self.sql_name} WHERE id % 5 = {remainder}")
        self.rows = {key: row for key, row in self.rows.items() if key % 5 != remainder}

    def java_delete_region(self) -> None:
        """Of a whole partition, in tables that have it as one."""
        self.spark.run(f"DELETE FROM {self.sql_name} WHERE region = 'south'")
        self.rows = {key: row for key, row in self.rows.items() if row["region"] != "south"}

    def java_update(self) -> None:
        """Rows change, and move to another partition."""
        remainder, region, note = self.draw.randrange(4), self.draw.choice(REGIONS), f"j{len(self.steps)}"
        assigned = "NULL" if region is None else f"'{region}'"
        self.spark.run(f"UPDATE {self.sql_name} SET region = {assigned}, note = '{note}' WHERE id % 4 = {remainder}")
        for key, row in self.rows.items():
            if key % 4 == remainder:
                self.rows[key] = row | {"region": region, "note": note}

    def java_merge(self) -> None:
        """Deletes, updates and inserts in one statement."""
        rows = [self.row(key) for key in self.some_keys(12)]
        values = ", ".join(f"({', '.join(map(_literal, row.values()))})" for row in rows)
        self.spark.run(
            f"MERGE INTO {self.sql_name} t USING (SELECT * FROM VALUES {values} AS s(id, n, region, note)) s ON t.id = s.id "
            "WHEN MATCHED AND s.n < 3 THEN DELETE WHEN MATCHED THEN UPDATE SET t.n = s.n, t.region = s.region, t.note = s.note "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        for row in rows:
            if row["id"] in self.rows and row["n"] < 3:
                del self.rows[row["id"]]
            else:
                self.rows[row["id"]] = row

    # What operators do.

    def convert(self) -> None:
        convert(self.table)

    def compact(self) -> None:
        order = self.draw.choice([Order(), Order(("note", "id"))])
        compact(self.table, CompactSettings(rewrite_all=self.draw.random() < 0.6, order=order, key=("id",)))

    def arrange(self) -> None:
        arrange_manifests(self.table)

    def expire(self) -> None:
        kept = RetentionConfig(keep_snapshots=2, keep_for=0.001, orphan_age=0.001)
        for done in (
            *expire_all(self.catalog, self.config, [self.name], overrides=kept),
            *orphans_of_all(self.catalog, self.config, [self.name], overrides=kept, delete=True),
        ):
            assert done.error is None

    def raise_version(self) -> None:
        if self.table.format_version < 3:
            upgrade(self.table, 3)
            self.options["format_version"] = 3
            self.configure()

    # What has to be true.

    def step(self, act: Callable[["Proof"], None]) -> None:
        """Do something, and look at the rows."""
        self.steps.append(act.__name__)
        before = self.table and self.table.metadata.current_snapshot_id
        act(self)
        table = self.table
        opened = scan_core.open_table(table)
        wanted = sorted(map(_text, self.rows.values()))
        assert sorted(map(_text, opened.scan().to_table().to_pylist())) == wanted
        assert sorted(map(_text, live_rows(opened.metadata_path).to_pylist())) == wanted
        if act not in JAVAS:
            assert sorted(map(_text, self.spark.rows(f"SELECT * FROM {self.sql_name}"))) == wanted
        assert not (found := verify_table(opened, all_snapshots=True).damage), found
        is_ours = act in {Proof.convert, Proof.compact, Proof.arrange}
        if is_ours and before is not None and before in opened.metadata.snapshots:
            assert opened.scan().changes(before).count() == 0


def _literal(value: Any) -> str:
    return "NULL" if value is None else repr(value)


def _text(row: Row) -> str:
    return json.dumps({name: row[name] for name in ("id", "n", "region", "note")})


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    spark = Spark(tmp_path_factory.mktemp("shared"))
    yield spark
    spark.close()


OURS = [Proof.ingest, Proof.ingest, Proof.convert, Proof.compact, Proof.arrange, Proof.expire, Proof.raise_version]
JAVAS = [Proof.java_delete, Proof.java_delete_region, Proof.java_update, Proof.java_merge]


@pytest.mark.parametrize(("mode", "partitioned", "way"), CASES)
def test_what_java_changes_in_a_mirror_stays_right_through_all_that_we_do(
    mode: str, partitioned: str, way: str, spark: Spark
) -> None:
    seed = CASES.index((mode, partitioned, way))
    options = {"partition_by": PARTITIONED[partitioned], **DELETES[mode]}
    proof = Proof(spark, f"proof.{mode}_{partitioned}_{way}".replace("-", "_"), options, seed)
    try:
        proof.step(Proof.ingest)
        properties = ", ".join(f"'write.{kind}.mode'='{way}'" for kind in ("delete", "update", "merge"))
        spark.run(f"ALTER TABLE {proof.sql_name} SET TBLPROPERTIES ({properties})")
        proof.step(Proof.ingest)
        for act in proof.draw.sample(JAVAS, len(JAVAS)):
            proof.step(act)
            proof.step(proof.draw.choice(OURS))
        for act in (Proof.ingest, Proof.convert, Proof.java_merge, Proof.convert, Proof.compact):
            proof.step(act)
    except BaseException as error:
        error.add_note(f"{proof.name}: {', '.join(proof.steps)}")
        raise


def test_java_shows_the_comments_of_the_config(spark: Spark) -> None:
    options = {"description": "What is sold.", "column_descriptions": {"n": "A number."}}
    made = Proof(spark, "shop.described", options, 1)
    made.ingest()
    columns = {row["col_name"]: row["comment"] for row in spark.rows(f"DESCRIBE TABLE {made.sql_name}")}
    assert columns["n"] == "A number."
    for name in (made.sql_name, "nevermore.change_log.shop_described"):
        shown = spark.rows(f"DESCRIBE TABLE EXTENDED {name}")
        assert any("What is sold." in str(value) for row in shown for value in row.values())
