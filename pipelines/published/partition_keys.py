"""Keys of partitions by value, which are text, as values of the column that a published table is partitioned by."""

from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from pipelines.errors import ConfigError
from scan_core.schema import PrimitiveType, Type


def typed_key(key: str, kind: Type) -> Any:
    """The value of a column of this type that a key stands for.

    Raises:
        ConfigError: none.
    """
    name = kind.name if isinstance(kind, PrimitiveType) else ""
    try:
        match name:
            case "int" | "long":
                return int(key)
            case "boolean":
                return {"true": True, "false": False}[key.lower()]
            case "date":
                return date.fromisoformat(key)
            case "timestamp":
                return datetime.fromisoformat(key)
            case "timestamptz":
                moment = datetime.fromisoformat(key)
                return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            case "decimal":
                return Decimal(key)
            case _:
                return key
    except (ValueError, KeyError, InvalidOperation) as error:
        raise ConfigError(f"{key!r} is no {kind}, which the partition column is") from error
