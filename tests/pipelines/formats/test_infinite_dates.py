"""Dates and timestamps outside of the years 1 to 9999: in every form, by every rule of `infinite_dates`."""

import json
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nevermore.pipelines.decode import arrow_columns, casting
from nevermore.pipelines.decode.batches import RawEvents, from_documents
from nevermore.pipelines.decode.feed import FeedConfig, TableFeed
from nevermore.pipelines.decode.value_types import Encoding, InfiniteDates, ValueType
from nevermore.pipelines.formats.registry import DecodedFeed, decode

FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - without a zone
INT = {"min": -(2**63), "max": 2**63 - 1}
DEBEZIUM = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."
FORMS: dict[str, tuple[str, str, Any, Any]] = {
    "micros": ("int64", f"{DEBEZIUM}MicroTimestamp", 9223372036825200000, -9223372036832400000),
    "limits of micros": ("int64", f"{DEBEZIUM}MicroTimestamp", INT["max"], INT["min"]),
    "millis": ("int64", f"{DEBEZIUM}Timestamp", 9223372036825200, -9223372036832400),
    "connect": ("int64", f"{CONNECT}Timestamp", 9223372036825200, -9223372036832400),
    "limits of millis": ("int64", f"{DEBEZIUM}Timestamp", INT["max"], INT["min"]),
    "nanos": ("int64", f"{DEBEZIUM}NanoTimestamp", INT["max"], INT["min"]),
    "days": ("int32", f"{DEBEZIUM}Date", -2147472692, -2147472691),
    "connect days": ("int32", f"{CONNECT}Date", 2932897, -719163),
    "text of days": ("string", f"{DEBEZIUM}IsoDate", "10000-01-01", "0000-12-31"),
    "text": ("string", f"{DEBEZIUM}IsoTimestamp", "+294247-01-10T04:00:25.2", "-290308-12-21T19:59:27.6"),
    "zoned": ("string", f"{DEBEZIUM}ZonedTimestamp", "infinity", "-infinity"),
    "zoned text": ("string", f"{DEBEZIUM}ZonedTimestamp", "+294247-01-10T04:00:25.2Z", "0044-03-15T00:00:00Z BC"),
}


def read(kind: str, name: str, values: list[Any], rule: InfiniteDates) -> DecodedFeed:
    row = [{"field": "id", "type": "int32"}, {"field": "v", "type": kind, "name": name}]
    row += [{"field": "many", "type": "array", "items": {"type": kind, "name": name}}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": row}]}
    events = [
        {"schema": schema, "payload": {"before": None, "after": {"id": n, "v": v, "many": [v]}, "op": "c"}}
        for n, v in enumerate(values)
    ]
    raw = from_documents([json.dumps(event).encode() for event in events])
    return of_table(raw, rule)


def of_table(raw: RawEvents, rule: InfiniteDates, **table: Any) -> DecodedFeed:
    tables = (TableFeed(name="t", key=("id",), infinite_dates=rule, **table),)
    return decode(raw, FeedConfig(format="debezium-json", tables=tables))


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else value  # noqa: DTZ001


@pytest.mark.parametrize("form", FORMS)
def test_infinite_dates_are_clamped(form: str) -> None:
    kind, name, future, past = FORMS[form]
    rows = read(kind, name, [future, past], "clamp").tables["t"].table.column("after").to_pylist()
    last = LAST if not name.endswith("Date") else datetime(9999, 12, 31)  # noqa: DTZ001
    assert [plain(row["v"]) for row in rows] == [last, FIRST]
    assert [plain(row["many"][0]) for row in rows] == [last, FIRST]


@pytest.mark.each(9)
@pytest.mark.parametrize("given", ["by config", "by message"])
@pytest.mark.parametrize("form", FORMS)
def test_infinite_dates_in_keys_are_never_null(form: str, given: str) -> None:
    """The rows of `infinity` and `-infinity` would become one."""
    kind, name, *values = FORMS[form]
    row = [{"type": "int32", "field": "id"}, {"field": "at", "type": kind, "name": name}]
    schema = {"type": "struct", "fields": [{"field": n, "type": "struct", "fields": row} for n in ("before", "after")]}
    keys, events = [], []
    for value in values:
        images = {"before": None, "after": {"id": 1, "at": value}}, {"before": {"id": 1, "at": value}, "after": None}
        for op, image in zip("cd", images, strict=True):
            events.append({"schema": schema, "payload": {**image, "op": op}})
            keys.append({"schema": {"type": "struct", "fields": row}, "payload": {"id": 1, "at": value}})
    raw = from_documents(
        [json.dumps(event).encode() for event in events],
        keys=[json.dumps(key).encode() for key in keys] if given == "by message" else None,
    )
    for rule, is_kept in (("clamp", True), ("null", False), ("quarantine", False)):
        table = TableFeed(
            name="t", key=() if given == "by message" else ("id", "valid"), infinite_dates=rule, rename={"at": "valid"}
        )
        found = decode(raw, FeedConfig(format="debezium-json", tables=(table,)))
        last = LAST if not name.endswith("Date") else datetime(9999, 12, 31)  # noqa: DTZ001
        kept = [plain(k["valid"]) for k in found.tables["t"].table.column("key").to_pylist()] if is_kept else []
        assert kept == ([last, last, FIRST, FIRST] if is_kept else [])
        assert found.rejected.num_rows == (0 if is_kept else 4)


@pytest.mark.each(3)
@pytest.mark.parametrize("form", FORMS)
def test_infinite_dates_become_null_or_go_to_quarantine(form: str) -> None:
    kind, name, *values = FORMS[form]
    rows = read(kind, name, values, "null").tables["t"].table.column("after").to_pylist()
    assert [(row["v"], row["many"]) for row in rows] == [(None, [None])] * 2
    refused = read(kind, name, values, "quarantine")
    assert refused.tables["t"].num_rows == 0
    reasons = refused.rejected.table.column("reason").to_pylist()
    assert len(reasons) == 2
    assert all("column v" in reason and "infinite_dates: null or clamp" in reason for reason in reasons)


@pytest.mark.parametrize("form", FORMS)
def test_last_and_first_moments_stay_what_they_are(form: str) -> None:
    kind, name, *_ = FORMS[form]
    unit = {"Timestamp": 1_000, "MicroTimestamp": 1_000_000}.get(name.rpartition(".")[2])
    if kind == "string":
        time = "" if name.endswith("Date") else "T00:00:00Z"
        values: list[Any] = [f"9999-12-31{time}", f"0001-01-01{time}"]
    elif name.endswith("Date"):
        values = [2932896, -719162]
    elif unit is None:
        values = [INT["max"] - 1, INT["min"] + 1]
    else:
        values = [2932897 * 86_400 * unit - 1, -719162 * 86_400 * unit]
    done = read(kind, name, values, "quarantine")
    assert done.tables["t"].num_rows == 2, done.rejected.table.column("reason")
    assert not done.rejected.num_rows


@pytest.mark.each(4)
@pytest.mark.parametrize("value", ["no date", "infinite", "12345", "2020-13-01", "2020-01-01 BCE", "Infinity BC"])
@pytest.mark.parametrize("rule", ["quarantine", "null", "clamp"])
def test_text_that_is_no_date_goes_to_quarantine_whatever_the_rule(value: str, rule: InfiniteDates) -> None:
    refused = read("string", f"{DEBEZIUM}IsoTimestamp", [value], rule)
    (reason,) = refused.rejected.table.column("reason").to_pylist()
    assert "infinite_dates" not in reason


@pytest.mark.parametrize("value", [9223372036825200000, 9223372036825200, INT["max"], "infinity"])
def test_infinity_without_a_schema(value: Any) -> None:
    raw = from_documents([json.dumps({"before": None, "after": {"id": 1, "v": value}, "op": "c"}).encode()])
    done = of_table(raw, "clamp", types={"v": "timestamptz"})
    assert done.tables["t"].table.column("after")[0].as_py()["v"] == LAST.replace(tzinfo=UTC)


@pytest.mark.parametrize("held", ["s", "ms", "us", "ns", "days"])
@pytest.mark.parametrize("wanted", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()], ids=str)
def test_columns_of_files(held: str, wanted: pa.DataType) -> None:
    if held == "days":
        column = pa.array([-2147472692, -2147472691, 0, None], pa.int32()).view(pa.date32())
    else:
        column = pa.array([INT["max"], INT["min"], 0, None], pa.int64()).view(pa.timestamp(held))
    values, bad = arrow_columns.decode(column, ValueType(wanted, infinite="clamp"))
    last = LAST if pa.types.is_timestamp(wanted) else datetime(9999, 12, 31)  # noqa: DTZ001
    assert not bad.any()
    assert [None if v is None else plain(v) for v in values.to_pylist()] == [last, FIRST, datetime(1970, 1, 1), None]  # noqa: DTZ001
    assert arrow_columns.decode(column, ValueType(wanted))[1].tolist() == [True, True, False, False]
    assert arrow_columns.decode(column, ValueType(wanted, infinite="null"))[0].to_pylist()[:2] == [None, None]


@pytest.mark.parametrize("style", [Encoding.SQL_MDY, Encoding.SQL_DMY, Encoding.GERMAN, Encoding.POSTGRES_DMY])
def test_text_in_a_style_of_postgresql(style: Encoding) -> None:
    separator = {Encoding.GERMAN: ".", Encoding.POSTGRES_DMY: "-"}.get(style, "/")
    words = pa.array(
        ["infinity", "-infinity", separator.join(("01", "01", "10000")), separator.join(("01", "01", "0044 BC"))]
    )
    values, bad = casting.from_style(words, pa.date32(), style, "clamp")
    assert (values.to_pylist(), bad.any()) == ([date(9999, 12, 31), date(1, 1, 1)] * 2, False)


def test_nanoseconds_are_clamped_to_what_they_hold() -> None:
    values, bad = casting.from_integers(
        np.array([2**62]), np.array([True]), pa.timestamp("ns"), Encoding.MICROS, "clamp"
    )
    assert (values.view(pa.int64()).to_pylist(), bad.any()) == ([2**63 - 2], False)
