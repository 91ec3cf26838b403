"""Maxwell JSON: one row per message, `data` the row (of a delete: the old one), `old` what changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from pipelines.decode.batches import RawEvents
from pipelines.decode.events import (
    Declared,
    Events,
    blank,
    broken_documents,
    counted,
    milliseconds,
    op_codes,
    paths_of,
    refusal,
    strings,
    table_names,
    tombstones,
)
from pipelines.decode.image import Nothing, ObjectImages, OverlaidImages
from pipelines.decode.json_columns import integers, json_text
from pipelines.jsonscan import value_kernels as kernels
from pipelines.jsonscan.members import scan_objects
from pipelines.jsonscan.spans import Members, from_binary

_NAMES = ("database", "table", "type", "ts", "xid", "data", "old", "primary_key_columns", "encrypted")
_OPS = {"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r"}
_CONTROL = {
    "bootstrap-start": "x",
    "bootstrap-complete": "x",
    "table-create": "x",
    "table-alter": "x",
    "table-drop": "x",
    "database-create": "x",
    "database-alter": "x",
    "database-drop": "x",
    "heartbeat": "x",
}


@dataclass(frozen=True)
class MaxwellOptions:
    """Options of the format.

    Attributes:
        objects: `struct`, or `text` to keep nested objects (JSON columns) as JSON text.
    """

    objects: str = "text"

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> "MaxwellOptions":
        """Options from config."""
        return cls(**options)


def decode_maxwell(raw: RawEvents, _options: MaxwellOptions) -> Events:
    """The changes of a batch of Maxwell JSON."""
    documents = from_binary(raw.documents)
    messages = scan_objects(documents, _NAMES, learn=False)
    kinds = strings(messages.column("type"))
    encrypted = messages.column("encrypted").has_value
    op = np.where(encrypted, np.uint8(0), op_codes(kinds, _OPS))
    control = messages.is_object & (op_codes(kinds, _CONTROL) != 0)
    rows = messages.column("data").documents(kernels.OBJECT)
    former = messages.column("old").documents(kernels.OBJECT)
    unknown = messages.is_object & (op == 0) & ~control & ~encrypted
    deleted = op == ord("d")
    table_of, tables = table_names([strings(messages.column(name)) for name in ("database", "table")])
    seconds, given = integers(messages.column("ts"))
    declared_of, declared = _declared(messages)
    return Events(
        raw=np.arange(len(op)),
        op=op,
        table_of=table_of,
        tables=tables,
        source_ts=milliseconds(seconds * 1000, given),
        after=ObjectImages(rows.where(~deleted)),
        before=OverlaidImages(rows.where(deleted | former.present), former.where(~deleted)),
        key=Nothing(),
        declared_of=declared_of,
        declared=declared,
        order=paths_of(documents),
        refusals=(
            *broken_documents(messages),
            *refusal(encrypted, "encrypted: only Maxwell's own key opens it; run Maxwell without encrypt"),
            *refusal(unknown, "no Maxwell change: type is none of insert, update, delete, bootstrap-insert", kinds),
        ),
        skipped=counted(
            ("blank line", blank(messages)), ("tombstone", tombstones(messages)), ("control event", control)
        ),
    )


def _declared(messages: Members) -> tuple[NDArray[np.int32], tuple[Declared, ...]]:
    encoded = json_text(messages.column("primary_key_columns"))[0].fill_null("").dictionary_encode()
    lists = [orjson.loads(text) if text.startswith("[") else [] for text in encoded.dictionary.to_pylist()]
    declared = tuple(
        Declared(key=tuple(names) if all(isinstance(name, str) for name in names) else ()) for names in lists
    )
    return np.asarray(encoded.indices).astype(np.int32), declared
