from typing import Any

import pytest

from pipelines.errors import SchemaConflictError
from pipelines.spark_types import evolved_schema, iceberg_fields
from scan_core.schema import NestedField, PrimitiveType, Schema


def _spark(**types: Any) -> dict[str, Any]:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    return {"type": "struct", "fields": fields}


def test_every_type_that_iceberg_has_is_mapped() -> None:
    fields = iceberg_fields(
        _spark(
            a="byte", b="integer", c="long", d="decimal(10,2)", e="timestamp", f="timestamp_ntz", g="date", h="string"
        )
    )
    assert [str(f.type) for f in fields] == [
        "int", "int", "long", "decimal(10, 2)", "timestamptz", "timestamp", "date", "string",
    ]  # fmt: skip
    assert [f.field_id for f in fields] == list(range(1, 9))
    assert not any(f.required for f in fields)


def test_nested_types_get_ids_of_their_own() -> None:
    struct = _spark(x="long", y={"type": "array", "elementType": "string", "containsNull": True})
    mapped = {"type": "map", "keyType": "string", "valueType": struct, "valueContainsNull": True}
    schema = Schema(0, iceberg_fields(_spark(m=mapped, n="long")))
    assert len(set(schema.field_ids)) == len(schema.field_ids)
    assert str(schema.find("m").type) == "map<string, struct<x: long, y: list<string>>>"


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"a": "void"}, r"column 'a' is NULL without a type: write cast\(null as"),
        ({"a": "interval day to second"}, "column 'a': Iceberg has no type for Spark's interval"),
        ({"a": {"type": "udt"}}, "no type for Spark's udt"),
    ],
)
def test_a_type_without_counterpart_is_refused(types: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaConflictError, match=message):
        iceberg_fields(_spark(**types))


def test_a_name_given_twice_is_refused() -> None:
    twice = {"type": "struct", "fields": [*_spark(a="long")["fields"], *_spark(a="long")["fields"]]}
    with pytest.raises(SchemaConflictError, match="several columns called a"):
        iceberg_fields(twice)


def _evolve(table: dict[str, Any], result: dict[str, Any]) -> tuple[Schema, Schema]:
    have = Schema(3, iceberg_fields(_spark(**table)))
    return have, evolved_schema(have, iceberg_fields(_spark(**result)), max(have.field_ids))


def test_an_unchanged_or_narrower_result_leaves_the_schema_alone() -> None:
    have, evolved = _evolve({"a": "long", "b": "double", "c": "string"}, {"b": "float", "a": "integer"})
    assert evolved is have


def test_new_columns_come_last_and_types_widen_under_the_same_id() -> None:
    _, evolved = _evolve(
        {"a": "integer", "d": "decimal(10,2)", "s": _spark(x="long")},
        {"a": "long", "d": "decimal(12,2)", "s": _spark(x="long", y="string"), "new": "date"},
    )
    assert [(f.name, f.field_id, str(f.type)) for f in evolved.fields] == [
        ("a", 1, "long"),
        ("d", 2, "decimal(12, 2)"),
        ("s", 3, "struct<x: long, y: string>"),
        ("new", 6, "date"),
    ]
    assert evolved.path(5)[-1].name == "y"


def test_a_type_that_iceberg_cannot_change_is_refused_with_what_to_do() -> None:
    with pytest.raises(SchemaConflictError, match="column 'a' is long in the published table and string in the result"):
        _evolve({"a": "long"}, {"a": "string"})


def test_required_columns_stay_required() -> None:
    have = Schema(0, (NestedField(1, "a", PrimitiveType("int"), required=True),))
    assert evolved_schema(have, iceberg_fields(_spark(a="long")), 1).fields[0].required
