"""`order_by`: what is read at once is put in order, and every change says where it belongs."""

import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from nevermore.pipelines.config.project import load
from nevermore.pipelines.decode.batches import from_documents
from nevermore.pipelines.decode.events import Events, of_columns, places
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.formats.debezium import EventColumns, decode_columns
from nevermore.pipelines.formats.registry import DecodedFeed, decode
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.ingest.feed_run import run_once
from tests.pipelines.formats.decoded_feed import changes, read
from tests.pipelines.iceberg_tables import reloaded, rows_of

TABLE = "shop.t"


def event(at: int | None, op: str = "u", key: int = 1) -> dict[str, Any]:
    return {"op": op, "before": None, "after": {"id": key, "n": at}, "source": {"lsn": at}}


def decoded(*events: dict[str, Any], path: str = "source.lsn") -> DecodedFeed:
    feed = TableFeed(name=TABLE, key=("id",), order_by=(path,))
    return decode(
        from_documents([json.dumps(e).encode() for e in events]), FeedConfig(format="debezium-json", tables=(feed,))
    )


def ordered_by(values: dict[str, pa.Array]) -> Events:
    nothing = pa.nulls(0)
    none: Any = None
    rows, codes = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return Events(
        raw=rows, op=codes.astype(np.uint8), table_of=codes, tables=(), source_ts=nothing,
        after=none, before=none, key=none, declared_of=codes, declared=(),
        order=lambda path: (of_columns(path, values[path]), None),
    )  # fmt: skip


def places_of(values: pa.Array) -> list[str]:
    """The places of events with these values."""
    return list(places(ordered_by({"any": values}), ("any",))[0].to_pylist())


def test_events_without_a_value_come_first_and_equal_ones_stay_in_place() -> None:
    result = decoded(event(3, key=1), event(1), event(None), event(3, key=2), event(2))
    rows = result.tables[TABLE].table.column("after").to_pylist()
    assert [(r["n"], r["id"]) for r in rows] == [(None, 1), (1, 1), (2, 1), (3, 1), (3, 2)]
    assert result.tables[TABLE].table.column("source_order").to_pylist() == sorted(
        result.tables[TABLE].table.column("source_order").to_pylist()
    )


def test_places_of_numbers_beyond_64_bits_or_15_digits_compare_as_they_do() -> None:
    sequence = 20_260_131_000_000_000_000_000_000_000_000_000
    numbers = [-5, 7, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, sequence + 1, sequence + 2]
    places_in_order = places_of(pa.array([decimal.Decimal(n) for n in numbers], pa.decimal128(38, 0)))
    assert places_in_order == sorted(set(places_in_order))
    assert places_of(pa.array(numbers[1:7], pa.uint64())) == places_in_order[1:7]
    assert places_of(pa.array(numbers[:5])) == places_in_order[:5]
    seconds = [decimal.Decimal(f"1690000000000.{n:06}") for n in (0, 1, 2)]
    fractions = places_of(pa.array(seconds, pa.decimal128(20, 6)))
    assert fractions == sorted(set(fractions))
    assert fractions[0] == places_of(pa.array([1_690_000_000_000]))[0]
    rows = decoded(event(sequence + 2), event(sequence + 1)).tables[TABLE].table.column("after").to_pylist()
    assert [r["n"] for r in rows] == [sequence + 1, sequence + 2]


def test_places_compare_as_values_do_whatever_their_type_and_batch() -> None:
    numbers = [-(2**63), -5, -1, 0, 1, 9, 10, 2**40, 2**63 - 1]
    whole = places_of(pa.array(numbers))
    assert whole == sorted(whole)
    assert places_of(pa.array([-5.0, 0.0, 9.0])) == [whole[1], whole[3], whole[5]]
    mixed = places_of(pa.array([-5.5, -0.25, 0.0, 0.5, 9.75]))
    assert sorted([*mixed, whole[1], whole[5]]) == [
        mixed[0], whole[1], mixed[1], mixed[2], mixed[3], whole[5], mixed[4],
    ]  # fmt: skip
    assert places_of(pa.array([None], pa.int64())) < places_of(pa.array([-(2**63)])) < places_of(pa.array([""]))
    times = pa.array([1, 2], pa.timestamp("us", "UTC"))
    assert places_of(times) == places_of(pa.array([1, 2]))
    assert places_of(pa.array([decimal.Decimal(7)])) == places_of(pa.array([7]))
    words = ["", "a", "a b", "b"]
    assert places_of(pa.array(words)) == sorted(places_of(pa.array(words)))


def test_numbers_written_in_digits_compare_as_numbers_whatever_else_their_batch_has() -> None:
    assert places_of(pa.array(["999", "1000", "-5"])) == places_of(pa.array([999, 1000, -5]))
    assert places_of(pa.array(["7", "seven", None]))[0] == places_of(pa.array([7]))[0]
    sequence = "20260131000000000000000000000000001"
    assert places_of(pa.array([sequence])) == places_of(pa.array([decimal.Decimal(sequence)]))


def test_log_sequence_numbers_compare_as_numbers_whatever_else_their_batch_has() -> None:
    assert places_of(pa.array(["0/24EE3C8", "1/0", ""]))[:2] == places_of(pa.array([0x24EE3C8, 1 << 32]))
    assert places_of(pa.array(["7FFFFFFF/FFFFFFFF"])) == places_of(pa.array([2**63 - 1]))
    assert places_of(pa.array(["a/b/c", "80000000/0"])) == ["2a/b/c", "280000000/0"]


def test_several_columns_compare_from_the_first_on() -> None:
    first, second = [1, 1, 1, 2, None], [5, 7, None, 0, 9]
    found = places(ordered_by({"a": pa.array(first), "b": pa.array(second)}), ("a", "b"))[0].to_pylist()
    assert np.argsort(found).tolist() == [4, 2, 0, 1, 3]


JSON_IN_ORDER = (
    "null", "-1e30", "-123456789012345678901.5", "-123456789012345678901", "-9223372036854775808.5", "-9223372036854775808",
    "-1.5", "-1.25", "-1", "-0.2500000000000000000002", "-0.25", "-1e-37", "0", "1e-37", "0.1", "0.10000000000000000000001",
    "0.25", "1", "1.0625", "9007199254740992", "9007199254740992.5", "9007199254740993", "9223372036854775807",
    "9223372036854775807.5", "9223372036854775808", "1e37", "99999999999999999999999999999999999999.25", '""', '"a"',
)  # fmt: skip


def json_event(written: str) -> bytes:
    return b'{"op":"u","before":null,"after":{"id":1},"source":{"lsn":%s}}' % written.encode()


def decoded_json(*values: str) -> DecodedFeed:
    feed = TableFeed(name=TABLE, key=("id",), order_by=("source.lsn",))
    return decode(
        from_documents([json_event(value) for value in values]), FeedConfig(format="debezium-json", tables=(feed,))
    )


def json_places(*values: str) -> list[str]:
    result = decoded_json(*values)
    assert result.rejected.num_rows == 0
    return list(result.tables[TABLE].table.column("source_order").to_pylist())


def test_json_values_compare_exactly_whatever_is_beside_them() -> None:
    together = json_places(*reversed(JSON_IN_ORDER))
    assert together == sorted(set(together))
    assert len(together) == len(JSON_IN_ORDER)
    assert [json_places(value)[0] for value in JSON_IN_ORDER] == together
    assert len({*json_places("7", "7.0", "0.7e1", "70e-1"), *json_places('"7"')}) == 1
    assert json_places("0.25", "2.5e-1", "0.250") == json_places("0.25") * 3
    assert json_places("true", "1", '"0/1"') == json_places("1") * 3
    assert json_places("9007199254740993")[0] == places_of(pa.array([2**53 + 1]))[0]
    assert json_places("0.25") == places_of(pa.array([decimal.Decimal("0.25")]))


def test_a_fraction_beside_large_integers_moves_none_of_them() -> None:
    result = decoded(event(2**53 + 1, key=1), event(2**53, key=1), {**event(1), "source": {"lsn": 0.5}})
    assert [row["n"] for row in result.tables[TABLE].table.column("after").to_pylist()] == [1, 2**53, 2**53 + 1]


@pytest.mark.parametrize("odd", ['{"scale":0}', "[1]", "1e38", "1e-38", "-1e999999999", "1" * 76])
def test_a_value_that_has_no_place_is_rejected_by_itself(odd: str) -> None:
    result = decoded_json("3", odd, "1")
    assert result.tables[TABLE].table.column("source_order").to_pylist() == json_places("1", "3")
    rejected = result.rejected.table.to_pylist()
    assert [row["raw"] for row in rejected] == [json_event(odd)]
    assert "source.lsn is neither text nor a number" in rejected[0]["reason"]
    assert odd[:60] in rejected[0]["reason"]
    assert rejected[0]["table_name"] == TABLE
    assert not decoded_json(odd).tables[TABLE].table.num_rows


def test_columns_of_several_schemas_compare_exactly() -> None:
    groups = [
        EventColumns(np.array([0]), {"lsn": pa.array([2**53 + 1])}),
        EventColumns(np.array([1]), {"lsn": pa.array([float(2**53)])}),
        EventColumns(np.array([2]), {"lsn": pa.array(["seven"])}),
    ]
    found = decode_columns(groups).order("lsn")[0].to_pylist()
    assert found == places_of(pa.array([2**53 + 1])) + places_of(pa.array([2**53])) + places_of(pa.array(["seven"]))


def test_unknown_path_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"no source\.nothing"):
        decoded(event(1), path="source.nothing")


def test_order_holds_over_all_files_of_a_run_whatever_the_batches(tmp_path: Path) -> None:
    source = {"type": "files", "path": "landing/*", "format": "debezium-json", "options": {"batch_rows": 1}}
    table = {"source": source, "key": ["id"], "order_by": ["source.lsn"], "commit_rows": 1}
    (tmp_path / "nevermore.yaml").write_text(yaml.safe_dump({"tables": {TABLE: table}}))
    (tmp_path / "landing").mkdir()
    for number, at in enumerate([3, 9, 1, 7]):
        (tmp_path / "landing" / f"{number}.jsonl").write_text(json.dumps(event(at)) + "\n")
    config = load(tmp_path / "nevermore.yaml")
    assert run_once(config).exit_code == 0
    assert rows_of(reloaded(open_catalog(config), TABLE)) == [{"id": 1, "n": 9}]


ASCENDING = {
    "decimals": ["-10.5", "-9.75", "-0.5", "0.0", ".25", "1", "9", "9.5", "10", "10.25", "+11.5", "99999999999999999999.5"],
    "times": [
        "2024-01-01", "2024-01-01T10:00:00Z", "2024-01-01T10:00:00.05Z", "2024-01-01 10:00:00.5", "2024-01-01T10:00:01+00:00",
        "2024-01-01T09:00:02-02:00", "2024-01-01T13:00:03+02:00", "2024-01-02", "2024-01-02T00:00:00.000000001Z",
    ],
    "log positions": ["0/FF", "1/0", "1/00000A", "A/0", "10/0"],
    "digits": ["-3", "007", "8", "10", "123456789012345678901234567890"],
    "mixed": [None, -1, "0.5", 1, "1.5", 2, "9/0", "1e5", "text"],
}  # fmt: skip


@pytest.mark.parametrize("kind", ASCENDING)
def test_text_orders_as_the_number_or_time_that_it_is(kind: str) -> None:
    values: list[Any] = ASCENDING[kind]
    events = [{"op": "c", "id": n, "at": value} for n, value in enumerate(values)]
    for order in (events[::-1], [*events[1::2], *events[::2]]):
        found = read("rows", *order, order_by=("at",), types={"at": "string"})
        assert [c["key"]["id"] for c in changes(found, "key")] == list(range(len(values)))
    if kind != "mixed":
        texts = of_columns("at", pa.array(values))
        assert texts.to_pylist() == sorted(texts.to_pylist())
