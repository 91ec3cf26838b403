"""Random histories of changes through our writer: the engine, the files and the log agree on what is alive."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nevermore.checks.subject import Subject
from nevermore.pipelines.iceberg.catalog import find_table
from tests.checks.mirror_tables import (
    key_is_unique,
    mirror_equals_reference,
    no_deleted_row_reappears,
    no_rows_lost,
)
from tests.pipelines.change_batches import Change, Pipeline, change
from tests.pipelines.iceberg_tables import catalog_in

EXAMPLES = 5
MANY_EXAMPLES = 400
COLUMNS = {"id": pa.int64(), "region": pa.string(), "big": pa.string(), "qty": pa.int32()}
CHECKS = (mirror_equals_reference, no_deleted_row_reappears, no_rows_lost, key_is_unique)
Row = dict[str, Any]


def draw_changes(draw: Callable[..., Any], key: tuple[str, ...], alive: dict[tuple[Any, ...], Row]) -> list[Change]:
    """A batch of changes as a database would send them; `alive` is its state, which they move on."""
    return [_draw_change(draw, key, alive) for _ in range(draw(st.integers(1, 6)))]


def _draw_change(draw: Callable[..., Any], key: tuple[str, ...], alive: dict[tuple[Any, ...], Row]) -> Change:
    op = draw(st.sampled_from("rccccuuuuudddt"))
    row = _draw_row(draw, nullable_key=len(key) > 1)
    if op == "t":
        alive.clear()
        return change("t")
    if op in "rc":
        alive[_key_of(row, key)] = row
        return change(op, row)
    old = draw(st.sampled_from(list(alive.values()))) if alive and draw(st.integers(0, 5)) else row
    known = alive.get(_key_of(old, key))
    before = known if known is not None and draw(st.booleans()) else None
    identity = {name: old[name] for name in key}
    if op == "d":
        alive.pop(_key_of(old, key), None)
        return change("d", before=before, key=identity)
    if draw(st.integers(0, 3)):
        row |= identity
    unchanged = draw(st.lists(st.sampled_from(["big", "qty"]), unique=True)) if draw(st.booleans()) else []
    sent = row | dict.fromkeys(unchanged)
    if known is not None or not unchanged:
        alive.pop(_key_of(old, key), None)
        alive[_key_of(row, key)] = row | {name: known[name] for name in unchanged if known is not None}
    return change("u", sent, before=before, key=identity, unchanged=unchanged or None)


def _draw_row(draw: Callable[..., Any], *, nullable_key: bool) -> Row:
    return {
        "id": draw(st.sampled_from([1, 2, 3, 4, 2**40, *([None] if nullable_key else [])])),
        "region": draw(st.sampled_from(["eu", "us", "", None])),
        "big": draw(st.sampled_from(["x" * 40, "y", "", None])),
        "qty": draw(st.integers(0, 3)),
    }


def _key_of(row: Row, key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[name] for name in key)


def check_history(draw: Callable[..., Any]) -> None:
    """Several runs of a pipeline; after each, all checks pass and the database's own state is what is read."""
    key = draw(st.sampled_from([("id",), ("id", "region")]))
    partition_by = draw(st.sampled_from([[], ["region"], ["bucket(3, id)"], ["region", "bucket(2, id)"]]))
    alive: dict[tuple[Any, ...], Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        options = {"partition_by": partition_by, "commit_rows": draw(st.sampled_from([1, 3, 1000]))}
        pipeline = Pipeline(Path(folder), COLUMNS, key, options)
        for _ in range(draw(st.integers(1, 4))):
            pipeline.run(*draw_changes(draw, key, alive))
            subject = subject_of(Path(folder), key)
            for check in CHECKS:
                result = check(subject)
                assert result.passed, (check.__name__, result.details, result.offending_keys)
            found = subject.opened.scan().to_table().to_pylist()
            assert sorted(map(repr, found)) == sorted(map(repr, alive.values()))


def subject_of(folder: Path, key: tuple[str, ...]) -> Subject:
    catalog = catalog_in(folder)
    mirror, log = find_table(catalog, "shop.t"), find_table(catalog, "change_log.shop_t")
    assert mirror is not None
    assert log is not None
    return Subject(mirror.metadata_location, key, log.metadata_location)


quick = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@quick
@given(st.data())
def test_random_histories_lead_to_the_state_of_the_database(data: st.DataObject) -> None:
    check_history(data.draw)


@pytest.mark.slow
@settings(quick, max_examples=MANY_EXAMPLES, derandomize=False, print_blob=True)
@given(st.data())
def test_many_random_histories_lead_to_the_state_of_the_database(data: st.DataObject) -> None:
    check_history(data.draw)
