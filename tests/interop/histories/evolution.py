"""Steps that change a table's schema, its partition spec or its format version."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.interop.histories.gateway import Java
from tests.interop.histories.table import Fields
from tests.interop.histories.values import DOMAINS, PROMOTIONS, leaves

if TYPE_CHECKING:
    from tests.interop.histories.history import History

DEFAULTS = {
    "int": 7,
    "long": 2**40,
    "string": "ü default",
    "double": 1.5,
    "float": 2.5,
    "boolean": True,
    "date": "2024-02-29",
    "timestamp": "2024-02-29T01:02:03.000004",
    "timestamptz": "2024-02-29T01:02:03.000004+00:00",
    "time": "01:02:03.000004",
    "decimal(9,2)": "1.50",
    "decimal(30,4)": "1.5000",
    "uuid": "00000000-0000-0000-0000-000000000001",
}


def transforms(kind: str) -> list[str]:
    """The transforms that Java takes for a type."""
    if kind == "unknown":
        return ["identity"]
    name = kind.partition("(")[0].partition("[")[0]
    # of fixed values Java writes one byte too many into manifests, and cannot read them itself
    found = ["void"] if name == "fixed" else ["identity", "identity", "void"]
    if name not in {"boolean", "float", "double"}:
        found += ["bucket", "bucket"]
    if name in {"int", "long", "decimal", "string", "binary"}:
        found.append("truncate")
    if name.startswith("timestamp"):
        found += ["year", "month", "day", "hour"]
    return [*found, "year", "month", "day"] if name == "date" else found


def term(java: Java, name: str, transform: str, rng: random.Random) -> Any:
    """A term of a partition spec."""
    expressions = java.iceberg.expressions.Expressions
    match transform:
        case "identity":
            return expressions.ref(name)
        case "void":
            return expressions.transform(name, java.iceberg.transforms.Transforms.alwaysNull())
        case "bucket" | "truncate":
            return getattr(expressions, transform)(name, rng.choice([1, 2, 3, 16]))
        case _:
            return getattr(expressions, transform)(name)


def change_schema(history: "History") -> str:
    """One to three changes in one commit."""
    update = history.table.table.updateSchema()
    did = [_change(history, update) for _ in range(history.rng.choice([1, 1, 2, 3]))]
    update.commit()
    return "; ".join(did)


def change_spec(history: "History") -> str:
    """A partition field added or removed, perhaps all of them, perhaps beside the default spec."""
    rng, table = history.rng, history.table
    update, spec = table.table.updateSpec(), table.table.spec()
    present = [f.name() for f in spec.fields()]
    if present and history.one_in(2):
        gone = present if history.one_in(2) else [rng.choice(present)]
        for name in gone:
            update.removeField(name)
        did = f"without {gone}"
    else:
        path, kind = rng.choice(list(_paths(table.fields())))
        transform = rng.choice(transforms(kind))
        update.addField(term(history.java, path, transform, rng))
        did = f"{transform} of {path}"
    if history.one_in(3):
        update = update.addNonDefaultSpec()
        did += ", not as default"
    update.commit()
    return did


def upgrade(history: "History") -> str:
    """To the next format version."""
    version = str(min(history.table.version + 1, 3))
    history.table.table.updateProperties().set("format-version", version).commit()
    return version


def _change(history: "History", update: Any) -> str:
    rng, fields = history.rng, history.table.fields()
    columns = [f["name"] for f in fields]
    members = [
        (f["name"], way, names)
        for f in fields
        if isinstance(f["type"], dict)
        for way, names in _members(f["type"])
        if names
    ]
    kinds = ["rename", "drop", "promote", "promote", "add", "add", "move"] + (["member"] * 3 if members else [])
    match rng.choice(kinds):
        case "rename":
            old, new = rng.choice(columns), history.new_name()
            update.renameColumn(old, new)
            return f"rename {old} to {new}"
        case "drop":
            name = rng.choice(columns)
            update.deleteColumn(name)
            history.dropped_names.append(name)
            return f"drop {name}"
        case "promote":
            return _promote(history, update, fields)
        case "add":
            return _add(history, update)
        case "move":
            name = rng.choice(columns)
            update.moveFirst(name)
            return f"move {name}"
        case _:
            return _change_member(history, update, members)


def _promote(history: "History", update: Any, fields: Fields) -> str:
    usable = [(path, kind) for path, kind in _paths(fields) if kind in PROMOTIONS]
    if not usable:
        return "nothing to promote"
    path, kind = history.rng.choice(usable)
    update.updateColumn(path, _type(history.java, PROMOTIONS[kind]))
    return f"promote {path} from {kind}"


def _add(history: "History", update: Any) -> str:
    rng, name = history.rng, history.new_name()
    if history.table.version < 3 or history.one_in(2):
        kind = rng.choice([t for t in DOMAINS if not t.endswith("_ns") or history.table.version > 2])
        update.addColumn(name, _type(history.java, kind))
        return f"add {name} {kind}"
    kind = rng.choice(list(DEFAULTS))
    default = history.java.iceberg.expressions.Literal.of(DEFAULTS[kind]).to(_type(history.java, kind))
    add = update.addRequiredColumn if history.one_in(3) else update.addColumn
    add(name, _type(history.java, kind), "with a default", default)
    return f"add {name} {kind} with a default"


def _change_member(history: "History", update: Any, structs: list[tuple[str, str, list[str]]]) -> str:
    rng = history.rng
    column, way, names = rng.choice(structs)
    parent = f"{column}.{way}" if way else column
    path = f"{parent}.{rng.choice(names)}"
    # a struct without members cannot be written
    may_drop = len(names) > 1 and history.drops_member is not update
    match rng.choice(["rename", "drop", "add", "move"] if may_drop else ["rename", "add"]):
        case "rename":
            update.renameColumn(path, f"m{history.new_name()}")
            return f"rename {path}"
        case "drop":
            update.deleteColumn(path)
            history.drops_member = update
            return f"drop {path}"
        case "move":
            update.moveFirst(path)
            return f"move {path}"
        case _:
            kind, name = rng.choice(["int", "string", "date"]), history.new_name()
            update.addColumn(parent, name, _type(history.java, kind))
            return f"add {name} {kind} to {parent}"


def _members(kind: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The struct right within a column, if there is one: the way to it and the names of its members."""
    match kind:
        case {"type": "struct"}:
            yield "", [f["name"] for f in kind["fields"]]
        case {"type": "list", "element": {"type": "struct", "fields": fields}}:
            yield "element", [f["name"] for f in fields]
        case {"type": "map", "value": {"type": "struct", "fields": fields}}:
            yield "value", [f["name"] for f in fields]


def _paths(fields: Fields) -> Iterator[tuple[str, str]]:
    """Names, with dots, and types of the primitive fields outside of lists and maps."""
    names = {f["id"]: f["name"] for f in _all(fields)}
    for path, leaf in leaves(fields):
        yield ".".join(names[i] for i in path), leaf["type"]


def _all(fields: Fields) -> Iterator[dict[str, Any]]:
    for field in fields:
        yield field
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _all(field["type"]["fields"])


def _type(java: Java, kind: str) -> Any:
    return java.iceberg.types.Types.fromPrimitiveString(kind)
