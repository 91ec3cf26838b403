"""Bounds of columns as manifests hold them: physical values as Iceberg's single values, cut where they are long."""

import struct
from collections.abc import Mapping
from typing import Any

from scan_core.schema import PrimitiveType, Type

BOUND_LENGTH = 16
"""Characters or bytes of a bound: Iceberg's `truncate(16)`."""
KEY_BOUND_LENGTH = 64
"""Bounds of key columns prune deletes, and keys often share a long prefix."""

_PACKED: Mapping[str, str] = {
    "boolean": "<?",
    "int": "<i",
    "date": "<i",
    "float": "<f",
    "double": "<d",
}


def single_value(value: Any, kind: Type) -> bytes:
    """Iceberg's single-value bytes of a physical value: integers for temporal types and unscaled decimals."""
    if not isinstance(kind, PrimitiveType):
        raise TypeError(f"{kind} has no single value")
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if kind.name == "decimal":
        return int(value).to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)
    return struct.pack(_PACKED.get(kind.name, "<q"), value)


def lower_bound(value: Any, kind: PrimitiveType, length: int) -> bytes:
    """The bound, cut to so many characters or bytes."""
    if kind.name == "string":
        return bytes(value.decode(errors="ignore")[:length].encode())
    if kind.name == "binary":
        return bytes(value[:length])
    return single_value(value, kind)


def upper_bound(value: Any, kind: PrimitiveType, length: int) -> bytes | None:
    """The bound, rounded up where it is cut; None if nothing of that length is above all values."""
    if kind.name == "string":
        text = value.decode(errors="ignore")
        if len(text) <= length:
            return bytes(value)
        for end in range(length, 0, -1):
            if (following := _next_character(text[end - 1])) is not None:
                return bytes((text[: end - 1] + following).encode())
        return None
    if kind.name == "binary":
        if len(value) <= length:
            return bytes(value)
        kept = value[:length].rstrip(b"\xff")
        return bytes(kept[:-1]) + bytes([kept[-1] + 1]) if kept else None
    return single_value(value, kind)


def _next_character(character: str) -> str | None:
    """The next code point that UTF-8 can encode."""
    code = ord(character) + 1
    if 0xD800 <= code <= 0xDFFF:
        code = 0xE000
    return chr(code) if code <= 0x10FFFF else None
