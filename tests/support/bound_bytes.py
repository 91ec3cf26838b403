"""Values as the bytes that manifests hold: the single-value form of the Iceberg specification."""

import struct
from typing import Any

from nevermore.scan_core.model.schema import PrimitiveType
from nevermore.scan_core.model.statistics import unscaled_value


def encode_bound(value: Any, iceberg_type: PrimitiveType) -> bytes:
    """The bytes of a value of this type."""
    match iceberg_type.name:
        case "boolean":
            return b"\1" if value else b"\0"
        case "int" | "date":
            return struct.pack("<i", value)
        case "long" | "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns":
            return struct.pack("<q", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return str(value).encode()
        case "uuid" | "fixed" | "binary":
            return bytes(value)
        case "decimal":
            unscaled = unscaled_value(value, iceberg_type.parameters[1])
            return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
        case name:
            raise ValueError(f"type {name} has no single-value form")
