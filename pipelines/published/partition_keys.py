"""Keys of partitions by value, which are text, as values of the column that a published table is partitioned by."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from pipelines.errors import ConfigError
from scan_core.schema import PrimitiveType, Type, arrow_type

_LIKE_NULL = re.compile("'*null'*")
"""Text that in a key stands between quotes, for `null` is the key of NULL."""


def key_of_text(text: str) -> str:
    """The key of a partition by text: the text itself, `'null'` for the text null."""
    return f"'{text}'" if _LIKE_NULL.fullmatch(text) else text


def text_of_key(key: str) -> str:
    """The text that a key stands for; the inverse of `key_of_text`."""
    return key[1:-1] if _LIKE_NULL.fullmatch(key) and key[0] == key[-1] == "'" else key


def values_of_key(key: str, kind: Type) -> pa.Array:
    """The one value of a column of this type that a key stands for.

    Raises:
        ConfigError: none.
    """
    try:
        return pa.array([_typed(key, kind)], arrow_type(kind))
    except (ValueError, KeyError, InvalidOperation, OverflowError, pa.ArrowException) as error:
        raise ConfigError(f"{key!r} is no {kind}, which the partition column is") from error


def _typed(key: str, kind: Type) -> Any:
    match kind.name if isinstance(kind, PrimitiveType) else "":
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
            return text_of_key(key)
