"""Types from the config for members of structs, elements of lists, keys and values of maps: `types: {address.zip: string}`.

A path goes from the column inwards: names of members, `element`, `key`, `value`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from pipelines.errors import ConfigError
from pipelines.formats.value_type import ValueType


def paths_below(
    explicit: Mapping[str, ValueType], column: str, columns: Sequence[str]
) -> dict[tuple[str, ...], ValueType]:
    """The types that `explicit` has for what is inside a column; a column of the very name of a path takes its type."""
    prefix = f"{column}."
    return {
        tuple(name.removeprefix(prefix).split(".")): wanted
        for name, wanted in explicit.items()
        if name.startswith(prefix) and name not in columns
    }


def with_members(found: ValueType, wanted: Mapping[tuple[str, ...], ValueType], column: str) -> ValueType:
    """The type with these types inside it.

    Raises:
        ConfigError: a path into what has no such member.
    """
    if not wanted or pa.types.is_null(found.arrow):
        return found
    known = dict(found.members)
    lost = {path[0] for path in wanted} - set(known)
    if not pa.types.is_nested(found.arrow) or (lost and not pa.types.is_struct(found.arrow)):
        inside = ", ".join(known) or "nothing"
        shown = ", ".join(sorted(".".join((column, *path)) for path in wanted))
        raise ConfigError(f"types: {shown}: {column} is {found.arrow}, inside which there is {inside}")
    for name in dict.fromkeys(path[0] for path in wanted):
        own = wanted.get((name,), known.get(name, ValueType(pa.null())))
        deeper = {path[1:]: t for path, t in wanted.items() if path[0] == name and len(path) > 1}
        known[name] = with_members(own, deeper, f"{column}.{name}")
    members = tuple((name, member) for name, member in known.items() if not pa.types.is_null(member.arrow))
    return replace(found, arrow=_arrow(found.arrow, dict(members)), members=members)


def _arrow(arrow: pa.DataType, members: Mapping[str, ValueType]) -> pa.DataType:
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(name, member.arrow) for name, member in members.items()])
    if pa.types.is_map(arrow):
        key = pa.field("key", members["key"].arrow, nullable=False)
        return pa.map_(key, pa.field("value", members["value"].arrow))
    return pa.list_(pa.field("element", members["element"].arrow))
