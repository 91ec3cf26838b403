"""What the engine needs of a data or delete file, whatever its format.

`open_file` resolves the format; `parquet.py`, `orc.py` and `avro.py` implement the protocol. Arrays come in the types
of the file; `projection.py` turns them into those of the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from scan_core.rows.selection import RowSelection


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known of one column's values in a row group, page or file.

    Bounds are Python values: bool, int, float, str, bytes (binary, fixed, uuid), `decimal.Decimal`; dates as int days,
    times and timestamps as int in the unit of the type; None where unknown. A FileReader gives them in the file's
    type; `prune/` promotes them to the table's. Bounds may be loose (truncated strings):
    `lower <= every non-null, non-NaN value <= upper` is all they promise.
    """

    lower: Any = None
    upper: Any = None
    null_count: int | None = None
    nan_count: int | None = None
    value_count: int | None = None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A Parquet row group, ORC stripe, or a whole Avro file. `byte_offset` decides which task reads it."""

    index: int
    first_row_position: int
    num_rows: int
    byte_offset: int
    num_bytes: int


class FileReader(Protocol):
    """An open file.

    `arrow_schema` carries field ids at every depth as field metadata `PARQUET:field_id` (also for ORC and Avro;
    fields without id have none). `has_field_ids` is False when the file knows none.
    """

    arrow_schema: pa.Schema
    has_field_ids: bool
    num_rows: int
    row_groups: Sequence[RowGroup]

    def read(self, row_group: RowGroup, column_indices: Sequence[int], selection: RowSelection) -> list[pa.Array]:
        """Top-level columns by their index in `arrow_schema`, only the selected rows, in file types.

        Each array has `selected_count(selection)` values. Raises MalformedTableError with file and column.
        """
        ...

    def statistics(self, row_group: RowGroup, column_index: int) -> ColumnStatistics | None:
        """Of a top-level primitive column; None where unknown or where the stored type does not tell an order."""
        ...

    def compressed_bytes(self, row_group: RowGroup, column_indices: Sequence[int]) -> int:
        """Stored size of these columns in the row group."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...
