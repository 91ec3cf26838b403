"""Dates of wal2json as servers with another DateStyle than ISO write them: by an option, never by a guess."""

import datetime as dt
import re
from typing import Any

import pytest

from nevermore.pipelines.errors import ConfigError
from tests.pipelines.formats.decoded_feed import changes, read, reasons

DAY = dt.date(2024, 11, 12)
INSTANT = dt.datetime(2024, 11, 12, 7, 37, 16, 250000, tzinfo=dt.UTC)
MOMENT = INSTANT.replace(tzinfo=None)
STYLES = {
    "ISO, DMY": ("2024-11-12", "2024-11-12 07:37:16.25", "2024-11-12 09:37:16.25+02"),
    "SQL, MDY": ("11/12/2024", "11/12/2024 07:37:16.25", "11/12/2024 07:37:16.25 UTC"),
    "sql,dmy": ("12/11/2024", "12/11/2024 07:37:16.25", "12/11/2024 09:37:16.25 +02"),
    "Postgres, MDY": ("11-12-2024", "Tue Nov 12 07:37:16.25 2024", "Tue Nov 12 07:37:16.25 2024 UTC"),
    "Postgres, DMY": ("12-11-2024", "Tue 12 Nov 07:37:16.25 2024", "Tue 12 Nov 07:37:16.25 2024 GMT"),
    "German, DMY": ("12.11.2024", "12.11.2024 07:37:16.25", "12.11.2024 07:37:16.25 UTC"),
}


def event(day: Any, moment: Any = None, instant: Any = None) -> dict[str, Any]:
    values = {
        "id": ("integer", 1),
        "d": ("date", day),
        "m": ("timestamp without time zone", moment),
        "i": ("timestamp with time zone", instant),
    }
    columns = [{"name": name, "type": kind, "value": value} for name, (kind, value) in values.items()]
    return {"action": "I", "schema": "shop", "table": "products", "columns": columns}


@pytest.mark.parametrize("style", STYLES)
def test_dates_of_the_style_are_read(style: str) -> None:
    (change,) = changes(read("wal2json", event(*STYLES[style]), options={"date_style": style}))
    assert change["after"] == {"id": 1, "d": DAY, "m": MOMENT, "i": INSTANT}


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("SQL, MDY", "31/12/2024"),
        ("SQL, DMY", "12/31/2024"),
        ("SQL, DMY", "2024-12-31"),
        ("SQL, DMY", "31.12.2024"),
        ("German", "31/12/2024"),
        ("German", "2024-12-31"),
        ("Postgres, DMY", "31/12/2024"),
        ("Postgres, DMY", "12-31-2024"),
        ("ISO, DMY", "31/12/2024"),
    ],
)
def test_date_of_another_style_is_refused(style: str, text: str) -> None:
    assert len(reasons(read("wal2json", event(text), options={"date_style": style}))) == 1


def test_day_that_is_no_month_and_unknown_zones_are_refused() -> None:
    decoded = read(
        "wal2json",
        event("31/12/2024"),
        event(None, None, "12/11/2024 07:37:16 IST"),
        options={"date_style": "SQL, MDY"},
    )
    assert len(reasons(decoded)) == 2


def test_without_the_option_the_reason_names_it() -> None:
    decoded = read("wal2json", event("12/11/2024"), event("12.11.2024"), event(None, "Tue 12 Nov 07:37:16 2024"))
    assert len(reasons(decoded)) == 3
    assert all("date_style: 'SQL, DMY'" in reason for reason in reasons(decoded))


@pytest.mark.parametrize("style", ["SQL", "Postgres", "SQL, YMD", "iso8601", "", "DMY"])
def test_style_that_leaves_the_order_open_is_refused(style: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"not {style!r}")):
        read("wal2json", event("12/11/2024"), options={"date_style": style})


def test_version_1_and_encodings_of_other_feeds_take_the_style() -> None:
    one = {
        "change": [
            {
                "kind": "insert",
                "schema": "s",
                "table": "products",
                "columnnames": ["id", "d"],
                "columntypes": ["integer", "date"],
                "columnvalues": [1, "12/11/2024"],
            }
        ]
    }
    (change,) = changes(read("wal2json", one, options={"date_style": "SQL, DMY"}))
    assert change["after"]["d"] == DAY
    row = {"op": "I", "id": 1, "d": "12.11.2024"}
    (change,) = changes(read("rows", row, types={"d": "date"}, encodings={"d": "german"}))
    assert change["after"]["d"] == DAY
    with pytest.raises(ConfigError, match=r"german is not an encoding of d, which is string; valid are text"):
        read("rows", row, types={"d": "string"}, encodings={"d": "german"})
