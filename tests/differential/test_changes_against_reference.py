"""Changes between any two snapshots of a random table are the difference of the rows that the reference reads in them.

Tables are compacted on the way, so that rows move between files without changing.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore import scan_core
from nevermore.checks.comparison import canonical, compare
from nevermore.checks.reference.expected_rows import live_rows
from nevermore.scan_core import ScanOptions
from tests.differential.table_histories import History, draw_table

EXAMPLES = 12
MANY_EXAMPLES = 250
quick = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
thorough = settings(quick, max_examples=MANY_EXAMPLES, derandomize=False, print_blob=True)


def compact(history: History) -> None:
    """Rewrite the live rows of some files of one partition into one, as of the snapshot read."""
    table = history.table
    if not history.live:
        return
    first = history.draw(st.sampled_from(history.live))
    same = [f for f in history.live if (f.spec_id, f.record["partition"]) == (first.spec_id, first.record["partition"])]
    gone = [f for f in same if f is first or history.draw(st.booleans())]
    rows = live_rows(table.metadata_path, columns=["_file", *(c.name for c in table.columns)])
    kept = rows.filter(pc.is_in(rows["_file"], pa.array([f.path for f in gone]))).drop_columns("_file")
    file = table.data(
        {name: kept[name].to_pylist() for name in kept.column_names},
        partition=first.record["partition"],
        spec_id=first.spec_id,
        file_format=history.draw(st.sampled_from(history.formats)),
    )
    file.sequence_number = table.last_sequence_number
    vectors = [history.vectors.pop(f)[0] for f in gone if f in history.vectors]
    table.commit(file, remove=[*gone, *vectors], operation="replace")
    history.live = [f for f in history.live if f not in gone] + [file]


def check_changes(draw: Callable[..., Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = draw_table(draw, Path(folder) / "t", most_steps=5)
        for _ in range(draw(st.integers(0, 3))):
            history.step() if draw(st.booleans()) else compact(history)
        table = history.table
        ids = [s["snapshot-id"] for s in table.snapshots]
        for at in ids:
            table.ref(f"at{at}", at)  # a branch is read with the current schema
        states = {at: live_rows(table.metadata_path, ref=f"at{at}") for at in ids}
        for _ in range(4 if ids else 0):
            start, end = sorted(draw(st.tuples(st.sampled_from(ids), st.sampled_from(ids))))
            options = draw(st.sampled_from([ScanOptions(), ScanOptions(split_bytes=1, batch_rows=2, parallelism=3)]))
            scan = scan_core.open_table(table.metadata_path).scan().at_ref(f"at{end}").with_options(options)
            changes = scan.changes(start, trust_rewrites=draw(st.booleans()))
            before, after = canonical(states[start]), canonical(states[end])
            deleted, inserted = canonical(changes.deletes.to_table()), canonical(changes.inserts.to_table())
            assert_equal(pa.concat_tables([before, inserted]), pa.concat_tables([after, deleted]), (start, end))
            difference = compare(before, after)
            assert (deleted.num_rows, inserted.num_rows) == (difference.num_left_only, difference.num_right_only)


def assert_equal(found: pa.Table, expected: pa.Table, context: object) -> None:
    difference = compare(found, expected)
    assert difference.equal, (
        context,
        difference.type_differences,
        f"not deleted or wrongly inserted: {difference.left_only.to_pylist()}",
        f"not inserted or wrongly deleted: {difference.right_only.to_pylist()}",
    )


@quick
@given(st.data())
def test_changes_equal_the_difference_of_the_snapshots(data: st.DataObject) -> None:
    check_changes(data.draw)


@pytest.mark.slow
@thorough
@given(st.data())
def test_changes_of_many_tables_equal_the_difference_of_the_snapshots(data: st.DataObject) -> None:
    check_changes(data.draw)
