"""Changing what manifests say, after a builder wrote them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro


def rewrite_avro(path: str, change: Callable[[list[Any], dict[str, Any]], None], **metadata: str) -> None:
    """Read an Avro file, let `change` edit rows and schema, and write it back."""
    with Path(path).open("rb") as file:
        reader = fastavro.reader(file)
        found, schema = list(reader), json.loads(reader.metadata["avro.schema"])
        kept = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    change(found, schema)
    with Path(path).open("wb") as file:
        fastavro.writer(file, schema, found, metadata=kept | metadata)


def encode_long(number: int) -> bytes:
    """A number that is not negative, as Avro writes it."""
    encoded = bytearray()
    number <<= 1
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
