import json
from datetime import date
from itertools import chain
from pathlib import Path

import pytest

from nevermore.pipelines.simulate import SMALLEST_ROWS, simulate

KEYS = {"customers": ("id",), "orders": ("id",), "order_lines": ("order_id", "line_no")}


def state_after(landing: Path, table: str) -> dict[tuple[int, ...], dict[str, object]]:
    """The table's rows after all events, checking each event's before-image on the way."""
    rows: dict[tuple[int, ...], dict[str, object]] = {}
    for path in sorted((landing / table).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            before, after = event["before"], event["after"]
            if before is not None:
                assert rows.pop(tuple(before[k] for k in KEYS[table])) == before
            if after is not None:
                key = tuple(after[k] for k in KEYS[table])
                assert key not in rows
                rows[key] = after
    return rows


@pytest.mark.each(3)
@pytest.mark.parametrize("table", KEYS)
def test_before_images_are_the_rows_as_they_were(tmp_path: Path, table: str) -> None:
    files = list(chain.from_iterable(simulate(tmp_path, seed=5, rows=4_000, batches=3)))

    assert len(files) == 9
    assert len(state_after(tmp_path, table)) > 50


def test_the_feed_holds_every_kind_of_change_and_nulls(tmp_path: Path) -> None:
    files = list(chain.from_iterable(simulate(tmp_path, seed=1, rows=10_000)))

    kinds = {kind for file in files for kind in file.events}
    assert kinds == {"insert", "update", "delete", "re-insert", "key change"}
    assert any(row["email"] is None for row in state_after(tmp_path, "customers").values())
    assert any(row["gift"] is None for row in state_after(tmp_path, "order_lines").values())


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    first, again, other = (
        [f.path.read_bytes() for batch in simulate(tmp_path / name, seed=seed, rows=1_000) for f in batch]
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )

    assert first == again
    assert first != other


@pytest.mark.parametrize(("rows", "batches"), [(SMALLEST_ROWS - 1, 2), (1_000, 0)])
def test_too_small_a_shop_is_refused(tmp_path: Path, rows: int, batches: int) -> None:
    with pytest.raises(ValueError, match=f"not {rows} and {batches}"):
        list(simulate(tmp_path, seed=1, rows=rows, batches=batches))
    assert not list(tmp_path.iterdir())


def test_the_days_of_the_batches_begin_where_asked(tmp_path: Path) -> None:
    list(simulate(tmp_path, seed=1, rows=400, batches=2, first_day=date(2030, 2, 28)))
    days = {
        json.loads(line)["after"]["ordered_at"][:10]
        for line in (tmp_path / "orders" / "000002.jsonl").read_text().splitlines()
        if json.loads(line)["op"] == "c"
    }
    assert days <= {"2030-02-28", "2030-03-01"}
    assert "2030-03-01" in days
