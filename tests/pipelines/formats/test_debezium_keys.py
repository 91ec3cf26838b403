"""Debezium events: where the key comes from, and what has none."""

from tests.pipelines.formats.debezium_events import TABLE, changes, event, read, reasons


def test_before_that_lacks_the_key_is_no_key_change() -> None:
    decoded = read(event("u", {"id": 7, "n": 1}, {"n": 0}))
    assert changes(decoded, "key") == [{"key": {"id": 7}}]


def test_message_key_identifies_a_delete_without_before() -> None:
    decoded = read(event("c", {"id": 1}), event("d"), keys=[{"id": 1}, {"id": 9}])
    assert changes(decoded, "op", "key")[1] == {"op": "d", "key": {"id": 9}}


def test_key_comes_from_the_messages_where_none_is_configured() -> None:
    decoded = read(event("c", {"a": 1, "b": 2, "n": 3}), keys=[{"b": 2, "a": 1}], key=())
    assert decoded.tables[TABLE].key == ("b", "a")


def test_without_any_key_events_are_rejected_aloud() -> None:
    decoded = read(event("c", {"a": 1}), key=())
    assert reasons(decoded) == [(1, "no key: the feed declares none; set it in the config (key: [...])")]


def test_identity_of_a_table_without_key_is_the_whole_row() -> None:
    decoded = read(event("u", {"a": 1, "b": 2}, {"a": 1, "b": 1}), key=(), identity_full=True)
    assert changes(decoded, "key") == [{"key": {"a": 1, "b": 1}}]


def test_key_columns_that_only_the_message_key_has_are_filled_in() -> None:
    decoded = read({"n": "a"}, keys=[{"id": 4}], key=())
    assert changes(decoded, "key", "after") == [{"key": {"id": 4}, "after": {"n": "a", "id": 4}}]
