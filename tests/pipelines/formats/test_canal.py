"""Canal: messages of several rows, MySQL types, truncates and DDL."""

import pytest

from tests.pipelines.formats.decoded_feed import canal, changes, read, reasons


def test_canal_message_of_several_rows_gives_a_change_each_in_order() -> None:
    decoded = read(
        "canal-json",
        canal("INSERT", [{"id": "1", "n": "a"}, {"id": "2", "n": None}]),
        canal("UPDATE", [{"id": "3", "n": "b"}, {"id": "2", "n": "c"}], [{"id": "1"}, {"n": None}]),
        canal("DELETE", [{"id": "2", "n": "c"}]),
        key=(),
    )
    assert changes(decoded) == [
        {"op": "c", "key": {"id": 1}, "before": None, "after": {"id": 1, "n": "a"}},
        {"op": "c", "key": {"id": 2}, "before": None, "after": {"id": 2, "n": None}},
        {"op": "u", "key": {"id": 1}, "before": {"id": 1, "n": "b"}, "after": {"id": 3, "n": "b"}},
        {"op": "u", "key": {"id": 2}, "before": {"id": 2, "n": None}, "after": {"id": 2, "n": "c"}},
        {"op": "d", "key": {"id": 2}, "before": {"id": 2, "n": "c"}, "after": None},
    ]
    assert changes(decoded, "source_offset") == [{"source_offset": n} for n in (1, 1, 2, 2, 3)]


def test_canal_ddl_is_skipped_truncate_applied_and_the_rest_refused() -> None:
    decoded = read(
        "canal-json",
        canal("ALTER", None, isDdl=True, sql="/* x */ ALTER TABLE products ADD n INT"),
        canal("TRUNCATE", None, isDdl=True),
        canal("INSERT", None),
        canal("GUESS", [{"id": "1"}]),
    )
    assert decoded.skipped == {"DDL": 1}
    assert changes(decoded, "op") == [{"op": "t"}]
    assert ["data is missing" in r or "type is none of" in r for r in reasons(decoded)] == [True, True]


@pytest.mark.parametrize("kind", ["QUERY", "CINDEX", "ERASE", "XACOMMIT", "GTID"])
def test_canal_events_without_rows_are_skipped_whether_or_not_they_say_that_they_are_ddl(kind: str) -> None:
    decoded = read("canal-json", canal(kind, None, isDdl=False, sql="x"))
    assert decoded.skipped == {"DDL": 1}
    assert reasons(decoded) == []


def test_canal_values_that_do_not_fit_their_mysql_type_reject_the_message() -> None:
    decoded = read("canal-json", canal("INSERT", [{"id": "1", "n": "a"}, {"id": "one", "n": "b"}]))
    assert changes(decoded, "after") == [{"after": {"id": 1, "n": "a"}}]
    assert reasons(decoded) == ["column id: text 'one' is no long"]


def test_canal_truncate_takes_the_key_of_the_rows_around_it() -> None:
    truncate = canal("TRUNCATE", None, mysqlType=None, pkNames=None, isDdl=True)
    decoded = read("canal-json", canal("INSERT", [{"id": "1", "n": "a"}]), truncate, key=())
    assert [row["op"] for row in changes(decoded)] == ["c", "t"]


@pytest.mark.parametrize(
    "kind",
    [
        "POINT",
        "LINESTRING",
        "POLYGON",
        "MULTIPOINT",
        "MULTILINESTRING",
        "MULTIPOLYGON",
        "GEOMETRY",
        "GEOMETRYCOLLECTION",
        "geomcollection",
    ],
)
def test_spatial_values_are_bytes(kind: str) -> None:
    value = bytes([0, 0, 0, 0, 1, 1, 0, 255])
    message = canal("INSERT", [{"id": "1", "n": value.decode("latin-1")}], mysqlType={"id": "INT", "n": kind})
    (change,) = changes(read("canal-json", message))
    assert change["after"]["n"] == value


def test_change_of_rows_that_says_it_is_ddl_is_refused() -> None:
    decoded = read("canal-json", canal("INSERT", [{"id": "1", "n": "a"}], isDdl=True))
    assert (len(reasons(decoded)), dict(decoded.skipped)) == (1, {})
