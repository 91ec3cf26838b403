"""A scan as a `pyarrow.dataset.Dataset`, so that DuckDB and other readers of datasets push columns and filters down.

A filter is read from the bytes in which PyArrow serialises expressions: a record batch whose schema metadata lists the
nodes of the tree in order. Conditions without exact equivalent are evaluated by PyArrow on the rows that the others leave.
"""

import ctypes
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as pt
from pyarrow import acero

from nevermore.scan_core.expr.coercion import FLOATING, name_of
from nevermore.scan_core.expr.nodes import Constant, Expr, Operation, call
from nevermore.scan_core.foreign.pushdown import NotTranslatableError, R, Translation, column, constant, project
from nevermore.scan_core.model.errors import UnsupportedError
from nevermore.scan_core.model.schema import Schema, Type
from nevermore.scan_core.rows.selection import take_rows


@dataclass(frozen=True, slots=True)
class DatasetRead(Generic[R]):
    """One read of a dataset.

    Attributes:
        scan: what was scanned, with columns and conditions pushed down; its metrics are those of this read.
        left: a filter that PyArrow evaluates on the rows of the scan; None where the scan fulfils all of it.
    """

    scan: R
    left: pc.Expression | None


class ScanDataset(ds.InMemoryDataset, Generic[R]):  # type: ignore[misc]  # pyarrow has no type stubs
    """The rows of a scan as a dataset, read again each time.

    Attributes:
        last_read: the read that began last; None before the first.
    """

    def __init__(self, scan: R) -> None:
        super().__init__([], scan.arrow_schema)
        self._scan = scan
        self.last_read: DatasetRead[R] | None = None

    def __repr__(self) -> str:
        return f"ScanDataset({self._scan!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ScanDataset, (self._scan,)

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002  # the name in PyArrow
        batch_size: int | None = None,
        **_: Any,
    ) -> "StreamScanner[R]":
        """The scanner that DuckDB and the inherited methods read through.

        Args:
            columns: names in order, or expressions by name, which PyArrow evaluates; None for all columns.
            filter: rows must fulfil it.
            batch_size: most rows of a batch, if that is less than the scan's `batch_rows`.
            _: PyArrow's own ways to read files, which do not apply.
        """
        tree = None if filter is None else parse(filter)
        narrowed = Translation(self._scan, () if filter is None else _conjuncts(tree), translate)
        left = filter if narrowed.left else None
        names = list(self.schema.names if columns is None else columns)
        wanted = columns if isinstance(columns, Mapping) else {name: pc.field(name) for name in names}
        computed = isinstance(columns, Mapping)
        read = [parse(e) for e in wanted.values()] if computed else [_Field((name,)) for name in names]
        scan = project(narrowed.scan, self._fields(read if left is None else [*read, tree]))
        self.last_read = DatasetRead(scan, left)
        return StreamScanner(scan, left, wanted if computed or names != scan.arrow_schema.names else None, batch_size)

    def _fields(self, trees: "Sequence[_Node | None]") -> list[str]:
        """Columns that expressions may read; all of them for an expression that is not understood."""
        found: list[str] = []
        pending = list(reversed(trees))
        while pending:
            match pending.pop():
                case None:
                    return list(self.schema.names)
                case _Field(names):
                    found.append(names[0])
                case _Call(arguments=arguments):
                    pending.extend(reversed(arguments))
                case _Literal():
                    pass
        return found

    def filter(self, expression: pc.Expression) -> NoReturn:
        """Not available."""
        raise UnsupportedError(
            f"{expression}: filter the scan with where(), or pass filter= to to_table() or scanner()"
        )

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not available."""
        raise UnsupportedError(f"a scan has the types of its table, not those of {schema.names}; cast what it gives")

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:  # noqa: A002, ARG002  # PyArrow's name
        """Not available: deletes apply across files."""
        raise UnsupportedError(
            "a scan applies deletes across files and cannot be read by fragment; Scan.plan() has files"
        )

    def sort_by(self, *_: Any, **__: Any) -> NoReturn:
        """Not available: rows are never all in memory."""
        raise UnsupportedError("a scan is not sorted or joined as a dataset; take the rows with to_table() first")

    join = join_asof = sort_by


@dataclass(frozen=True, slots=True)
class StreamScanner(Generic[R]):
    """What `pyarrow.dataset.Scanner` offers to readers, without its threads: Python may end while a stream is open.

    Attributes:
        scan: what is scanned.
        left: a filter on its rows; None if there is none.
        wanted: columns of the result as expressions, by name; None for those of the scan.
        batch_size: most rows of a batch.
    """

    scan: R
    left: pc.Expression | None
    wanted: Mapping[str, pc.Expression] | None
    batch_size: int | None

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the result."""
        return self._evaluated(self.scan.arrow_schema.empty_table()).schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """The columns that are scanned."""
        return self.scan.arrow_schema

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream, read while it is consumed."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows, batch by batch."""
        with closing(self.scan.to_batches()) as batches:
            for batch in batches:
                for kept in self._evaluated(pa.Table.from_batches([batch])).to_batches(self.batch_size):
                    if kept.num_rows:
                        yield kept

    def to_table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        with closing(self.to_batches()) as batches:
            return pa.Table.from_batches(take_rows(batches, num_rows), self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """The rows at these places of the result."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Rows of the result."""
        return self.scan.count() if self.left is None else sum(batch.num_rows for batch in self.to_batches())

    def _evaluated(self, rows: pa.Table) -> pa.Table:
        """The rows filtered and projected, in order."""
        if self.left is None and self.wanted is None:
            return rows
        steps = [acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))]
        if self.left is not None:
            steps.append(acero.Declaration("filter", acero.FilterNodeOptions(self.left)))
        if self.wanted:
            options = acero.ProjectNodeOptions(list(self.wanted.values()), list(self.wanted))
            steps.append(acero.Declaration("project", options))
        found = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
        return found if self.wanted is None or self.wanted else found.select([])


@dataclass(frozen=True, slots=True)
class _Field:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Literal:
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    arguments: "tuple[_Node, ...]"
    options: pa.StructScalar | None


_Node = _Field | _Literal | _Call


def parse(expression: pc.Expression) -> _Node | None:
    """The tree of an expression; None for one that PyArrow cannot serialise, or serialises in a way not known here."""
    try:
        (serialised,) = expression.__reduce__()[1]
    except pa.ArrowNotImplementedError:  # such as a column by number
        return None
    with pa.ipc.open_file(serialised) as file:
        steps = iter(_metadata(file.schema))
        values = file.get_batch(0).columns if file.num_record_batches else []
    try:
        tree = _node(steps, values, next(steps))
        return tree if next(steps, None) is None else None
    except (NotTranslatableError, StopIteration, ValueError, IndexError):
        return None


def _node(steps: Iterator[tuple[str, str]], values: Sequence[pa.Array], step: tuple[str, str]) -> _Node:
    match step:
        case "literal", index:
            return _Literal(values[int(index)][0])
        case "field_ref", name:
            return _Field((name,))
        case "nested_field_ref", count:
            path = [next(steps) for _ in range(int(count))]
            if not path or any(kind != "field_ref" for kind, _ in path):
                raise NotTranslatableError
            return _Field(tuple(name for _, name in path))
        case "call", function:
            arguments: list[_Node] = []
            options = None
            while (step := next(steps)) != ("end", function):
                if step[0] == "options" and options is None:
                    options = values[int(step[1])][0]
                else:
                    arguments.append(_node(steps, values, step))
            return _Call(function, tuple(arguments), options)
        case _:
            raise NotTranslatableError


class _ArrowSchema(ctypes.Structure):
    """The first members of `struct ArrowSchema` of the Arrow C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """The key-value metadata in order: PyArrow's own view of it is a dictionary, which keeps one value of a repeated key."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = _ArrowSchema.from_address(pointer(capsule, b"arrow_schema")).metadata
    texts: list[str] = []
    if address is None:
        return []
    count, place = ctypes.c_int32.from_address(address).value, address + 4
    for _ in range(2 * count):
        size = ctypes.c_int32.from_address(place).value
        texts.append(ctypes.string_at(place + 4, size).decode())
        place += 4 + size
    del capsule  # what it points to lives as long as it does
    return list(zip(texts[::2], texts[1::2], strict=True))


def _conjuncts(tree: _Node | None) -> list[_Node | None]:
    """The conditions that a filter joins with AND; None stands for one that is not understood."""
    match tree:
        case _Call("and_kleene", arguments):
            return [condition for argument in arguments for condition in _conjuncts(argument)]
        case _:
            return [tree]


_COMPARISONS = {
    "equal": ("=", "="),
    "not_equal": ("<>", "<>"),
    "less": ("<", ">"),
    "less_equal": ("<=", ">="),
    "greater": (">", "<"),
    "greater_equal": (">=", "<="),
}
"""Operators, and the same with the sides exchanged."""
_MATCH, _SKIP, _EMIT_NULL = range(3)
"""How `is_in` treats NULL: as a value of the set, as no value of any set, or as unknown."""


def translate(tree: _Node | None, schema: Schema) -> Expr:  # noqa: C901, PLR0912  one flat case per form
    """A condition of PyArrow in the filter language, NULL where it is NULL there.

    Raises:
        NotTranslatableError: there is no exact equivalent.
    """
    match tree:
        case _Literal(value) if pt.is_boolean(value.type) or pt.is_null(value.type):
            return Constant(value.as_py())
        case _Field(names):
            return _of_kind(column(schema, names), "boolean")
        case _Call("and_kleene" | "or_kleene" as function, (left, right)):
            sides = translate(left, schema), translate(right, schema)
            return Operation(function.removesuffix("_kleene"), sides)
        case _Call("invert", (operand,)):
            return ~translate(operand, schema)
        case _Call(function, (_Field(names), _Literal(value))) if function in _COMPARISONS:
            return _compare(_COMPARISONS[function][0], column(schema, names), value)
        case _Call(function, (_Literal(value), _Field(names))) if function in _COMPARISONS:
            return _compare(_COMPARISONS[function][1], column(schema, names), value)
        case _Call("is_valid", (_Field(names),)):
            return column(schema, names)[0].is_not_null()
        case _Call("is_null", (_Field(names),), options):
            return _is_null(column(schema, names), is_nan_null=_option(options, "NullOptions", "nan_is_null"))
        case _Call("is_in", (_Field(names),), options):
            return _is_in(column(schema, names), options)
        case _Call("if_else", (_Call("is_valid", (_Field(names),)), then, _Literal(other))) if not other.is_valid:
            if isinstance(then, _Call) and then.function == "is_in" and then.arguments == (_Field(names),):
                return _is_in(column(schema, names), then.options, nulls=_EMIT_NULL)  # how DuckDB writes IN
            return Operation("case", (column(schema, names)[0].is_not_null(), translate(then, schema), Constant(None)))
        case _Call("starts_with", (_Field(names),), options):
            if _option(options, "MatchSubstringOptions", "ignore_case") is not False:
                raise NotTranslatableError
            prefix = _option(options, "MatchSubstringOptions", "pattern")
            return _of_kind(column(schema, names), "string").starts_with(prefix)
        case _:
            raise NotTranslatableError


def _of_kind(found: tuple[Expr, Type], kind: str) -> Expr:
    if name_of(found[1]) != kind:
        raise NotTranslatableError
    return found[0]


def _option(options: pa.StructScalar | None, kind: str, name: str) -> Any:
    if options is None or options["_type_name"].as_py() != kind.encode():
        raise NotTranslatableError
    return options[name].as_py()


def _compare(sign: str, found: tuple[Expr, Type], value: pa.Scalar) -> Expr:
    """In PyArrow NaN is neither less than, nor equal to, nor greater than anything; here it is greater than all numbers."""
    expression, kind = found
    condition = Operation(sign, (expression, constant(kind, value)))
    if name_of(kind) in FLOATING and sign in {">", ">="}:
        return condition & ~call("isnan", expression)
    return condition


def _is_null(found: tuple[Expr, Type], *, is_nan_null: bool) -> Expr:
    expression, kind = found
    if is_nan_null and name_of(kind) in FLOATING:
        return expression.is_null() | call("isnan", expression)
    return expression.is_null()


def _is_in(found: tuple[Expr, Type], options: pa.StructScalar | None, nulls: int | None = None) -> Expr:
    """Membership; `nulls` is what NULL is, if that is not as the options say."""
    expression, kind = found
    stated = _option(options, "SetLookupOptions", "null_matching_behavior")
    assert options is not None  # noqa: S101  # `_option` refuses it
    values = options["value_set"].values
    if values is None or name_of(kind) in FLOATING or stated not in {_MATCH, _SKIP, _EMIT_NULL}:
        raise NotTranslatableError  # zeros of both signs are not alike in sets of PyArrow
    if stated == _EMIT_NULL and values.null_count:
        raise NotTranslatableError
    constants = [constant(kind, value) for value in values if value.is_valid]
    condition = expression.is_in(constants) if constants else Constant(value=False)
    match stated if nulls is None else nulls:
        case 2 if constants:
            return condition
        case 2:
            return Operation("case", (expression.is_null(), Constant(None), condition))
        case 0 if values.null_count:
            return expression.is_null() | condition
        case _:
            return expression.is_not_null() & condition
