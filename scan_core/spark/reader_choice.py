"""Which reader a DataFrame gets and why, and the checks of arguments that all entry points share."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from nevermore.scan_core.expr.normalize import may_fail
from nevermore.scan_core.joins.request import ROW_COST
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.snapshot import FileFormat
from nevermore.scan_core.plan.file_pruner import FilePruner
from nevermore.scan_core.read.split_reader import count_split
from nevermore.scan_core.spark.native import selects_rows
from nevermore.scan_core.split.tasks import Split

if TYPE_CHECKING:
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
        bits_found_by: who found the rows that the native reader leaves out: "driver", "job", or "cache" where all of them
            were known; None for the python reader, and before anybody has looked for them.
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
    shares = [x.decision.share for x in plan.context.runtime_filters if x.decision.share is not None]
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
    start = 0 if runs_python else PYTHON_START
    if left * CROSSING_COST + total * ROW_COST + start >= total * NATIVE_COST:
        return None
    return f"of {total} rows that Spark would read, {left:.0f} are expected to have a key"


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


def require_session(spark: object) -> None:
    """Check that something is a Spark session, classic or Connect.

    Raises:
        OptionError: it is not.
    """
    if not (hasattr(spark, "createDataFrame") and hasattr(spark, "conf")):
        raise OptionError(f"the first argument is a Spark session, not {_named(spark)}: dataframe(spark, scan)")


def require_scan(scan: object) -> None:
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
    raise OptionError(f"dataframe takes a scan, {hint}")


def _named(value: object) -> str:
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    return f"{article} {type(value).__name__}"
