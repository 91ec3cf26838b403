"""Batches that are more than memory takes: spilled, parted by key, one commit, the same rows."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.changes.change_run import ChangeRun, SpilledTables, parts_by_key
from nevermore.pipelines.errors import PipelineError
from nevermore.scan_core.io.private_files import remove_leftovers, spill_folder, user_folder
from tests.pipelines.change_batches import Change, Pipeline, batch_of, change
from tests.pipelines.project import Project, event, product
from tests.support.memory import PEAK_BYTES

COLUMNS = {"id": pa.int64(), "part": pa.string(), "text": pa.string(), "n": pa.int64()}
KEY = ("id", "part")
Row = dict[str, Any]


class Source:
    """A table that changes at random: updates that leave columns out, key changes in chains, deletes, truncates."""

    def __init__(self, seed: int, *, truncates: bool = True) -> None:
        self.random = random.Random(seed)
        self.rows: dict[tuple[Any, Any], Row] = {}
        self.truncates = truncates

    def change(self, number: int) -> Change:
        draw = self.random.random()
        if draw < 0.002 and self.truncates:
            self.rows.clear()
            return change("t")
        key = (self.random.randrange(60), self.random.choice([None, "a", "b"]))
        old = self.rows.get(key)
        if old is None:
            return change("c", self._put({"id": key[0], "part": key[1], "text": self._text(number), "n": number}))
        before = {"id": key[0], "part": key[1]}
        if draw < 0.15:
            del self.rows[key]
            return change("d", key=before)
        new = {**old, "n": number}
        if draw < 0.4:
            free = (self.random.randrange(60), self.random.choice([None, "a", "b"]))
            if free not in self.rows:
                del self.rows[key]
                new |= {"id": free[0], "part": free[1]}
        if draw < 0.7:
            self._put(new)
            return change("u", {**new, "text": None}, key=before, unchanged=["text"])
        return change("u", self._put({**new, "text": self._text(number)}), key=before)

    def changes(self, count: int) -> list[Change]:
        return [self.change(number) for number in range(count)]

    def expected(self) -> list[Row]:
        return sorted(self.rows.values(), key=lambda r: (r["id"], r["part"] or ""))

    def _put(self, row: Row) -> Row:
        self.rows[row["id"], row["part"]] = row
        return row

    def _text(self, number: int) -> str:
        return f"{number} {'x' * 3000}"


def rows_of(pipeline: Pipeline) -> list[Row]:
    return sorted(pipeline.rows, key=lambda r: (r["id"], r["part"] or ""))


@pytest.mark.each(3)
@pytest.mark.parametrize("seed", range(3))
def test_rule_26_batch_beyond_memory_is_one_commit_with_the_rows_of_the_source(seed: int, tmp_path: Path) -> None:
    source = Source(seed)
    pipeline = Pipeline(tmp_path, COLUMNS, KEY, options={"memory_limit_bytes": "1MiB", "inserts": "checked"})
    for _ in range(2):
        applied = pipeline.run(*source.changes(500))
        assert len(applied) == 1
        assert rows_of(pipeline) == source.expected()
    assert pipeline.rejected == []
    assert not list(spill_folder().path.glob("*.arrow"))


def test_rule_28_batch_beyond_memory_of_a_table_without_a_key_counts_equal_rows(tmp_path: Path) -> None:
    rows = [{"a": i % 7, "b": f"{i % 7} {'x' * 2000}"} for i in range(300)]
    key = ("a", "b")
    pipeline = Pipeline(
        tmp_path, {"a": pa.int64(), "b": pa.string()}, key, {"identity": "full", "memory_limit_bytes": "1MiB"}
    )
    assert len(pipeline.run(*(change("c", r) for r in rows))) == 1
    changed = [change("u", rows[0], before=rows[1]) for _ in range(10)]
    changed += [change("d", rows[i % 7]) for i in range(2, 260)]
    assert len(pipeline.run(*changed)) == 1
    left = [r["a"] for r in live(pipeline)]
    expected = {a: len([r for r in rows if r["a"] == a]) for a in range(7)}
    expected[1] -= 10
    expected[0] += 10
    for i in range(2, 260):
        expected[i % 7] -= 1
    assert {a: left.count(a) for a in range(7)} == {a: max(count, 0) for a, count in expected.items()}


def live(pipeline: Pipeline) -> list[Row]:
    from nevermore.checks.reference.expected_rows import live_rows

    return list(live_rows(pipeline.table.metadata_location.removeprefix("file://")).to_pylist())


def test_rule_28_truncate_at_the_end_of_a_batch_beyond_memory_empties_the_table(tmp_path: Path) -> None:
    source = Source(5, truncates=False)
    pipeline = Pipeline(tmp_path, COLUMNS, KEY, options={"memory_limit_bytes": "1MiB"})
    pipeline.run(*source.changes(300))
    assert len(pipeline.run(*source.changes(300), change("t"))) == 1
    assert rows_of(pipeline) == []


def test_soft_deletes_beyond_memory_keep_flagged_rows(tmp_path: Path) -> None:
    source = Source(9, truncates=False)
    pipeline = Pipeline(tmp_path, COLUMNS, KEY, options={"memory_limit_bytes": "1MiB", "soft_delete": True})
    assert len(pipeline.run(*source.changes(500))) == 1
    alive = [{k: v for k, v in r.items() if k != "_deleted"} for r in rows_of(pipeline) if not r["_deleted"]]
    assert alive == source.expected()
    assert any(r["_deleted"] for r in rows_of(pipeline))


def test_keys_that_changes_tie_together_share_a_part() -> None:
    changes = [change("u", {"id": i + 1, "n": i}, key={"id": i}) for i in range(40)]
    changes += [change("c", {"id": 1000 + i, "n": i}) for i in range(200)]
    table = batch_of(changes, {"id": pa.int64(), "n": pa.int64()}).table
    run = ChangeRun.of((table.slice(i, 7) for i in range(0, 240, 7)), 1)
    try:
        parts = [
            set(p.changes.column("key").combine_chunks().field("id").to_pylist())
            for p in parts_by_key(run, ["id"], 2000)
        ]
    finally:
        run.close()
    assert len(parts) > 3
    assert sum(len(p) for p in parts) == 240
    assert [p for p in parts if p & set(range(40))] == [next(p for p in parts if set(range(40)) <= p)]


def test_parts_stay_within_the_limit_however_much_larger_than_it_the_changes_are() -> None:
    table = batch_of([change("c", {"id": i, "n": i}) for i in range(4000)], {"id": pa.int64(), "n": pa.int64()}).table
    limit = table.nbytes // 500
    run = ChangeRun.of((table.slice(i, 500) for i in range(0, 4000, 500)), 1)
    try:
        sizes = [p.changes.nbytes for p in parts_by_key(run, ["id"], limit)]
    finally:
        run.close()
    assert len(sizes) > 500
    assert max(sizes) < 4 * limit


def test_full_disk_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", full)
    with pytest.raises(PipelineError, match="TMPDIR"):
        ChangeRun.of([pa.table({"a": [1, 2]})], 1)


def test_full_disk_that_takes_no_end_of_a_file_leaves_no_file_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, *_: Any) -> None: ...

        def write_batch(self, _: pa.RecordBatch) -> None: ...

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "new_file", Full)
    spilled = SpilledTables()
    spilled.append(pa.table({"a": [1, 2]}))
    before = set(user_folder("spill").path.rglob("*.arrow"))
    with pytest.raises(PipelineError, match="TMPDIR"):
        next(spilled.tables())
    spilled.append(pa.table({"a": [1, 2]}))
    spilled.close()
    assert before - set(user_folder("spill").path.rglob("*.arrow"))
    assert spilled.num_rows == 0


def test_what_a_killed_process_spilled_is_removed_by_the_next(tmp_path: Path) -> None:
    program = (
        "import pyarrow as pa, sys, time; from nevermore.pipelines.changes.change_run import SpilledTables; t = SpilledTables(); "
        "t.append(pa.table({'a': [1]})); print('spilled', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    look = "from nevermore.scan_core.io.private_files import remove_leftovers; print(remove_leftovers())"

    def removed() -> str:
        return subprocess.run(
            [sys.executable, "-c", look], env=environment, capture_output=True, check=True, text=True
        ).stdout.strip()

    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert removed() == "0"
        process.kill()
    assert list(tmp_path.rglob("*.arrow"))
    assert removed() == "1"
    assert not list(tmp_path.rglob("*.arrow"))


def test_own_folder_is_never_a_leftover() -> None:
    tables = SpilledTables()
    tables.append(pa.table({"a": [1]}))
    remove_leftovers()
    assert [t.to_pylist() for t in tables.tables()] == [[{"a": 1}]]
    tables.close()
    assert user_folder("spill").path.stat().st_mode & 0o077 == 0


PROGRAM = f"""{PEAK_BYTES}
import json, sys
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
run_once(load(sys.argv[2]))  # a first run pays for imports and compiled code
before = peak_bytes()
report = run_once(load(sys.argv[1]))
print(json.dumps({{"grown": peak_bytes() - before, **report.as_dict()}}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_commit_of_five_times_the_memory_limit_stays_within_it(tmp_path: Path) -> None:
    megabyte = 1024**2
    entry = {"shop.products": {"key": ["id"], "memory_limit_bytes": 128 * megabyte, "commit_rows": 100_000_000}}
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    small, large = Project(tmp_path / "small", entry), Project(tmp_path / "large", entry)
    small.land("1.jsonl", [event("c", product(1))])
    text, keys = "x" * 600, 400_000
    for part in range(6):
        made = ((n * 7919) % keys for n in range(part * 100_000, (part + 1) * 100_000))
        large.land(f"{part}.jsonl", (event("u", product(key, f"{part} {key} {text}")) for key in made))
    configs = [str(p.folder / "nevermore.yaml") for p in (large, small)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *configs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (table,) = report["tables"]
    assert (table["mirror_commits"], table["events"], table["data_rows"]) == (1, {"u": 600_000}, keys)
    rows = large.rows()
    assert len(rows) == keys
    assert {r["name"].split()[0] for r in rows} == {"2", "3", "4", "5"}
    figures = f"memory grew by {report['grown'] / megabyte:.0f} MB"
    assert report["grown"] < 300 * megabyte, figures


def test_a_row_that_changes_more_often_than_a_part_holds_is_folded_piece_by_piece() -> None:
    changes = [change("u", {"id": 1, "n": n}) for n in range(400)] + [change("c", {"id": 2, "n": 0})]
    table = batch_of(changes, {"id": pa.int64(), "n": pa.int64()}).table
    sizes = []

    def last_two(part: pa.Table) -> pa.Table:
        sizes.append(part.num_rows)
        return part.slice(max(part.num_rows - 2, 0))

    run = ChangeRun.of((table.slice(i, 20) for i in range(0, 401, 20)), 1)
    parts = [part.changes for part in parts_by_key(run, ["id"], table.nbytes // 8, last_two)]
    run.close()
    assert max(sizes) < 120
    assert sum(part.num_rows for part in parts) < 120
    assert 399 in [row["n"] for part in parts for row in part.column("after").to_pylist()]
