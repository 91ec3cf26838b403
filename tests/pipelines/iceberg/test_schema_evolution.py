import pyarrow as pa
import pytest

from nevermore.pipelines.errors import SchemaConflictError
from nevermore.pipelines.iceberg.schema_evolution import evolve, iceberg_fields, iceberg_type, takes
from nevermore.scan_core.model.schema import NestedField, PrimitiveType, Schema, StructType, parse_type


def schema(**columns: str) -> Schema:
    return Schema(
        0, tuple(NestedField(i, name, parse_type(text)) for i, (name, text) in enumerate(columns.items(), start=1))
    )


def fields(**columns: str) -> tuple[NestedField, ...]:
    return schema(**columns).fields


def test_same_columns_change_nothing() -> None:
    evolution = evolve(schema(id="long", name="string"), fields(name="string", id="int"), 2)
    assert not evolution.changed
    assert not evolution.clashes


def test_new_column_gets_an_id_above_all_others_and_is_optional() -> None:
    evolution = evolve(schema(id="long"), fields(id="long", name="string"), 7)
    added = evolution.schema.find("name")
    assert (added.field_id, added.required) == (8, False)


def test_dropped_column_stays() -> None:
    evolution = evolve(schema(id="long", name="string"), fields(id="long"), 2)
    assert evolution.schema.names == ("id", "name")
    assert not evolution.changed


def test_required_column_that_goes_missing_becomes_optional() -> None:
    current = Schema(0, (NestedField(1, "id", PrimitiveType("long"), required=True),))
    evolution = evolve(current, fields(other="int"), 1)
    assert not evolution.schema.find("id").required


@pytest.mark.parametrize(
    ("have", "feed", "wider"),
    [("int", "long", "long"), ("float", "double", "double"), ("decimal(9,2)", "decimal(12,2)", "decimal(12,2)")],
)
def test_wider_type_promotes_the_column(have: str, feed: str, wider: str) -> None:
    evolution = evolve(schema(a=have), fields(a=feed), 1)
    assert evolution.schema.find("a").type == parse_type(wider)
    assert evolution.schema.find("a").field_id == 1


@pytest.mark.parametrize(
    ("have", "feed"),
    [
        ("long", "int"),
        ("double", "float"),
        ("decimal(12,2)", "decimal(9,1)"),
        ("decimal(10,0)", "int"),
        ("double", "int"),
    ],
)
def test_narrower_type_fits_the_column(have: str, feed: str) -> None:
    evolution = evolve(schema(a=have), fields(a=feed), 1)
    assert not evolution.changed
    assert not evolution.clashes


@pytest.mark.parametrize(
    ("have", "feed"),
    [("int", "string"), ("long", "double"), ("date", "timestamp"), ("decimal(9,2)", "decimal(9,3)"), ("string", "int")],
)
def test_type_that_iceberg_cannot_promote_clashes_by_name(have: str, feed: str) -> None:
    evolution = evolve(schema(a=have), fields(a=feed), 1)
    assert not evolution.changed
    assert "column 'a'" in str(evolution.clashes[0])


def test_new_member_of_a_struct_is_added_inside_it() -> None:
    current = Schema(0, (NestedField(1, "s", StructType((NestedField(2, "x", PrimitiveType("int")),))),))
    wanted = iceberg_fields(pa.struct([("s", pa.struct([("x", pa.int64()), ("y", pa.string())]))]))
    evolved = evolve(current, wanted, 2).schema.find("s").type
    assert isinstance(evolved, StructType)
    assert [(m.field_id, m.name, str(m.type)) for m in evolved.fields] == [(2, "x", "long"), (3, "y", "string")]


def test_columns_without_any_value_are_left_out() -> None:
    struct = pa.struct([("a", pa.null()), ("b", pa.list_(pa.null())), ("c", pa.int32())])
    assert [f.name for f in iceberg_fields(struct)] == ["c"]


@pytest.mark.parametrize(
    ("arrow", "iceberg"),
    [
        (pa.uint64(), "decimal(20,0)"),
        (pa.uint32(), "long"),
        (pa.int8(), "int"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.binary(4), "fixed[4]"),
        (pa.uuid(), "uuid"),
        (pa.binary(16), "uuid"),
        (pa.timestamp("ns", "UTC"), "timestamptz"),
        (pa.timestamp("ms"), "timestamp"),
        (pa.time32("ms"), "time"),
        (pa.date64(), "date"),
    ],
)
def test_arrow_types_map_to_iceberg(arrow: pa.DataType, iceberg: str) -> None:
    assert iceberg_type(arrow) == parse_type(iceberg)


def test_arrow_type_without_counterpart_is_named() -> None:
    with pytest.raises(SchemaConflictError, match="duration"):
        iceberg_type(pa.duration("s"))


def test_decimal_takes_integers_only_where_all_digits_fit() -> None:
    assert takes(PrimitiveType("decimal", (12, 2)), PrimitiveType("int"))
    assert not takes(PrimitiveType("decimal", (10, 2)), PrimitiveType("int"))


@pytest.mark.parametrize(("have", "feed"), [("int", "string"), ("string", "long"), ("decimal(9,2)", "decimal(9,3)")])
def test_a_column_of_another_type_may_become_a_new_one(have: str, feed: str) -> None:
    evolution = evolve(
        schema(id="long", a=have, b="int"), fields(id="long", a=feed, b="long"), 9, replaces=lambda path: path == "a"
    )
    assert evolution.schema.names == ("id", "a", "b")
    assert (evolution.schema.find("a").field_id, evolution.schema.find("a").type) == (10, parse_type(feed))
    assert (evolution.schema.find("b").field_id, evolution.schema.find("b").type) == (3, parse_type("long"))
    assert not evolution.clashes


def test_only_the_member_that_clashes_becomes_a_new_one() -> None:
    rows = pa.struct([("n", pa.int32()), ("list", pa.list_(pa.int32())), ("s", pa.string())])
    current = Schema(0, iceberg_fields(pa.schema({"key": pa.struct([("n", pa.int32())]), "after": rows})))
    now = pa.struct([("n", pa.string()), ("list", pa.list_(pa.string())), ("s", pa.string())])
    wanted = iceberg_fields(pa.schema({"key": pa.struct([("n", pa.string())]), "after": now}))
    evolution = evolve(current, wanted, 50, replaces=lambda path: path.startswith("after."))
    members = evolution.schema.find("after").type
    assert isinstance(members, StructType)
    assert [(m.name, m.field_id > 50) for m in members.fields] == [("n", True), ("list", True), ("s", False)]
    assert [clash.column for clash in evolution.clashes] == ["key.n"]


def test_a_column_that_identifies_rows_stays() -> None:
    current = Schema(0, (NestedField(1, "id", PrimitiveType("long"), required=True),), identifier_field_ids=(1,))
    assert [c.column for c in evolve(current, fields(id="string"), 1, replaces=lambda _: True).clashes] == ["id"]
