"""ORC files as a FileReader: stripes as row groups, only the columns asked for.

Field ids come from the attribute `iceberg.id`, types that ORC has no name for from `iceberg.*` attributes. Stripes
and statistics are parsed by `orc_tail.py`, values are decoded by pyarrow.
"""

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.orc as po

from scan_core.file_io import open_input
from scan_core.read.file_reader import (
    FIELD_ID_KEY,
    ColumnStatistics,
    ReadCounts,
    RowGroup,
    refusing_malformed,
)
from scan_core.read.orc_tail import column_statistics, parse_stripe_statistics, parse_tail
from scan_core.read.whole_columns import WholeColumns
from scan_core.rows.algebra import select_rows
from scan_core.rows.selection import RowSelection, selected_count
from scan_core.schema_json import MAX_TYPE_DEPTH
from scan_core.split import FileIOConfig

MAX_STRIPE_ROWS = 1 << 27
_MAX_ROWS_PER_BYTE = 1 << 17
"""A constant column compresses to about 25,000 rows a byte; more is a lie that would only cost memory."""
_MAX_METADATA_BYTES = 64 * 1024**2
_TOO_FAR = "nanosecond resolution"
"""What the decoder says of timestamps before 1678 or after 2261: it knows no other unit."""


def open_orc(path: str, io: FileIOConfig) -> "OrcFileReader":
    """Open an ORC file and read its tail.

    Raises:
        MissingFileError: no such file.
        MalformedTableError: truncated, or a tail that contradicts itself.
    """
    return OrcFileReader(path, open_input(path, io))


class OrcFileReader(WholeColumns):
    """An open ORC file."""

    def __init__(self, path: str, source: pa.NativeFile) -> None:
        self.path = path
        self.counts = ReadCounts()
        self._source = source
        with refusing_malformed(path, "file tail"):
            self._file = po.ORCFile(source)
            size = source.size()
            self._tail = parse_tail(self._file.reader.serialized_file_tail(), size)
            self._stored_schema: pa.Schema = self._file.schema
            self.arrow_schema: pa.Schema = pa.schema([_with_ids(f, 0) for f in self._stored_schema])
            if len(self._tail.stripes) != self._file.nstripes:
                raise ValueError(f"{len(self._tail.stripes)} stripes, but {self._file.nstripes} can be read")
            self.row_groups: Sequence[RowGroup] = self._row_groups()
        self.num_rows: int = self._tail.num_rows
        self.has_field_ids = any((f.metadata or {}).get(FIELD_ID_KEY) for f in self.arrow_schema)

    def read(
        self,
        row_group: RowGroup,
        column_indices: Sequence[int],
        selection: RowSelection,
        window: range | None = None,
    ) -> list[pa.Array]:
        """Top-level columns by index, only the selected rows, in file types.

        Raises:
            MalformedTableError: a stripe that cannot be decoded; names file and columns.
        """
        del window
        fields = [self.arrow_schema.field(i) for i in column_indices]
        if not fields or selected_count(selection) == 0:
            return [pa.array([], type=f.type) for f in fields]
        names = ", ".join(repr(f.name) for f in fields)
        with refusing_malformed(self.path, f"stripe {row_group.index}, columns {names}"):
            arrays = self._decode(row_group.index, column_indices)
            for array in arrays:
                if len(array) != row_group.num_rows:
                    raise ValueError(f"{len(array)} of {row_group.num_rows} rows")
                array.validate(full=True)  # the decoder does not check that strings are UTF-8
            typed = [_typed(a, f.type) for a, f in zip(arrays, fields, strict=True)]
        return select_rows(typed, selection)

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Of a top-level primitive column, from the statistics of the stripe."""
        kind = self.arrow_schema.field(column_index).type
        if pa.types.is_nested(kind) or self._stripe_statistics is None:
            return None
        try:
            message = self._stripe_statistics[row_group.index][self._column_ids[column_index]]
        except IndexError:
            return None
        with refusing_malformed(self.path, f"statistics of stripe {row_group.index}"):
            return column_statistics(message, row_group.num_rows, kind)

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of the stripe's part for these columns, as if all were equally wide."""
        return row_group.num_bytes * len(column_indices) // max(len(self.arrow_schema), 1)

    def close(self) -> None:
        """Release the file."""
        self._source.close()

    @cached_property
    def _stripe_statistics(self) -> list[list[bytes]] | None:
        length = self._tail.metadata_length
        if not 0 < length <= _MAX_METADATA_BYTES or length > self._source.size():
            return None
        with refusing_malformed(self.path, "stripe statistics"):
            section = self._source.read_at(length, self._tail.metadata_offset)
            return parse_stripe_statistics(section, self._tail)

    @cached_property
    def _column_ids(self) -> list[int]:
        """ORC numbers all types of the schema in pre-order; 0 is the root."""
        ids, following = [], 1
        for field in self._stored_schema:
            ids.append(following)
            following += _type_count(field.type)
        return ids

    def _row_groups(self) -> tuple[RowGroup, ...]:
        groups: list[RowGroup] = []
        position = 0
        for index, stripe in enumerate(self._tail.stripes):
            if stripe.num_rows > min(MAX_STRIPE_ROWS, _MAX_ROWS_PER_BYTE * stripe.num_bytes):
                raise ValueError(f"stripe {index} claims {stripe.num_rows} rows in {stripe.num_bytes} bytes")
            groups.append(RowGroup(index, position, stripe.num_rows, stripe.offset, stripe.num_bytes))
            position += stripe.num_rows
        return tuple(groups)

    def _decode(self, stripe: int, column_indices: Sequence[int]) -> list[pa.Array]:
        columns = sorted(set(column_indices))
        try:
            arrays = self._decode_together(stripe, columns)
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            arrays = {i: self._decode_alone(stripe, i) for i in columns}
        return [arrays[i] for i in column_indices]

    def _decode_together(self, stripe: int, columns: Sequence[int]) -> dict[int, pa.Array]:
        """Columns are selected by name; where names are not paths to one column each, all are read."""
        names = self._stored_schema.names
        if any("." in name for name in names) or len(set(names)) < len(names):
            batch = self._file.reader.read_stripe(stripe)
            return {i: batch.column(i) for i in columns}
        batch = self._file.reader.read_stripe(stripe, [names[i] for i in columns])
        return {i: batch.column(names[i]) for i in columns}

    def _decode_alone(self, stripe: int, column: int) -> pa.Array:
        """A column of which some value may be out of reach of nanoseconds: those come in microseconds."""
        try:
            return self._decode_together(stripe, [column])[column]
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            field = self._stored_schema.field(column)
            if not pa.types.is_timestamp(field.type):
                raise pa.ArrowNotImplementedError(f"column {field.name!r}: {error}") from error
            from scan_core.read.orc_timestamps import read_timestamps

            return read_timestamps(self._source, self._tail, stripe, self._column_ids[column])


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind or pa.types.is_timestamp(kind):
        return array
    return array.view(kind)


def _type_count(kind: pa.DataType) -> int:
    """ORC types of a column: a map has no type of its own for its entries."""
    if pa.types.is_map(kind):
        return 1 + _type_count(kind.key_type) + _type_count(kind.item_type)
    if pa.types.is_nested(kind):
        return 1 + sum(_type_count(kind.field(i).type) for i in range(kind.num_fields))
    return 1


def _with_ids(field: pa.Field, depth: int) -> pa.Field:
    """The field with its id where readers expect it, and with the Iceberg type that its attributes name."""
    if depth > MAX_TYPE_DEPTH:
        raise ValueError(f"schema nests deeper than {MAX_TYPE_DEPTH} levels")
    attributes = field.metadata or {}
    field_id = attributes.get(b"iceberg.id")
    if field_id is not None and not field_id.isdigit():
        raise ValueError(f"column {field.name!r}: attribute iceberg.id is {field_id!r:.40}")
    kind = _with_ids_below(field.type, depth + 1)
    if kind == pa.int64() and attributes.get(b"iceberg.long-type") == b"TIME":
        kind = pa.time64("us")
    metadata = None if field_id is None else {FIELD_ID_KEY: field_id}
    return pa.field(field.name, kind, field.nullable, metadata)


def _with_ids_below(kind: pa.DataType, depth: int) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_with_ids(kind.field(i), depth) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_with_ids(kind.value_field, depth))
    if pa.types.is_map(kind):
        return pa.map_(_with_ids(kind.key_field, depth), _with_ids(kind.item_field, depth))
    return kind
