"""Changes that are made fewer lead to what all of them lead to."""

import random
from typing import Any

import pyarrow as pa
import pytest

from nevermore.pipelines.mirrors.fold import fold, squash
from tests.pipelines.change_batches import Change, batch_of, change

COLUMNS = {"id": pa.int64(), "n": pa.int64(), "text": pa.string(), "blob": pa.string()}


def at_random(seed: int, *, moves: bool) -> list[Change]:
    draw = random.Random(seed)
    result = []
    for number in range(draw.randrange(1, 60)):
        key = draw.randrange(4)
        row = {"id": key, "n": number, "text": f"t{number}", "blob": f"b{number}"}
        unsent = [name for name in ("text", "blob") if draw.random() < 0.4]
        kind = draw.random()
        if kind < 0.15:
            result.append(change("d", key={"id": key}))
        elif kind < 0.3:
            result.append(change("c", row))
        else:
            new = draw.randrange(4) if moves and draw.random() < 0.1 else key
            sent = {**row, "id": new, **dict.fromkeys(unsent)}
            result.append(change("u", sent, key={"id": key}, unchanged=unsent))
    return result


def outcome(table: pa.Table) -> dict[str, Any]:
    folded = fold(table, ["id"])
    wanted = None if folded.needs_lookup is None else folded.needs_lookup.to_pylist()
    deletes = zip(folded.deletes.column("id").to_pylist(), folded.delete_is_insert.tolist(), strict=True)
    return {
        "upserts": sorted(folded.upserts.to_pylist(), key=lambda row: row["id"]),
        "deletes": sorted(deletes),
        "lookups": wanted and sorted((row["key"]["id"], sorted(row["unchanged"])) for row in wanted),
        "unresolved": len(folded.unresolved),
    }


@pytest.mark.parametrize("moves", [False, True])
def test_rule_26_squashed_changes_fold_to_the_same(moves: bool) -> None:  # noqa: FBT001 - a parameter
    fewer = 0
    for seed in range(50):
        table = batch_of(at_random(seed, moves=moves), COLUMNS).table
        squashed = squash(table, ["id"])
        fewer += squashed.num_rows < table.num_rows
        assert squashed.schema == table.schema
        assert outcome(squashed) == outcome(table), seed
        halves = [squash(table.slice(0, 20), ["id"]), table.slice(20)]
        assert outcome(squash(pa.concat_tables(halves).combine_chunks(), ["id"])) == outcome(table), seed
    assert fewer > 10


def test_a_row_that_changes_often_is_two_changes() -> None:
    changes = [change("c", {"id": 1, "n": 0, "text": "x", "blob": "y"})]
    changes += [change("u", {"id": 1, "n": n, "text": None, "blob": None}, unchanged=["text"]) for n in range(500)]
    squashed = squash(batch_of(changes, COLUMNS).table, ["id"])
    assert squashed.column("after").to_pylist()[1:] == [{"id": 1, "n": 499, "text": "x", "blob": None}]
    assert squashed.column("unchanged").to_pylist()[1:] == [[]]
