"""Statistics of one column of one file or row group, as every file format states them."""

from dataclasses import dataclass
from typing import Any


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
