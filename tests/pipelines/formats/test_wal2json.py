"""wal2json: both versions, unsent columns, keys."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from nevermore.pipelines.decode.batches import Complete
from nevermore.pipelines.formats.options import Wal2JsonOptions
from nevermore.pipelines.formats.wal2json import complete_transactions
from tests.pipelines.formats.decoded_feed import TABLE, changes, read, reasons, wal


def test_wal2json_column_that_an_update_lacks_is_unchanged() -> None:
    decoded = read(
        "wal2json",
        wal("I", {"id": 1, "n": 1.5, "t": "long"}),
        wal("U", {"id": 1, "n": 2}, {"id": 1}),
        wal("U", {"id": 1, "n": 2}, {"id": 1, "n": 1.5, "t": "long"}),
    )
    assert changes(decoded, "unchanged", "after")[1:] == [
        {"unchanged": ["t"], "after": {"id": 1, "n": Decimal("2.000"), "t": None}},
        {"unchanged": [], "after": {"id": 1, "n": Decimal("2.000"), "t": "long"}},
    ]


def test_wal2json_columns_of_the_mirror_that_no_event_has_are_unchanged_too() -> None:
    decoded = read("wal2json", wal("U", {"id": 1, "n": 2}, {"id": 1}), known_types={"id": pa.int32(), "t": pa.string()})
    assert changes(decoded, "unchanged") == [{"unchanged": ["t"]}]


def test_wal2json_key_is_the_primary_key_or_else_the_identity() -> None:
    primary = read("wal2json", wal("I", {"id": 1, "t": "a"}, pk=[{"name": "id", "type": "integer"}]), key=())
    assert primary.tables[TABLE].key == ("id",)
    identity = read("wal2json", wal("U", {"id": 2, "t": "a"}, {"id": 1}), wal("I", {"id": 1, "t": "a"}), key=())
    assert identity.tables[TABLE].key == ("id",)
    assert changes(identity, "key") == [{"key": {"id": 1}}, {"key": {"id": 1}}]
    nothing = read("wal2json", wal("I", {"id": 1, "t": "a"}), key=())
    assert reasons(nothing)[0].startswith("no key")


def test_wal2json_numbers_keep_their_digits() -> None:
    event = json.dumps(wal("I", {"id": 1, "n": 0})).replace('"value": 0', '"value": 4.560').encode()
    assert changes(read("wal2json", event), "after")[0]["after"]["n"] == Decimal("4.560")


def test_wal2json_version_1_with_uneven_lists_is_refused_and_the_rest_goes_on() -> None:
    good = {
        "kind": "insert",
        "schema": "p",
        "table": "products",
        "columnnames": ["id"],
        "columntypes": ["integer"],
        "columnvalues": [1],
    }
    bad = {**good, "columnvalues": []}
    decoded = read("wal2json", {"change": [good]}, {"change": [bad]}, {"change": [{**good, "columnvalues": [3]}]})
    assert [c["key"] for c in changes(decoded, "key")] == [{"id": 1}, {"id": 3}]
    assert "differ in number" in reasons(decoded)[0]


@pytest.mark.parametrize(
    ("actions", "wanted"),
    [("BICBI", 3), ("ICBIU", 2), ("BIC", 3), ("BIUD", 0), ("IUD", None), ("BICK", 4), ("", None)],
)
def test_events_of_finished_transactions_are_counted(actions: str, wanted: int | None) -> None:
    documents = pa.array([json.dumps({"action": a}).encode() for a in actions], pa.binary())
    found = complete_transactions(documents, Wal2JsonOptions())
    assert found == (None if wanted is None else Complete(wanted, of_transactions=True))
