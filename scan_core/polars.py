"""Tables as Polars LazyFrames: Polars asks the scan for columns, conditions and a limit, and does only the rest.

Conditions are translated to the filter language from the JSON in which Polars serialises expressions. Polars has brought both
sides of each comparison to one type by then, so a cast in it marks values that may be rounded; such conditions stay with Polars.
Floats compare as here: NaN equals NaN and is larger than every number.
"""

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from nevermore.scan_core.expr.coercion import FLOATING, name_of, round_to_float
from nevermore.scan_core.expr.nodes import Constant, Expr, Operation
from nevermore.scan_core.foreign.pushdown import NotTranslatableError, Translation, column, constant, project
from nevermore.scan_core.model.errors import require_package
from nevermore.scan_core.model.schema import Schema, Type
from nevermore.scan_core.scan import Scan, Table, open_table

if TYPE_CHECKING:
    import polars as pl


_COMPARISONS = {
    "Eq": ("=", "="),
    "NotEq": ("<>", "<>"),
    "Lt": ("<", ">"),
    "LtEq": ("<=", ">="),
    "Gt": (">", "<"),
    "GtEq": (">=", "<="),
    "EqValidity": ("<=>", "<=>"),
}
"""Operators, and the same with the sides exchanged."""
_BOUNDS = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_UNITS = {"Milliseconds": "ms", "Microseconds": "us", "Nanoseconds": "ns"}


def scan_iceberg(source: "Scan | Table | str | os.PathLike[str] | Any", **options: Any) -> "pl.LazyFrame":
    """A table, or what a scan selects of it, as a LazyFrame that is read when it is collected.

    The snapshot is fixed here. Columns, limits and all conditions that mean exactly the same in a scan are pushed down,
    so files, row groups and pages without matching rows are not read; Polars evaluates the other conditions.

    Args:
        source: a scan, a table, or what `open_table` takes, such as a folder or a PyIceberg `Table`.
        options: of `open_table`, where a table is opened.

    Raises:
        MissingPackageError: Polars is not installed.
        ScanError: the table cannot be opened, or a column cannot be read.
    """
    plugins = require_package("polars.io.plugins", "scan_iceberg", "nevermore-iceberg[polars]")
    polars = require_package("polars", "scan_iceberg", "nevermore-iceberg[polars]")
    if isinstance(source, Scan):
        scan = source
    else:
        scan = (source if isinstance(source, Table) else open_table(source, **options)).scan()
    snapshot = scan.snapshot
    if snapshot is not None:  # branches and times may mean another snapshot later
        scan = scan.as_of_snapshot(snapshot.snapshot_id) if scan.ref or scan.timestamp_ms else scan
    schema = scan.arrow_schema

    def read(
        columns: list[str] | None, predicate: "pl.Expr | None", num_rows: int | None, _batch_size: int | None
    ) -> "Iterator[pl.DataFrame]":
        return _read(scan, schema.names if columns is None else columns, predicate, num_rows)

    return cast(
        "pl.LazyFrame",
        plugins.register_io_source(
            read,
            schema=polars.from_arrow(schema.empty_table()).schema,
            is_pure=True,
            explain_name="scan_iceberg",
            explain_detail=scan.table.location,
        ),
    )


def _read(
    scan: Scan, columns: list[str], predicate: "pl.Expr | None", num_rows: int | None
) -> "Iterator[pl.DataFrame]":
    """The rows; Polars takes `num_rows` before it asks the predicate."""
    import polars as pl

    if num_rows is not None:
        scan = scan.limit(num_rows)
    if predicate is None:
        scan, left = project(scan, columns), None
    else:
        narrowed = Translation(scan, _conjuncts(predicate), translate)
        left = predicate if narrowed.left else None
        scan = project(narrowed.scan, [*columns, *(predicate.meta.root_names() if narrowed.left else ())])
    for batch in scan.to_batches():
        frame = cast("pl.DataFrame", pl.from_arrow(pa.Table.from_batches([batch])))
        if left is not None:
            frame = frame.filter(left)
        yield frame.select(columns)


def _conjuncts(predicate: "pl.Expr") -> list[Any]:
    import polars as pl

    try:
        return conjuncts(predicate.meta.serialize(format="json"))
    except (pl.exceptions.ComputeError, ValueError):  # such as functions in Python
        return [None]


def conjuncts(serialised: str) -> list[Any]:
    """The conditions that an expression, given as Polars' JSON, joins with AND."""
    pending, found = [json.loads(serialised)], []
    while pending:
        match pending.pop():
            case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
                pending += [right, left]
            case other:
                found.append(other)
    return found


def translate(tree: Any, schema: Schema) -> Expr:
    """A condition of Polars in the filter language, NULL where it is null there.

    Raises:
        NotTranslatableError: there is no exact equivalent.
    """
    match tree:
        case {"Column": _}:
            expression, kind = _column(tree, schema)
            if name_of(kind) != "boolean":
                raise NotTranslatableError
            return expression
        case {"Literal": {"Scalar": {"Boolean": bool(value)}}}:
            return Constant(value)
        case {"BinaryExpr": {"left": left, "op": "And" | "Or" as name, "right": right}}:
            return Operation(name.lower(), (translate(left, schema), translate(right, schema)))
        case {"BinaryExpr": {"left": left, "op": "NotEqValidity", "right": right}}:
            return ~_compare("EqValidity", left, right, schema)
        case {"BinaryExpr": {"left": left, "op": str(name), "right": right}}:
            return _compare(name, left, right, schema)
        case {"Function": {"input": [*inputs], "function": {"Boolean": function}}}:
            return _boolean(function, inputs, schema)
        case {"Function": {"input": [subject, {"Literal": {"Scalar": {"String": str(prefix)}}}], "function": function}}:
            expression, kind = _column(subject, schema)
            if function != {"StringExpr": "StartsWith"} or name_of(kind) != "string":
                raise NotTranslatableError
            return expression.starts_with(prefix)
        case _:
            raise NotTranslatableError


def _column(tree: Any, schema: Schema) -> tuple[Expr, Type]:
    """A column or a member of a struct, and its type."""
    path: list[str] = []
    while True:
        match tree:
            case {"Column": str(name)}:
                return column(schema, [name, *path])
            case {"Function": {"input": [inner], "function": {"StructExpr": {"FieldByName": str(name)}}}}:
                path.insert(0, name)
                tree = inner
            case _:
                raise NotTranslatableError


def _compare(name: str, left: Any, right: Any, schema: Schema) -> Expr:
    if name not in _COMPARISONS:
        raise NotTranslatableError
    is_reversed = "Literal" in left
    expression, kind = _column(right if is_reversed else left, schema)
    value = constant(kind, _scalar(left if is_reversed else right))
    return Operation(_COMPARISONS[name][is_reversed], (expression, value))


def _boolean(function: Any, inputs: list[Any], schema: Schema) -> Expr:  # one flat case per function
    if function == "Not":
        return ~translate(inputs[0], schema)
    expression, kind = _column(inputs[0], schema)
    match function:
        case "IsNull":
            return expression.is_null()
        case "IsNotNull":
            return expression.is_not_null()
        case "IsNan" | "IsNotNan" if name_of(kind) in FLOATING:
            is_nan = Operation("=", (expression, Constant(float("nan"), kind)))
            return is_nan if function == "IsNan" else ~is_nan
        case {"IsBetween": {"closed": closed}} if closed in _BOUNDS:
            low, high = (constant(kind, _scalar(each)) for each in inputs[1:])
            above, below = _BOUNDS[closed]
            return Operation(above, (expression, low)) & Operation(below, (expression, high))
        case {"IsIn": {"nulls_equal": False}} if name_of(kind) not in FLOATING:
            return expression.is_in([constant(kind, value) for value in _values(inputs[1])])
        case _:
            raise NotTranslatableError


def _values(tree: Any) -> pa.ChunkedArray:
    """The values of a list, none of them null."""
    match tree:
        case {"Literal": {"Scalar": {"List": [*stream]}}}:
            with pa.ipc.open_stream(bytes(stream)) as reader:
                found = reader.read_all().column(0)
            if len(found) and not found.null_count:
                return found
    raise NotTranslatableError


def _scalar(tree: Any) -> pa.Scalar:  # noqa: C901, PLR0912  one flat case per type
    match tree:
        case {"Literal": {"Scalar": dict(scalar)}} if len(scalar) == 1:
            ((kind, value),) = scalar.items()
        case _:
            raise NotTranslatableError
    match kind, value:
        case "Boolean", bool():
            return pa.scalar(value)
        case (("Int8" | "Int16" | "Int32" | "Int64" | "UInt8" | "UInt16" | "UInt32" | "UInt64"), int()):
            return pa.scalar(value, pa.uint64() if value >= 0 else pa.int64())
        case "Float64", int() | float():
            return pa.scalar(float(value))
        case "Float32", int() | float():  # written with as few digits as identify a single-precision number
            return pa.scalar(round_to_float(value))
        case "String", str():
            return pa.scalar(value)
        case "Binary", list():
            return pa.scalar(bytes(value))
        case "Date", int():
            return pa.scalar(value, pa.date32())
        case "Time", int():
            return pa.scalar(value, pa.time64("ns"))
        case "Datetime", [int(count), str(unit), zone] if unit in _UNITS:
            return pa.scalar(count, pa.timestamp(_UNITS[unit], None if zone is None else "UTC"))
        case "Decimal", [int(unscaled), int(), int(scale)]:
            return pa.scalar(Decimal(unscaled).scaleb(-scale), pa.decimal128(38, scale))
        case _:
            raise NotTranslatableError
