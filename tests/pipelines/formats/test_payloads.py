"""Events of Debezium in a `payload`, with a schema beside it or not, and in messages that were dumped."""

import pytest

from tests.pipelines.formats.decoded_feed import changes, read, reasons


@pytest.mark.parametrize("format_name", [None, "debezium-json"])
def test_payload_without_a_schema_is_an_event_and_beside_other_members_a_column(format_name: str | None) -> None:
    event = {"op": "c", "before": None, "after": {"id": 1}, "source": {"table": "products"}}
    enveloped = {"schema": None, "payload": {**event, "after": {"id": 2}}}
    row = {"payload": {"a": 1}, "id": 3}
    decoded = read(format_name, {"payload": event}, enveloped, row, {"payload": None}, {"payload": 5})
    assert [(c["op"], c["after"]["id"]) for c in changes(decoded)] == [("c", 1), ("c", 2), ("u", 3)]
    assert (dict(decoded.skipped), len(reasons(decoded))) == ({"tombstone": 1}, 1)


def test_key_in_a_payload_without_a_schema_is_the_key() -> None:
    event = {"op": "c", "before": None, "after": {"id": 1, "n": "a"}, "source": {"table": "products"}}
    decoded = read("debezium-json", {"key": {"payload": {"id": 1}}, "value": {"payload": event}}, key=())
    assert [c["key"] for c in changes(decoded)] == [{"id": 1}]


def test_message_is_a_tombstone_only_by_its_own_value() -> None:
    event = {"op": "c", "before": None, "after": {"id": 1}, "source": {"table": "products"}}
    decoded = read(
        "debezium-json",
        {"key": {"id": 1}, "value": event},
        {"key": {"id": 2}, "payload": {**event, "after": {"id": 2}}},
    )
    assert [c["after"]["id"] for c in changes(decoded)] == [1, 2]


def test_lists_without_elements_name_the_option_that_types_them() -> None:
    for value in ([], [[]], [None]):
        (reason,) = reasons(read("rows", {"op": "c", "id": 1, "tags": value}))
        assert "has no element that shows the type of the column; add types: {tags.element: string}" in reason
    assert reasons(read("rows", {"op": "c", "id": 1, "tags": []}, {"op": "c", "id": 2, "tags": ["x"]})) == []
