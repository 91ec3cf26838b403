"""Ingests killed again and again, in processes of their own: the mirror ends as if nothing had happened (rule 29)."""

import json
import multiprocessing
import os
import random
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from nevermore.checks.reference.expected_rows import live_rows
from nevermore.pipelines.config.project import load
from nevermore.pipelines.iceberg import storage
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.ingest.feed_run import run_once

CONFIG = """
tables:
  shop.products:
    source: {type: files, path: "landing/*.jsonl", format: debezium-json, options: {batch_rows: 7}}
    key: [id]
    commit_rows: 5
"""
FORKS = multiprocessing.get_context("forkserver")
"""Processes that begin with everything imported and compiled, so that kills meet the ingest and nothing else."""
FORKS.set_forkserver_preload(["tests.pipelines.warm_ingest"])
POINTS = get_args(storage.CrashPoint)
BROKEN = "{ no json"
MAX_CPU_SECONDS = 0.3
"""An ingest here takes 0.1 to 0.25."""


def ingest(config: str, engine: str, point: str | None = None, cpu_seconds: float = 0) -> None:
    """One ingest, in a process of its own, which the system ends at a point, or after a while wherever it is then."""
    if engine == "spark":
        import_module("tests.support.spark_ingest")
    if point is not None:
        os.environ[storage.VARIABLE] = point
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    sys.exit(run_once(load(config)).exit_code)


class Shop:
    """A source database that lands files, and what its table holds."""

    def __init__(self, folder: Path, seed: int, engine: str = "local") -> None:
        self.folder = folder
        self.engine = engine
        self.config = folder / "nevermore.yaml"
        self.random = random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}
        self.num_changes = self.num_broken = self.num_files = 0
        (folder / "landing").mkdir()
        self.config.write_text(CONFIG)

    def land(self, num_events: int) -> None:
        """A file with inserts, updates, deletes, key changes, truncates and broken lines."""
        lines = [self._event() for _ in range(num_events)]
        path = self.folder / "landing" / f"{self.num_files:04d}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        self.num_files += 1

    def _event(self) -> str:
        draw = self.random.random()
        if draw < 0.03:
            self.num_broken += 1
            return BROKEN
        self.num_changes += 1
        source = {"db": "shop", "table": "products"}
        if draw < 0.05:
            self.rows.clear()
            return json.dumps({"op": "t", "source": source, "ts_ms": 1})
        key = self.random.randrange(12)
        old = self.rows.pop(key, None)
        if old is not None and draw < 0.3:
            return json.dumps({"op": "d", "before": old, "after": None, "source": source, "ts_ms": 1})
        free = [k for k in range(12) if k not in self.rows]
        new = {"id": self.random.choice(free) if old is not None and draw < 0.45 else key, "n": self.num_changes}
        self.rows[new["id"]] = new
        op = "c" if old is None else "u"
        return json.dumps({"op": op, "before": old, "after": new, "source": source, "ts_ms": 1})

    def run_and_die(self, point: str, times: int) -> int:
        """The exit code of an ingest that is killed when it reaches a point for the n-th time, if it does."""
        process = FORKS.Process(target=ingest, args=(str(self.config), self.engine, f"{point}:{times}"))
        process.start()
        process.join(600)
        assert process.exitcode in {0, 3, storage.EXIT_CODE}
        return process.exitcode

    def run_and_be_killed(self, cpu_seconds: float) -> None:
        """An ingest that ends without a word once it has used so much CPU time, which other load does not change."""
        process = FORKS.Process(target=ingest, args=(str(self.config), self.engine, None, cpu_seconds))
        process.start()
        process.join(600)
        assert process.exitcode in {0, 3, -signal.SIGPROF}

    def finish(self) -> None:
        """One run that nobody disturbs, then nothing is left to do."""
        assert run_once(load(self.config)).exit_code in {0, 3}
        again = run_once(load(self.config))
        assert again.found_nothing_new
        assert again.exit_code == 0

    def table(self, name: str, order: str) -> list[dict[str, Any]]:
        table = find_table(open_catalog(load(self.config)), name)
        if table is None:
            return []
        return list(live_rows(table.metadata_location.removeprefix("file://")).sort_by(order).to_pylist())

    def assert_exactly_once(self) -> None:
        assert self.table("shop.products", "id") == sorted(self.rows.values(), key=lambda r: r["id"])
        log = self.table("change_log.shop_products", "ordinal")
        assert [r["ordinal"] for r in log] == list(range(1, self.num_changes + 1))
        places = [(r["source_file"], r["source_offset"]) for r in log]
        assert places == sorted(set(places))
        assert len(self.table("quarantine.shop_products", "source_offset")) == self.num_broken


@pytest.mark.each(4)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
def test_rule_29_ingest_killed_at_each_point_ends_as_if_nothing_had_happened(
    point: str, tmp_path: Path, engine: str
) -> None:
    shop = Shop(tmp_path, POINTS.index(point), engine)
    shop.land(40)
    # tasks of Spark read all that is new as one batch, which is acknowledged once
    times = 1 if (engine, point) == ("spark", "before-acknowledgement") else 2
    assert shop.run_and_die(point, times) == storage.EXIT_CODE
    shop.land(10)
    shop.finish()
    shop.assert_exactly_once()


@pytest.mark.timeout(600)
def test_rule_29_ingest_killed_in_every_run_gets_on_nevertheless(tmp_path: Path, engine: str) -> None:
    shop = Shop(tmp_path, 7, engine)
    for times, point in enumerate(("after-commit", "after-manifests", "before-acknowledgement"), start=2):
        shop.land(25)
        shop.run_and_die(point, times)
    shop.finish()
    shop.assert_exactly_once()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["local"], indirect=True)
@pytest.mark.parametrize("block", range(20))
def test_rule_29_random_kills_never_lose_or_double_a_change(block: int, tmp_path: Path) -> None:
    """Ten scenarios a block, two hundred in all. What starts Spark would spend its time on that."""
    for seed in range(10 * block, 10 * block + 10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        shop = Shop(folder, seed)
        for _ in range(2):
            shop.land(shop.random.randrange(5, 40))
            if shop.random.random() < 0.5:
                shop.run_and_die(shop.random.choice(POINTS), shop.random.randrange(1, 12))
            else:
                shop.run_and_be_killed(shop.random.uniform(0.001, MAX_CPU_SECONDS))
        shop.finish()
        shop.assert_exactly_once()
