"""Which reader a DataFrame gets and why, and the checks of arguments that all entry points share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as st

from nevermore.scan_core.expr.normalize import may_fail
from nevermore.scan_core.joins.key_set import KeySet
from nevermore.scan_core.joins.request import ROW_COST
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.model.metrics import ScanMetrics
from nevermore.scan_core.model.snapshot import FileFormat
from nevermore.scan_core.plan.file_pruner import FilePruner, file_statistics
from nevermore.scan_core.read.split_reader import count_split
from nevermore.scan_core.spark.native import selects_rows
from nevermore.scan_core.spark.types import quoted_name
from nevermore.scan_core.split.tasks import Split

if TYPE_CHECKING:
    from nevermore.scan_core.joins.request import RuntimeFilter
    from nevermore.scan_core.plan.planner import ScanPlan
    from nevermore.scan_core.scan import Scan
    from nevermore.scan_core.split.tasks import ScanContext


Reader = Literal["auto", "python", "native"]
"""Values of `reader`: a strategy, or "auto" to have one chosen."""
READERS: tuple[Reader, ...] = get_args(Reader)


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """The reader that was chosen, and why.

    Attributes:
        asked: "auto", "python" or "native".
        strategy: "native" reads through Spark's own Parquet reader, "python" through our tasks, "driver" in this process.
        why_not_native: why the native reader is not used; None if it is.
        bits_found_by: who finds the rows that the native reader leaves out: "driver", "job", "cache" where all of them
            were known, or "queries", which each look for those they need; None for the python reader, and before anybody
            has looked for them.
    """

    asked: Reader
    strategy: Literal["native", "python", "driver"]
    why_not_native: str | None = None
    bits_found_by: str | None = None

    def __str__(self) -> str:
        if self.strategy == "native":
            found_by = f", dead rows found by {self.bits_found_by}" if self.bits_found_by else ""
            return f"native reader{found_by}"
        if self.strategy == "driver":
            return "driver: few rows, which it reads before tasks would have started"
        return f"python reader: {self.why_not_native}"


CROSSING_COST, NATIVE_COST, PYTHON_START = 300.0, 60.0, 150e6
"""Measured nanoseconds: passing a row from Python to the JVM, reading a row in the JVM, starting to read in Python."""
NATIVE_FILE_COST = 10e6
"""Additional nanoseconds to open a data file natively: the driver reads its footer, and Spark lists and plans it."""
MAX_LISTED = 10
"""Maximum number of keys that Spark pushes to Parquet as a list (`spark.sql.parquet.pushdown.inFilterThreshold`)."""
MAX_RANGES = 4
_MIN_GAP = 1 / 16
"""Minimum gap as a share of the key range: a smaller gap excludes too little to be worth testing in every row."""
_SCATTERED = 1.5
"""Sum of the files' value ranges divided by their combined range; above this, values are scattered over files."""

_COVERED = 0.95
"""Rows of a dimension per possible key at which it is assumed to contain all keys."""

_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))


def why_python_pays(
    scan: "Scan",
    plan: "ScanPlan",
    context: "ScanContext",
    *,
    runs_python: bool = False,
    is_filtered_again: bool = False,
) -> str | None:
    """Why a scan is expected to be cheaper in the python reader; None if it is not, or if that is unknown.

    Args:
        scan: the scan.
        plan: its plan.
        context: what Spark's reader would have to apply.
        runs_python: whether the query runs tasks in Python in any case: starting them then costs nothing, and the files
            must be large enough to pay for opening them natively. Otherwise only prefilters are considered.
        is_filtered_again: whether the query has the conditions of the scan itself. Then Spark's reader can read the scan,
            but all of its rows; a few thousand of them are read here to estimate how many fulfil the conditions.
    """
    filters = [x for x in plan.context.runtime_filters if isinstance(x.keys, KeySet)]
    shares = [x.decision.share for x in filters if x.decision.share is not None]
    total = sum(task.data_file.record_count for task in plan.tasks)
    if is_filtered_again and plan.context.predicate is not None and not filter_holds_everywhere(scan, plan):
        if total < _MIN_SAMPLED_FROM:
            return f"the scan has conditions and few rows ({total})"
        share = share_that_fulfils(plan)
        if share * CROSSING_COST + ROW_COST < NATIVE_COST:
            return f"{100 * share:.3g} % of the rows are expected to fulfil the conditions"
    if selects_rows(context):
        return _why_bits_do_not_pay(plan, context, total, start=0 if runs_python else PYTHON_START)
    if not shares and not runs_python:
        return None
    if runs_python and total * (CROSSING_COST - NATIVE_COST) < len(plan.tasks) * NATIVE_FILE_COST:
        return f"opening the data files ({len(plan.tasks)}) in Spark costs more than handing over their rows ({total})"
    if not shares:
        return None
    left = min(shares) * total
    read = min((_rows_within(scan, plan, x) for x in filters), default=total)
    start = 0 if runs_python else PYTHON_START
    if left * CROSSING_COST + total * ROW_COST + start >= read * NATIVE_COST:
        return None
    return f"of {read:.0f} rows that Spark would read, {left:.0f} are expected to have a key"


def _why_bits_do_not_pay(plan: "ScanPlan", context: "ScanContext", total: int, *, start: float) -> str | None:
    """Why handing over the selected rows is expected to be cheaper than finding them here and having Spark read all.

    Either way scan_core looks at all rows; what differs is which of them are handed over, and who reads the other columns.
    """
    if context.sample is not None:
        return "the scan is a sample"
    if total < _MIN_SAMPLED_FROM:
        return f"the scan selects rows, and has few ({total})"
    if context.predicate is not None and any(map(may_fail, context.predicate.conjuncts)):
        return "the scan's predicate can fail on a row, which is a matter of the query"
    filters = context.runtime_filters
    if any(filter_.is_exact and filter_.decision.share is None for filter_ in filters):
        return "it is not known how many rows the scan's semi joins leave"
    share = min((x.decision.share for x in filters if x.decision.share is not None), default=1.0)
    if context.predicate is not None:
        share *= share_that_fulfils(plan)
    if share * total * CROSSING_COST + start < total * NATIVE_COST:
        return f"{100 * share:.3g} % of the rows are expected to be selected"
    return None


_MIN_SAMPLED_FROM = 200_000
_SAMPLED_FILES, _SAMPLED_ROWS = 4, 16_384
"""How many files are sampled, and how many rows of each, at most twice as many."""


def share_that_fulfils(plan: "ScanPlan") -> float:
    """The share of rows that fulfil the predicate of a plan, estimated by some from the middle of row groups of a few files."""
    context = replace(plan.context, runtime_filters=())
    counted = [0, 0]
    tasks = [
        task for task in plan.tasks if task.data_file.format is FileFormat.PARQUET
    ]  # Spark's reader reads no others
    step = max(1, len(tasks) // _SAMPLED_FILES)
    for task in tasks[step // 2 :: step][:_SAMPLED_FILES]:
        parts = max(1, task.data_file.record_count // _SAMPLED_ROWS)
        # a task of some bytes has the first row group; equal parts of this are at most as large as those of the file
        first = replace(task.with_deletes(), start=0, length=_FIRST_ROW_GROUP, row_share=(parts // 2, parts))
        for n, predicate in enumerate((context.predicate, None)):
            counted[n] += count_split(Split(replace(context, predicate=predicate), (first,)), ScanMetrics())
    return counted[0] / counted[1] if counted[1] else 1.0


def expected_bytes(plan: "ScanPlan") -> float:
    """Memory that the rows of a plan are expected to take, by the shares of its filters."""
    total = sum(task.data_file.record_count for task in plan.tasks)
    widths = [_WIDTHS.get(str(field.type), _OTHER_WIDTH) for field in plan.context.projection.fields]
    shares = [x.decision.share for x in plan.context.runtime_filters if x.decision.share is not None]
    rows = total * min(shares, default=1.0)
    if plan.context.predicate is not None and rows * sum(widths) > _SAMPLED_ROWS * _OTHER_WIDTH:
        rows *= share_that_fulfils(plan)
    return rows * sum(widths)


_WIDTHS = {"boolean": 1, "int": 4, "long": 8, "float": 4, "double": 8, "date": 4}
_OTHER_WIDTH = 20
_FIRST_ROW_GROUP = 5
"""Bytes within which only the first row group of a Parquet file begins, after four bytes of magic."""


def filter_holds_everywhere(scan: "Scan", plan: "ScanPlan") -> bool:
    """Whether file statistics alone prove that every row matches the scan's filter, so no reader has to apply it."""
    if plan.context.predicate is None:
        return True
    pruner = FilePruner(scan.table.metadata, plan.context)
    return all(pruner.is_fulfilled_by_all_rows(task.data_file) for task in plan.tasks)


def may_cover(
    dimension: "Scan", column: str, fact: "Scan", fact_column: str, *, plans: "tuple[ScanPlan, ScanPlan]"
) -> bool:
    """Whether a dimension probably contains every key of the fact, so that filtering by its keys removes next to nothing.

    That holds if the dimension's filter excludes no rows, its keys are integers with about as many rows as values between
    the smallest and the largest key, and no key of the fact lies outside that range.

    Args:
        dimension: whose keys could be collected.
        column: its key.
        fact: that they would filter.
        fact_column: its column that is compared with the key.
        plans: of the dimension and of the fact.
    """
    plan, fact_plan = plans
    if dimension.joins or dimension.row_limit is not None or dimension.row_sample is not None:
        return False
    if not filter_holds_everywhere(dimension, plan):
        return False
    keys = list(_bounds(dimension, plan, dimension.key_fields([column])[0].field_id))
    known = [place for place, _ in keys if place is not None]
    if len(known) < len(keys) or not known:
        return False
    low, high = min(a for a, _ in known), max(b for _, b in known)
    if sum(rows for _, rows in keys) < _COVERED * (high - low + 1):
        return False
    facts = _bounds(fact, fact_plan, fact.key_fields([fact_column])[0].field_id)
    return all(place is not None and low <= place[0] and place[1] <= high for place, _ in facts)


def within_keys(frame: DataFrame, scan: "Scan", columns: Sequence[str], keys: pa.Table) -> DataFrame:
    """Filter `frame` to the key ranges, as conditions by which Spark's reader prunes row groups, unless none would prune.

    `frame` has the rows of `scan`, which has prefilters; `keys` are the values of its columns, one column each.
    """
    for name, column in zip(columns, keys.columns, strict=True):
        if not isinstance(frame.schema[name].dataType, st.IntegralType | st.DateType | st.StringType):
            continue
        ranges = _ranges(column)
        if not ranges or _all_within(scan, name, ranges):
            continue
        value = frame[quoted_name(name)]
        if len(ranges) > 1 and all(low == high for low, high in ranges):
            frame = frame.filter(value.isin([low for low, _ in ranges]))
        else:
            frame = frame.filter(reduce(or_, (value.between(f.lit(low), f.lit(high)) for low, high in ranges)))
    return frame


def _ranges(column: pa.ChunkedArray) -> list[tuple[Any, Any]]:
    """Ascending key ranges: one per key if there are few keys, else a few ranges separated by wide gaps."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind)):
        return []
    found = pc.unique(column).drop_null()
    if not len(found):
        return []
    if pa.types.is_date(kind):  # Arrow and Spark support years outside 1 to 9999, Python does not
        days = pc.min_max(found.cast(pa.date32()).cast(pa.int32()))
        if days["min"].as_py() < _FIRST_DAY or days["max"].as_py() > _LAST_DAY:
            return []
    if len(found) <= MAX_LISTED:
        return [(value, value) for value in sorted(found.to_pylist())]
    ends = pc.min_max(found)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if not pa.types.is_integer(kind):
        return [(low, high)]
    values = np.sort(found.to_numpy(zero_copy_only=False))
    gaps = np.diff(values.astype(np.float64))
    widest = np.argsort(gaps)[-(MAX_RANGES - 1) :]
    cuts = np.sort(widest[gaps[widest] > _MIN_GAP * (float(high) - float(low))])
    firsts, lasts = [0, *(cuts + 1).tolist()], [*cuts.tolist(), len(values) - 1]
    return [(int(values[a]), int(values[b])) for a, b in zip(firsts, lasts, strict=True)]


def _all_within(scan: "Scan", name: str, ranges: Sequence[tuple[Any, Any]]) -> bool:
    """Whether every file's bounds lie in one range of integers, so that the range excludes no row group."""
    if len(ranges) != 1 or not isinstance(ranges[0][0], int):
        return False
    (low, high), field_id = ranges[0], scan.key_fields([name])[0].field_id
    bounds = list(_bounds(scan, scan.plan(), field_id))
    return all(known is not None and low <= known[0] and known[1] <= high for known, _ in bounds)


def _rows_within(scan: "Scan", plan: "ScanPlan", filter_: "RuntimeFilter") -> float:
    """Number of rows that Spark's reader would read between the smallest and the largest key."""
    total = float(sum(task.data_file.record_count for task in plan.tasks))
    keys = filter_.keys
    if not isinstance(keys, KeySet) or not keys.num_keys:
        return total
    for field, column in zip(keys.fields, keys.columns, strict=True):
        if pa.types.is_integer(column.type):
            ends = pc.min_max(column)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            bounds = list(_bounds(scan, plan, field.field_id))
            known = [place for place, _ in bounds if place is not None]
            if not known or len(known) < len(bounds):
                return total
            spanned = max(b for _, b in known) - min(a for a, _ in known) + 1
            if sum(b - a + 1 for a, b in known) > _SCATTERED * spanned and len(known) > 1:
                return total
            parts = zip(known, bounds, strict=True)
            return float(sum(n * max(0, min(b, high) - max(a, low) + 1) / (b - a + 1) for (a, b), (_, n) in parts))
    return total


def _bounds(scan: "Scan", plan: "ScanPlan", field_id: int) -> Iterator[tuple[tuple[int, int] | None, int]]:
    """Bounds of an integer column in each file, None if unknown, and the file's number of rows."""
    schema = scan.table.metadata.schemas[plan.context.projection.schema_id]
    for task in plan.tasks:
        found = file_statistics(task.data_file, schema)(field_id)
        rows = task.data_file.record_count
        if found is None or type(found.lower) is not int or type(found.upper) is not int or found.lower > found.upper:
            yield None, rows
        else:
            yield (found.lower, found.upper), rows


def require_session(spark: object) -> None:
    """Check that something is a Spark session, classic or Connect.

    Raises:
        OptionError: it is not.
    """
    if not (hasattr(spark, "createDataFrame") and hasattr(spark, "conf")):
        raise OptionError(f"the first argument is a Spark session, not {_named(spark)}: dataframe(spark, scan)")


def require_scan(scan: object, *, what: str = "dataframe") -> None:
    """Check that something is a scan.

    Raises:
        OptionError: it is a table, a path or anything else.
    """
    from nevermore.scan_core.scan import Scan, Table

    match scan:
        case Scan():
            return
        case Table():
            hint = "not a table: table.scan() reads all of it"
        case str():
            hint = f"not text: scan_core.open_table({scan!r}).scan() reads a table by its path"
        case _:
            hint = f"not {_named(scan)}: scan_core.open_table(...).scan()"
    raise OptionError(f"{what} takes a scan, {hint}")


def require_side(side: object, name: str) -> None:
    """Check that one side of a join is a scan or a DataFrame.

    Raises:
        OptionError: it is neither.
    """
    if not isinstance(side, DataFrame):
        require_scan(side, what=f"join, as its {name},")


def _named(value: object) -> str:
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    return f"{article} {type(value).__name__}"
