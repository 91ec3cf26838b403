"""Protobuf schemas and messages of Debezium for tests, made by the protobuf library itself."""

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from nevermore.pipelines.decode.protobuf import known_file
from nevermore.pipelines.decode.schema_registry import RegisteredSchema

IMPORTS = ("google/protobuf/timestamp.proto", "google/protobuf/duration.proto", "google/protobuf/wrappers.proto")
OTHER_IMPORTS = ("google/type/date.proto", "google/type/timeofday.proto", "confluent/type/decimal.proto")


def field(
    name: str, number: int, kind: str, label: str = "", *, oneof: int | None = None, default: str | None = None
) -> FieldDescriptorProto:
    """A field: a scalar type, or the name of a type with its package; `optional`, `required` or `repeated`."""
    of_field = FieldDescriptorProto
    made = of_field(name=name, number=number, label=of_field.LABEL_OPTIONAL)
    if label in {"required", "repeated"}:
        made.label = of_field.Label.Value(f"LABEL_{label.upper()}")
    if "." in kind:
        made.type_name = f".{kind}"
    else:
        made.type = of_field.Type.Value(f"TYPE_{kind.upper()}")
    made.proto3_optional = label == "optional"
    if oneof is not None:
        made.oneof_index = oneof
    if default is not None:
        made.default_value = default
    return made


def message(name: str, *fields: FieldDescriptorProto, oneofs: Sequence[str] = ()) -> DescriptorProto:
    """A message type; fields with `optional` get the oneofs that the language wants for them."""
    made = DescriptorProto(name=name)
    for oneof in oneofs:
        made.oneof_decl.add(name=oneof)
    for given in fields:
        if given.proto3_optional:
            given.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{given.name}")
        made.field.append(given)
    return made


def with_map(made: DescriptorProto, name: str, number: int, key: str, value: str) -> DescriptorProto:
    """A message type with one more field, which is a map."""
    entry = message(f"{name.capitalize()}Entry", field("key", 1, key), field("value", 2, value))
    entry.options.map_entry = True
    made.nested_type.append(entry)
    made.field.add(
        name=name, number=number, type=11, label=FieldDescriptorProto.LABEL_REPEATED, type_name=f"{entry.name}"
    )
    return made


def file(
    *messages: DescriptorProto, syntax: str = "proto3", imports: Sequence[str] = (*IMPORTS, *OTHER_IMPORTS)
) -> FileDescriptorProto:
    """A file of package `shop` with an enumeration `Color`."""
    made = FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax, dependency=imports)
    color = made.enum_type.add(name="Color")
    for name, number in (("RED", 0), ("BLUE", 3)):
        color.value.add(name=name, number=number)
    made.message_type.extend(messages)
    if syntax != "proto3":
        for of_message in made.message_type:
            for given in of_message.field:
                given.ClearField("proto3_optional")
                given.ClearField("oneof_index")
            del of_message.oneof_decl[:]
    return made


def registered(made: FileDescriptorProto, references: Sequence[FileDescriptorProto] = ()) -> RegisteredSchema:
    """A schema as registries answer."""
    texts = [(f.name, b64encode(f.SerializeToString()).decode()) for f in references]
    return RegisteredSchema(b64encode(made.SerializeToString()).decode(), tuple(texts))


def class_of(made: FileDescriptorProto, name: str, references: Sequence[FileDescriptorProto] = ()) -> Any:
    """The class of a message type of the file."""
    pool = DescriptorPool()
    known = {f.name for f in references}

    @cache
    def add(wanted: str) -> None:
        needed = known_file(wanted)
        for other in needed.dependency:
            add(other)
        pool.Add(needed)

    for given in (*references, made):
        for wanted in given.dependency:
            if wanted not in known:
                add(wanted)
        pool.Add(given)
    return GetMessageClass(pool.FindMessageTypeByName(f"{made.package}.{name}"))


def envelope(row: DescriptorProto, **options: Any) -> FileDescriptorProto:
    """The file of Debezium's envelope of rows; Confluent's converter writes such, with the message Envelope first."""
    source = message(
        "Source",
        *(field(n, i, "string") for i, n in enumerate(("db", "schema", "table"), 1)),
        field("ts_ms", 4, "int64"),
    )
    made = message(
        "Envelope",
        field("before", 1, f"shop.{row.name}"),
        field("after", 2, f"shop.{row.name}"),
        field("source", 3, "shop.Source"),
        field("op", 4, "string"),
        field("ts_ms", 5, "int64"),
    )
    return file(made, row, source, **options)


def framed(value: bytes, schema_id: int, position: bytes = b"\0") -> bytes:
    """A message in the wire format of a registry."""
    return b"\0" + schema_id.to_bytes(4, "big") + position + value
