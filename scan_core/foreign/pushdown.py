"""What a library asks of a scan: columns, conditions, a limit; and how much of it the scan does itself.

A condition is either translated exactly, NULL and NaN included, or left to the library that wrote it. Nothing is
weakened or guessed. How each library writes conditions is handled in `dataset.py` (PyArrow) and `scan_core/polars.py`.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from decimal import Decimal
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.types as pt

from nevermore.scan_core.expr.coercion import (
    BINARY,
    FLOATING,
    INTEGRAL,
    LONG_RANGE,
    TIMESTAMPS,
    name_of,
    round_to_float,
)
from nevermore.scan_core.expr.nodes import Constant, Expr, Name
from nevermore.scan_core.model.errors import ColumnNotFoundError, PredicateError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.model.schema import PrimitiveType, Schema, StructType, Type
from nevermore.scan_core.read.projection import DEAD_ROW_IDS


class Request(Protocol):
    """The part of `Scan` that is used here; `Scan` itself is in a higher layer."""

    @property
    def schema(self) -> Schema:
        """The columns of the result."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the result as an Arrow schema."""

    @property
    def row_limit(self) -> int | None:
        """Maximum number of rows of the result."""

    @property
    def metrics(self) -> ScanMetrics:
        """Metrics of the last run."""

    @property
    def predicates(self) -> tuple[str | Expr, ...]:
        """The conditions, all of which rows fulfil."""

    def select(self, *names: str | Sequence[str]) -> Self:
        """A scan with fewer columns."""

    def where(self, predicate: str | Expr) -> Self:
        """A scan with one more condition."""

    def limit(self, num_rows: int) -> Self:
        """A scan with at most this many rows."""

    def count(self) -> int:
        """The number of rows."""

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows."""


R = TypeVar("R", bound=Request)
F = TypeVar("F")


class NotTranslatableError(Exception):
    """A condition without an exact equivalent here; the library that it comes from evaluates it."""


class Translation(Generic[R, F]):
    """A scan narrowed by the conditions that it evaluates exactly as the library does.

    Attributes:
        scan: the narrowed scan.
        left: conditions that the library has to evaluate on the rows of the scan, in their order.
    """

    def __init__(self, scan: R, conditions: Iterable[F], translate: Callable[[F, Schema], Expr]) -> None:
        """`translate` raises `NotTranslatableError` for a condition without equivalent; `conditions` must all be true."""
        left: list[F] = []
        schema = scan.schema
        for condition in conditions:
            if scan.row_limit is not None:  # a limit takes rows before the condition is asked
                left.append(condition)
                continue
            try:
                scan = scan.where(translate(condition, schema))
            except (NotTranslatableError, PredicateError, ColumnNotFoundError):
                left.append(condition)
        self.scan = scan
        self.left = tuple(left)


def project(scan: R, names: Iterable[str]) -> R:
    """The scan with these columns alone, in the order of `names`.

    Columns that make a scan return deleted rows (`_deleted`, `_delete_file`) remain, behind the others: without them
    the result would have fewer rows.
    """
    wanted = tuple(dict.fromkeys(names))
    kept = [f.name for f in scan.schema.fields if f.field_id in DEAD_ROW_IDS and f.name not in wanted]
    return scan.select(*wanted, *kept)


def column(schema: Schema, names: Sequence[str]) -> tuple[Expr, Type]:
    """A column of the result, or a member of a struct in it, and its type.

    Args:
        schema: the columns of the result.
        names: name of the column, then of each member down to the one wanted.

    Raises:
        NotTranslatableError: there is no such column.
    """
    found = [field for field in schema.fields if field.name == names[0]]
    if len(found) != 1:
        raise NotTranslatableError
    expression: Expr = Name((names[0],))
    kind = found[0].type
    for name in names[1:]:
        members = [field for field in kind.fields if field.name == name] if isinstance(kind, StructType) else []
        if len(members) != 1:
            raise NotTranslatableError
        expression, kind = expression.member(name), members[0].type
    return expression, kind


_ONE = Decimal(1)
_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
"""Nanoseconds."""
_TEXTS = (pt.is_string, pt.is_large_string, pt.is_string_view)
_BYTES = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)


def constant(kind: Type, value: pa.Scalar) -> Constant:
    """A constant that has the same order and equality among values of type `kind` as `value` has elsewhere.

    Raises:
        NotTranslatableError: NULL, NaN, and values that would be rounded or compared in another type.
    """
    if not value.is_valid or not isinstance(kind, PrimitiveType):
        raise NotTranslatableError
    found = _value(kind, value)
    if found is None:
        raise NotTranslatableError
    if name_of(kind) in INTEGRAL:
        return Constant(found)  # an int or a long, by its size
    return Constant(found, BINARY if name_of(kind) == "fixed" else kind)


def _value(kind: PrimitiveType, value: pa.Scalar) -> Any:
    """The constant in the engine's representation of `kind`; None if it has none."""
    given, name = value.type, kind.name
    match name:
        case "boolean":
            return value.as_py() if pt.is_boolean(given) else None
        case _ if name in INTEGRAL:
            number = value.as_py() if pt.is_integer(given) else None
            return number if number is not None and LONG_RANGE[0] <= number <= LONG_RANGE[1] else None
        case _ if name in FLOATING:
            return _float(name, value)
        case "decimal":
            return _decimal(kind, value)
        case "string":
            return value.as_py() if any(is_text(given) for is_text in _TEXTS) else None
        case "binary" | "fixed":
            return value.as_py() if any(is_bytes(given) for is_bytes in _BYTES) else None
        case "date":
            return value.value if pt.is_date32(given) else None
        case "time":
            return _in_unit(value.value, given.unit, "us") if pt.is_time(given) else None
        case _ if name in TIMESTAMPS:
            is_alike = pt.is_timestamp(given) and (given.tz is None) == ("tz" not in name)
            return _in_unit(value.value, given.unit, "ns" if name.endswith("_ns") else "us") if is_alike else None
        case _:
            return None


def _float(name: str, value: pa.Scalar) -> float | None:
    if not pt.is_floating(value.type):
        return None
    number = float(value.as_py())
    is_exact = number == (round_to_float(number) if name == "float" else number)  # NaN differs from itself
    return number if is_exact else None


def _decimal(kind: PrimitiveType, value: pa.Scalar) -> Any:
    if not (pt.is_decimal(value.type) and value.type.scale <= kind.parameters[1]):
        return None
    number = value.as_py()
    precision, scale = kind.parameters
    return number.quantize(_ONE.scaleb(-scale)) if number.adjusted() < precision - scale else None


def _in_unit(value: int, unit: str, target: str) -> int | None:
    """A number of units of time in another unit; None if it has a fraction there, or no room."""
    whole, rest = divmod(value * _UNITS[unit], _UNITS[target])
    return whole if rest == 0 and LONG_RANGE[0] <= whole <= LONG_RANGE[1] else None
