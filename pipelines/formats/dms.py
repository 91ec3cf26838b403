"""AWS DMS: JSON of its Kafka and Kinesis targets, and rows of its S3 target (CSV, Parquet) with an `Op` column."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.errors import SourceError
from pipelines.formats import json_kernels as kernels
from pipelines.formats import temporal
from pipelines.formats.change_rows import RowChangeOptions, decode_rows
from pipelines.formats.documents import Documents, from_binary
from pipelines.formats.events import Declared, Events, strings, table_names
from pipelines.formats.image_sources import EitherImages, Nothing, ObjectImages, PrefixedImages
from pipelines.formats.json_events import blank, broken_documents, counted, paths_of, refusal, tombstones
from pipelines.formats.json_scan import scan_objects
from pipelines.formats.json_spans import Members
from pipelines.formats.op_names import op_codes
from pipelines.sources.raw_events import RawEvents

_NAMES = ("data", "metadata", "before", "before-image")
_METADATA = ("timestamp", "record-type", "operation", "schema-name", "table-name")
_OPS = {"load": "r", "insert": "c", "update": "u", "delete": "d", "truncate-table": "t"}
_LETTERS = {"I": "c", "U": "u", "D": "d"}
BEFORE_PREFIX = "BI_"
"""What DMS puts before the names of before-image columns unless told otherwise."""


@dataclass(frozen=True)
class DmsOptions:
    """Options of the format.

    Attributes:
        before_prefix: of before-image columns.
        op_column: of S3 rows; files without it are a full load.
        ts_column: of S3 rows, with the commit time, if there is one.
        objects: `struct`, or `text` to keep nested objects as JSON text.
    """

    before_prefix: str = BEFORE_PREFIX
    op_column: str = "Op"
    ts_column: str | None = None
    objects: str = "text"

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> "DmsOptions":
        """Options from config."""
        return cls(**options)


def decode_dms(raw: RawEvents, options: DmsOptions) -> Events:
    """The changes of a batch of DMS events.

    Raises:
        SourceError: a file that looks like CSV without a header and is read with one.
    """
    if raw.rows is not None:
        rows = RowChangeOptions(_op_column(raw.rows, options.op_column), _LETTERS, options.ts_column, no_op="r")
        return decode_rows(raw, rows, options.before_prefix)
    documents = from_binary(raw.documents)
    messages = scan_objects(documents, _NAMES, learn=False)
    metadata = scan_objects(messages.column("metadata").documents(kernels.OBJECT), _METADATA, learn=False)
    operation = strings(metadata.column("operation"))
    op = op_codes(operation, _OPS)
    is_control = op_codes(strings(metadata.column("record-type")), {"control": "x"}) != 0
    control = messages.is_object & is_control & (op != ord("t"))
    op = np.where(control, np.uint8(0), op)
    unknown = messages.is_object & (op == 0) & ~control
    deleted = op == ord("d")
    data = messages.column("data").documents(kernels.OBJECT)
    table_of, tables = table_names([strings(metadata.column(name)) for name in ("schema-name", "table-name")])
    times, _ = temporal.from_text(strings(metadata.column("timestamp")), pa.timestamp("us", "UTC"))
    return Events(
        raw=np.arange(len(op)),
        op=op,
        table_of=table_of,
        tables=tables,
        source_ts=times,
        after=PrefixedImages(data.where(~deleted), options.before_prefix, inside=False),
        before=EitherImages(
            ObjectImages(data.where(deleted)),
            EitherImages(
                ObjectImages(_nested(messages).where(~deleted)),
                PrefixedImages(data.where(~deleted), options.before_prefix, inside=True),
            ),
        ),
        key=Nothing(),
        declared_of=np.zeros(len(op), np.int32),
        declared=(Declared(),),
        order=paths_of(documents),
        refusals=(
            *broken_documents(messages),
            *refusal(unknown, "no DMS change: operation is none of load, insert, update, delete", operation),
        ),
        skipped=counted(
            ("blank line", blank(messages)), ("tombstone", tombstones(messages)), ("control event", control)
        ),
    )


def _op_column(rows: pa.Table, name: str) -> str:
    """The column that says what happened; catalogs of tables write its name in lower case.

    Raises:
        SourceError: see `decode_dms`.
    """
    names: list[str] = rows.column_names
    if name in names:
        return name
    if names and names[0] in _LETTERS:
        raise SourceError(
            f"the first line, {','.join(names[:10])}, is a change and not the names of columns: options: "
            f"{{header: false, columns: [{name}, ...]}}"
        )
    # Its words do not decide: beside one that is none, deletes would be rows of a full load.
    return next((other for other in names if other.lower() == name.lower()), name)


def _nested(messages: Members) -> Documents:
    """The before image where the task writes it as an object of its own, under either name."""
    usual, other = (messages.column(name).documents(kernels.OBJECT) for name in ("before-image", "before"))
    start, end = np.where(usual.present, usual.start, other.start), np.where(usual.present, usual.end, other.end)
    return Documents(usual.data, start, end)
