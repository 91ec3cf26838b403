"""Events that come as columns: every type that Parquet files hold, envelopes, rows from before a column was there."""

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.formats.registry import DecodedFeed, decode, sniff
from nevermore.pipelines.sources.files import discover

TABLE = "shop.t"


def decoded(folder: Path, table: pa.Table, format_name: str | None = None, **feed: Any) -> DecodedFeed:
    pq.write_table(table, folder / "1.parquet")
    (batch,) = discover([str(folder / "1.parquet")])
    feeds = (TableFeed(name=TABLE, **{"key": ("id",), **feed}),)
    return decode(batch.raw, FeedConfig(format=format_name or sniff(batch.raw), tables=feeds))


def rows(result: DecodedFeed) -> list[Any]:
    return [row["after"] for row in result.tables[TABLE].table.to_pylist()]


NANOS = 1_600_000_000_000_001_999


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([[1, None]]), [1, None]),
        (pa.array([[{"a": [1]}]]), [{"a": [1]}]),
        (pa.array([{"a": 1, "b": {"c": "x"}}]), {"a": 1, "b": {"c": "x"}}),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), [("k", 1)]),
        (pa.array([2**64 - 1], pa.uint64()), Decimal(2**64 - 1)),
        (pa.array([Decimal("1.23")], pa.decimal256(50, 2)), Decimal("1.23")),
        (pa.array([0], pa.date64()), date(1970, 1, 1)),
        (pa.array(["a"]).dictionary_encode(), "a"),
        (pa.array([NANOS], pa.timestamp("ns")), datetime(2020, 9, 13, 12, 26, 40, 1)),  # noqa: DTZ001 - no zone
        (pa.array([-1], pa.timestamp("ns")), datetime(1969, 12, 31, 23, 59, 59, 999_999)),  # noqa: DTZ001 - no zone
    ],
)
def test_columns_of_every_type_are_rows(array: pa.Array, wanted: Any, tmp_path: Path) -> None:
    result = decoded(tmp_path, pa.table({"Op": ["I"], "id": [1], "v": array}))
    assert rows(result) == [{"id": 1, "v": wanted}]
    cut = pa.types.is_timestamp(array.type)
    assert result.skipped == ({"digits below a microsecond": 1} if cut else {})


def test_whole_microseconds_of_a_column_of_nanoseconds_are_not_counted(tmp_path: Path) -> None:
    array = pa.array([1_600_000_000_000_001_000], pa.timestamp("ns"))
    assert decoded(tmp_path, pa.table({"Op": ["I"], "id": [1], "v": array})).skipped == {}


@pytest.mark.parametrize("format_name", [None, "debezium-json"])
def test_envelopes_in_columns_are_changes(format_name: str | None, tmp_path: Path) -> None:
    image = pa.struct([("id", pa.int64()), ("v", pa.string())])
    table = pa.table(
        {
            "before": pa.array([None, {"id": 1, "v": "a"}, {"id": 2, "v": "b"}], image),
            "after": pa.array([{"id": 2, "v": "b"}, {"id": 3, "v": "a"}, None], image),
            "source": [{"db": "d", "table": "t", "ts_ms": 5}] * 3,
            "op": ["c", "u", "d"],
        }
    )
    changes = decoded(tmp_path, table, format_name).tables[TABLE].table
    assert changes.column("op").to_pylist() == ["c", "u", "d"]
    assert [key["id"] for key in changes.column("key").to_pylist()] == [2, 1, 2]


@pytest.mark.parametrize("flags", [{"__deleted": ["false", "true"]}, {"__op": ["c", "d"]}])
def test_unwrapped_rows_in_columns_lose_their_flags(flags: dict[str, list[str]], tmp_path: Path) -> None:
    changes = decoded(tmp_path, pa.table({"id": [1, 1], "v": ["a", None], **flags})).tables[TABLE].table
    assert changes.column("op").to_pylist()[1] == "d"
    assert changes.column("after")[0].as_py() == {"id": 1, "v": "a"}


def test_whole_rows_from_before_a_column_was_there_have_null_in_it() -> None:
    events = [
        {"op": "c", "before": None, "after": {"a": 1}},
        {"op": "c", "before": None, "after": {"a": 1, "n": 5}},
        {"op": "u", "before": {"a": 1}, "after": {"a": 2}},
        {"op": "d", "before": {"a": 2}, "after": None},
        {"op": "u", "before": {"a": 1}, "after": {"a": 2, "n": 6}},
    ]
    raw = from_documents([json.dumps(e).encode() for e in events])
    result = decode(raw, FeedConfig(format="debezium-json", tables=(TableFeed(name=TABLE, identity_full=True),)))
    keys = result.tables[TABLE].table.column("key").to_pylist()
    assert keys == [{"a": 1, "n": None}, {"a": 1, "n": 5}, {"a": 1, "n": None}, {"a": 2, "n": None}]
    assert "without the whole old row" in result.rejected.table.column("reason")[0].as_py()
