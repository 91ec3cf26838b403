"""SQL over tables in Spark: what the text asks of each table is pushed into its scan, and Spark runs it over the rest.

What may be pushed is decided in `pushdown.py`, for publications, too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from scan_core.model.errors import OptionError
from scan_core.model.schema import NestedField, PrimitiveType, Schema, StructType
from scan_core.spark.frames import choice_of, dataframe, means_what_scans_mean, reports_of
from scan_core.spark.native import NativeLimits
from scan_core.spark.pushdown import Pushed, PushedScans, TableRead, most_read, push_down
from scan_core.spark.reader_choice import Reader, require_session
from scan_core.sql.query import SqlQuery, parse_sql

if TYPE_CHECKING:
    from scan_core.scan import Scan, Table

_OTHER_SESSION = (
    "conditions have another meaning in this session: set spark.sql.ansi.enabled=true and the time zone UTC"
)
_LIMITED = "the scan has a limit, and a condition would let other rows through"
_KINDS: dict[type[st.DataType], str] = {
    st.BooleanType: "boolean",
    st.IntegerType: "int",
    st.LongType: "long",
    st.FloatType: "float",
    st.DoubleType: "double",
    st.DateType: "date",
    st.TimestampType: "timestamptz",
    st.TimestampNTZType: "timestamp",
}


@dataclass(frozen=True, slots=True)
class _Read:
    """A scan of a query, what was pushed into it, and its DataFrame."""

    scan: "Scan"
    pushed: Pushed
    frame: DataFrame


_reads: "WeakKeyDictionary[DataFrame, Mapping[str, _Read]]" = WeakKeyDictionary()


def sql(
    spark: SparkSession,
    text: str,
    tables: "Mapping[str, Scan | Table | str | Path]",
    *,
    args: Mapping[str, Any] | None = None,
    reader: Reader = "auto",
    limits: NativeLimits | None = None,
) -> DataFrame:
    """Run a query whose conditions, columns and joins reach the scans of its tables.

    Each table is read with the columns that the query needs, and only where its conditions, also those implied by joins
    with equal keys, by `in` and by `exists`, let rows pass. Keys of selective tables filter the others; they are read
    here. What is not certain is left to Spark, which runs the whole query in any case; `reads_of_sql` says what and why.

    Args:
        spark: a session, classic or Connect.
        text: one query in Spark's SQL.
        tables: tables by the names that the query uses, such as `shop.orders`: scans, tables, or paths. Other names are
            views and tables of the session.
        args: values of its parameters, such as `:day`.
        reader: see `dataframe`.
        limits: see `dataframe`.

    Returns:
        The result, which Spark computes when it is used, from the snapshots that are current now.

    Raises:
        OptionError: not a single query, a table given with a wrong type, or `native` for a scan that it does not read.
        PySparkException: Spark refuses the query.
    """
    require_session(spark)
    if not isinstance(text, str):
        raise OptionError(f"the query is text in Spark's SQL, not {type(text).__name__}")
    if not isinstance(tables, Mapping):
        raise OptionError(
            "tables maps the names of the query to scans, tables or paths: {'orders': 'warehouse/orders'}"
        )
    given = dict(args or {})
    query = parse_sql(text, tuple(value for value in given.values() if isinstance(value, str)))
    named = {name.lower(): name for name in tables} | {name: name for name in tables}
    used = {name: named.get(name, named.get(name.lower())) for name in query.tables}  # Spark ignores the case of names
    scans = {name: _scan_of(known, tables[known]) for name, known in used.items() if known is not None}
    found = _narrowed(spark, query, scans, given)
    frames = {
        name: dataframe(spark, scan, reader, limits=limits, is_filtered_again=not scans[name].predicates)
        for name, scan in found.scans.items()
    }
    views = {name: f"nevermore_{uuid4().hex}" for name in frames}
    # Spark formats the text: views by these names last as long as it needs them, in Connect sessions, too
    template = re.sub(r"[{}]", r"\g<0>\g<0>", query.over_views(views))
    for view in views.values():
        template = template.replace(view, f"{{{view}}}")
    if not views:
        template = text
    result = spark.sql(template, args=given or None, **{views[name]: frame for name, frame in frames.items()})
    _reads[result] = {name: _Read(found.scans[name], found.pushed[name], frame) for name, frame in frames.items()}
    return result


def reads_of_sql(frame: DataFrame) -> dict[str, TableRead]:
    """How the tables of a query are read, by name: before it runs as planned, later with what its tasks have read.

    Raises:
        OptionError: `frame` was not returned by `sql` (one derived from it does not count).
    """
    if frame not in _reads:
        raise OptionError("only a DataFrame that sql() returned has reads of tables, not one derived from it")
    found = {}
    for name, read in _reads[frame].items():
        reports, choice = reports_of(read.frame), choice_of(read.frame)
        is_read = choice.strategy == "native" or reports.stage_ids
        metrics = reports.total() if is_read else most_read(read.scan.plan())
        found[name] = TableRead.of(read.scan, metrics, str(choice), read.pushed)
    return found


def explain_sql(frame: DataFrame) -> str:
    """The text of `reads_of_sql`: what was pushed into each scan, and what is left to Spark for which reason.

    Raises:
        OptionError: as `reads_of_sql`.
    """
    return "\n".join(line for name, read in reads_of_sql(frame).items() for line in read.described(name))


def _scan_of(name: str, given: "Scan | Table | str | Path") -> "Scan":
    from scan_core.scan import Scan, Table, open_table

    match given:
        case Scan():
            return given
        case Table():
            return given.scan()
        case str() | Path():
            return open_table(str(given)).scan()
        case _:
            raise OptionError(f"table {name!r} is a scan, a table or a path, not {type(given).__name__}")


def _narrowed(
    spark: SparkSession, query: SqlQuery, scans: "Mapping[str, Scan]", given: Mapping[str, Any]
) -> PushedScans:
    """The scans with the columns and rows that the query may need."""
    schemas = {name: scan.schema for name, scan in scans.items()}
    for name in query.tables:
        if name not in schemas:
            schema = _schema_in_session(spark, query.spelled(name))
            if schema is None:
                return _unnarrowed(scans, f"the columns of {name} are not known")
            schemas[name] = schema
    columns = query.columns(schemas)
    selected = {name: scan.select(*columns[name]) for name, scan in scans.items()}
    if not means_what_scans_mean(spark):
        return _unnarrowed(selected, _OTHER_SESSION)
    if any(scan.row_limit is not None for scan in scans.values()):
        return _unnarrowed(selected, _LIMITED)
    return push_down(query, selected, given, schemas=schemas)


def _unnarrowed(scans: "Mapping[str, Scan]", reason: str) -> PushedScans:
    return PushedScans(scans, {name: Pushed(left={"all conditions": reason}) for name in scans})


def _schema_in_session(spark: SparkSession, name: str) -> Schema | None:
    """The columns of a view or table of the session; None if it has none of this name, and Spark says so itself."""
    try:
        columns = spark.table(name).schema
    except PySparkException:
        return None
    return Schema(0, tuple(NestedField(n, c.name, _type_of(c.dataType)) for n, c in enumerate(columns, 1)))


def _type_of(kind: st.DataType) -> PrimitiveType | StructType:
    """The type of scans that equals Spark's; for others one that equals none, so that no condition is carried over."""
    if isinstance(kind, st.DecimalType):
        return PrimitiveType("decimal", (kind.precision, kind.scale))
    if isinstance(kind, st.StringType) and kind.simpleString() == "string":
        return PrimitiveType("string")
    return PrimitiveType(_KINDS[type(kind)]) if type(kind) in _KINDS else StructType(())
