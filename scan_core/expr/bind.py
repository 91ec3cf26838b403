"""Names to field ids, operators to types: from an expression to a bound predicate."""

import datetime as dt
from dataclasses import replace
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

from nevermore.scan_core.expr.bound import (
    And,
    BoundExpr,
    Call,
    Case,
    Column,
    Comparison,
    InSet,
    IsNull,
    Like,
    Literal,
    Member,
    Not,
    Or,
    is_access,
)
from nevermore.scan_core.expr.coercion import (
    BOOLEAN,
    DATE,
    STRING,
    ConversionError,
    cast_to,
    coerce,
    common_type,
    decimal_of,
    decimal_type,
    from_python,
    is_primitive,
    name_of,
)
from nevermore.scan_core.expr.kernels import evaluation_error, judge
from nevermore.scan_core.expr.nodes import BoundPredicate, CastTo, Constant, Expr, Name, Operation, Span
from nevermore.scan_core.expr.normalize import conjuncts_of, normalize
from nevermore.scan_core.expr.parse import IN_QUERIES, point_at
from nevermore.scan_core.expr.rules import (
    DATE_PARTS,
    FUNCTIONS,
    ArgumentError,
    condition_of,
    plus_interval,
    same_type,
    subscript,
)
from nevermore.scan_core.expr.strings import like_parts, translated_regex
from nevermore.scan_core.model.errors import ColumnNotFoundError, PredicateError
from nevermore.scan_core.model.schema import (
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    Schema,
    StructType,
    Type,
    parse_type,
)
from nevermore.scan_core.rows.buffers import Mask

METADATA_COLUMNS: dict[str, tuple[int, Type]] = {
    "_file": (2147483646, STRING),
    "_pos": (2147483645, PrimitiveType("long")),
    "_row_id": (2147483540, PrimitiveType("long")),
    "_last_updated_sequence_number": (2147483539, PrimitiveType("long")),
}
"""Metadata columns a filter may name, with the field ids that the specification reserves for them."""


class Names:
    """The names of one schema."""

    def __init__(self, schema: Schema, *, case_sensitive: bool) -> None:
        self._schema, self._case_sensitive = schema, case_sensitive

    def resolve(self, name: Name) -> BoundExpr:
        """The column, or the member of a struct, that a possibly dotted name stands for.

        The longest column name wins: columns may have dots in their names.

        Raises:
            ColumnNotFoundError: no column matches, or several do.
        """
        column, rest = self._column(name)
        node: BoundExpr = column
        for part in rest:
            node = self.member(node, part)
        return node

    def is_column(self, name: str) -> bool:
        """Whether this is the name of a top-level column."""
        return any(self._same(field.name, name) for field in self._schema.fields)

    def member(self, node: BoundExpr, part: str) -> BoundExpr:
        """A member of a struct, or the value that a map has for a key.

        Raises:
            ColumnNotFoundError: the struct has no such member, or it is neither.
        """
        match node.type:
            case StructType(fields):
                found = [(i, f) for i, f in enumerate(fields) if self._same(f.name, part)]
                if len(found) == 1:
                    index, field = found[0]
                    return Member(node, field.field_id, field.name, index, _compared(field.type))
                near = get_close_matches(part, [f.name for f in fields], n=3)
                hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(f.name for f in fields)}"
                raise ColumnNotFoundError(f"{'no' if not found else 'ambiguous'} member {part!r}; {hint}")
            case ListType(NestedField(type=StructType(fields)) as element):
                kept = [f for f in fields if self._same(f.name, part)]
                if len(kept) != 1:
                    hint = f"they have {', '.join(f.name for f in fields)}"
                    raise ColumnNotFoundError(
                        f"{'ambiguous' if kept else 'no'} member {part!r} of the elements; {hint}"
                    )
                of_member = replace(element, type=kept[0].type, required=element.required and kept[0].required)
                return Call("list_member", (node, Literal(kept[0].name, STRING)), ListType(of_member))
            case MapType(key) if name_of(key.type) == "string":
                return subscript("[]", (node, Literal(part, STRING)))
            case _:
                raise ColumnNotFoundError(f"{part!r} cannot be taken from a {node.type}")

    def _column(self, name: Name) -> tuple[Column, tuple[str, ...]]:
        whole = ".".join(name.parts)
        for parts in dict.fromkeys((name.parts, tuple(whole.split(".")))):
            for length in range(len(parts), 0, -1):
                wanted = ".".join(parts[:length])
                found = [f for f in self._schema.fields if self._same(f.name, wanted)]
                if len(found) > 1:
                    ids = ", ".join(str(f.field_id) for f in found)
                    raise ColumnNotFoundError(f"column {wanted!r} is ambiguous: field ids {ids}")
                if found:
                    return Column(found[0].field_id, found[0].name, _compared(found[0].type)), parts[length:]
        if whole in METADATA_COLUMNS:
            field_id, type_ = METADATA_COLUMNS[whole]
            return Column(field_id, whole, type_), ()
        self._schema.find(whole, case_sensitive=self._case_sensitive)  # raises, and names the nearest columns
        raise ColumnNotFoundError(f"no column {whole!r}")

    def _same(self, name: str, wanted: str) -> bool:
        return name == wanted or (not self._case_sensitive and name.lower() == wanted.lower())


_ACCESSES = frozenset({"[]", "element_at", "try_element_at", "get", "."})
_DATES = frozenset({"current_date", "curdate"})
_MOMENTS = frozenset({"current_timestamp", "now"})


def _compared(kind: Type) -> Type:
    """The type that conditions see: of a variant its JSON text."""
    return STRING if name_of(kind) == "variant" else kind


def clock_literal(function: str, now: dt.datetime) -> Literal | None:
    """The value of a function of the clock at `now`, which is in UTC; None if it is another function."""
    if function in _DATES:
        return Literal(*from_python(now.date()))
    if function in _MOMENTS:
        return Literal(*from_python(now))
    return Literal(*from_python(now.replace(tzinfo=None))) if function == "localtimestamp" else None


_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">=", "<=>"})
_TESTS = _COMPARISONS | {"in", "between", "like", "ilike", "rlike", "is null"}
_TYPE_SYNONYMS = {"bigint": "long", "integer": "int", "timestamp_ltz": "timestamptz", "timestamp_ntz": "timestamp"}


def bind(
    expression: Expr | str,
    schema: Schema,
    case_sensitive: bool = True,  # noqa: FBT001, FBT002  # the signature the scan calls
) -> BoundPredicate:
    """The predicate that a filter states about rows of `schema`.

    Args:
        expression: SQL text or an expression object.
        schema: the schema in force.
        case_sensitive: match column names exactly.

    Raises:
        PredicateError: syntax, names or types are wrong, or a construct is not supported; says what and where.
    """
    sql = expression if isinstance(expression, str) else None
    if isinstance(expression, str):
        from nevermore.scan_core.expr.parse import parse  # workers unpickle predicates without loading sqlglot

        expression = parse(expression)
    binder = _Binder(schema, sql, case_sensitive=case_sensitive)
    try:
        bound = binder.bind(expression)
        if name_of(bound.type) not in {"boolean", "unknown"}:
            raise PredicateError(
                point_at(sql, span_of(expression), f"a filter must be true or false, but this has type {bound.type}")
            )
        return BoundPredicate(sql if sql is not None else str(expression), conjuncts_of(bound))
    except RecursionError as error:
        raise PredicateError("the filter nests too deeply") from error


def rows_where(predicate: Expr | str, schema: Schema, rows: pa.Table) -> Mask:
    """The rows of a table for which a filter is true.

    Args:
        predicate: as for `bind`.
        schema: that of the rows, whose columns may be in another order.
        rows: in the types of `schema`.

    Raises:
        PredicateError: as `bind`.
        EvaluationError: it fails on a row.
    """
    columns = {f.field_id: rows.column(f.name).combine_chunks() for f in schema.fields}
    passed = np.ones(rows.num_rows, np.bool_)
    for conjunct in bind(predicate, schema).conjuncts:
        outcome = judge(conjunct, columns, rows.num_rows)
        if outcome.failed is not None:
            raise evaluation_error(conjunct, outcome)
        passed &= outcome.passed
    return passed


def bind_access(text: str, schema: Schema, *, case_sensitive: bool = True) -> BoundExpr | None:
    """A part of a column: `l[0].a`, `m['k']`, `l.a` (the member `a` of all elements of a list); None if `text` is not such an access. Raises: PredicateError: it is one, but the column has no such part."""
    from nevermore.scan_core.expr.parse import parse

    try:
        expression = parse(text)
    except PredicateError:
        return None
    if not isinstance(expression, Name) and not (isinstance(expression, Operation) and expression.name in _ACCESSES):
        return None
    bound = normalize(_Binder(schema, text, case_sensitive=case_sensitive).bind(expression))
    return bound if is_access(bound) else None


def span_of(expression: Expr) -> Span | None:
    """Where the expression stands in the text, None if it was built from objects."""
    return getattr(expression, "span", None)


class _Binder:
    def __init__(self, schema: Schema, sql: str | None, *, case_sensitive: bool) -> None:
        self._sql = sql
        self._names = Names(schema, case_sensitive=case_sensitive)
        self._now = dt.datetime.now(dt.UTC)

    def refuse(self, expression: Expr, message: str) -> PredicateError:
        where = "" if self._sql is not None and span_of(expression) else f" (in {expression})"
        return PredicateError(point_at(self._sql, span_of(expression), message + where))

    def bind(self, expression: Expr) -> BoundExpr:
        match expression:
            case Name():
                return self._bind_name(expression)
            case Constant():
                return self._bind_constant(expression)
            case CastTo():
                return self._bind_cast(expression)
            case Operation():
                return self._bind_operation(expression)
            case _:
                raise PredicateError(f"{expression!r} is not an expression of the filter language")

    def _bind_constant(self, constant: Constant) -> BoundExpr:
        if constant.type is not None:
            return Literal(constant.value, constant.type)
        try:
            return Literal(*from_python(constant.value))
        except ValueError as error:
            raise self.refuse(constant, str(error)) from error

    def _bind_cast(self, cast: CastTo) -> BoundExpr:
        target = cast.type
        if isinstance(target, str):
            text = target.strip().lower()
            try:
                target = parse_type(_TYPE_SYNONYMS.get(text, text))
            except ValueError as error:
                raise self.refuse(cast, f"cast to {cast.type}: {error}") from error
        try:
            return cast_to(self.bind(cast.operand), target, safe=cast.safe)
        except ConversionError as error:
            raise self.refuse(cast, str(error)) from error

    def _bind_name(self, name: Name) -> BoundExpr:
        try:
            return self._names.resolve(name)
        except ColumnNotFoundError as error:
            if (known := clock_literal(".".join(name.parts).lower(), self._now)) is not None:
                return known
            raise self.refuse(name, str(error)) from error

    def _member(self, node: BoundExpr, part: str, where: Expr) -> BoundExpr:
        try:
            return self._names.member(node, part)
        except ColumnNotFoundError as error:
            raise self.refuse(where, str(error)) from error

    def _bind_operation(self, operation: Operation) -> BoundExpr:  # noqa: C901, PLR0912  # one flat case per operator
        name, arguments = operation.name, operation.arguments
        self._refuse_quoted_columns(operation)
        try:
            match name:
                case "and" | "or":
                    bound = tuple(condition_of(self.bind(a), name, i) for i, a in enumerate(arguments))
                    return And(bound) if name == "and" else Or(bound)
                case "not":
                    return Not(condition_of(self.bind(arguments[0]), name))
                case "in":
                    return self._bind_in(operation)
                case "between":
                    value, low, high = map(self.bind, arguments)
                    return And((self._compare(">=", (value, low)), self._compare("<=", (value, high))))
                case "is null":
                    return IsNull(self.bind(arguments[0]))
                case "like" | "ilike" if arguments[2:]:
                    return self._bind_like(operation)
                case "rlike" | "regexp" | "regexp_like" if arguments[1:]:
                    return self._bind_regex(operation)
                case ".":
                    member = arguments[1]
                    assert isinstance(member, Constant)  # noqa: S101  # the parser and `Expr.member` build no other
                    return self._member(self.bind(arguments[0]), str(member.value), operation)
                case "case":
                    return self._bind_case(operation)
                case "equal_null":
                    return self._compare("<=>", tuple(self.bind(a) for a in arguments))
                case _ if name in _COMPARISONS:
                    return self._compare(name, tuple(self.bind(a) for a in arguments))
                case _ if name.startswith("extract "):
                    return self._bind_extract(operation, name.removeprefix("extract "), arguments[0])
                case "date_part" | "datepart" if len(arguments) == 2 and isinstance(arguments[0], Constant):
                    return self._bind_extract(operation, str(arguments[0].value).lower(), arguments[1])
                case "+" | "-" if (shifted := self._bind_shift(operation)) is not None:
                    return shifted
                case _:
                    return self._bind_call(operation)
        except ArgumentError as error:
            place = operation if error.index is None else arguments[min(error.index, len(arguments) - 1)]
            raise self.refuse(place, str(error)) from error
        except ConversionError as error:
            raise self.refuse(operation, str(error)) from error

    def _refuse_quoted_columns(self, operation: Operation) -> None:
        """`"name" = 'x'` compares two strings in Spark, which is hardly ever intended."""
        constants = [a for a in operation.arguments if isinstance(a, Constant)]
        if operation.name not in _TESTS or len(constants) < len(operation.arguments):
            return
        for constant in constants:
            is_quoted = self._sql is not None and constant.span and self._sql[constant.span[0]] == '"'
            if is_quoted and isinstance(text := constant.value, str) and self._names.is_column(text):
                raise self.refuse(
                    constant, f"{text!r} is a string here; to name the column write `{text}` in backticks"
                )

    def _bind_call(self, operation: Operation) -> BoundExpr:
        function = FUNCTIONS.get(operation.name)
        count = len(operation.arguments)
        if count == 0 and (known := clock_literal(operation.name, self._now)) is not None:
            return known
        if function is None:
            near = get_close_matches(operation.name, FUNCTIONS, n=3, cutoff=0.8)
            hint = f"did you mean {', '.join(near)}?" if near else IN_QUERIES
            raise self.refuse(operation, f"{operation.name}() is not supported in a filter; {hint}")
        if count < function.least or (function.most is not None and count > function.most):
            most = "or more" if function.most is None else f"to {function.most}"
            wanted = f"{function.least}" if function.most == function.least else f"{function.least} {most}"
            raise self.refuse(operation, f"{operation.name}() takes {wanted} arguments, not {count}")
        return function.bind(operation.name, tuple(self.bind(a) for a in operation.arguments))

    def _compare(self, operator: str, sides: tuple[BoundExpr, ...]) -> BoundExpr:
        left, right = sides
        common = common_type(left.type, right.type)
        if common is None or not is_primitive(common):
            raise ArgumentError(f"{left.type} and {right.type} cannot be compared")
        if name_of(common) == "decimal":  # the kernel compares decimals of any scale exactly
            wide = [s if name_of(s.type) == "decimal" else coerce(s, _decimal_for(s, common)) for s in sides]
            return Comparison(operator, wide[0], wide[1])
        return Comparison(operator, coerce(left, common), coerce(right, common))

    def _bind_in(self, operation: Operation) -> BoundExpr:
        operand, *values = (self.bind(a) for a in operation.arguments)
        common = operand.type
        for index, value in enumerate(values, start=1):
            found = common_type(common, value.type)
            if found is None or not is_primitive(found):
                raise ArgumentError(f"{common} and {value.type} cannot be compared", index)
            common = found
        if not all(isinstance(v, Literal) for v in values):
            return Or(tuple(self._compare("=", (operand, v)) for v in values))
        literals = [coerce(v, common) for v in values]
        found_values = {v.value for v in literals if isinstance(v, Literal) and v.value is not None}
        has_nan = any(v != v for v in found_values)  # noqa: PLR0124  # NaN is the value that differs from itself
        return InSet(
            coerce(operand, common),
            frozenset(v for v in found_values if v == v),  # noqa: PLR0124
            any(isinstance(v, Literal) and v.value is None for v in literals),
            has_nan,
        )

    def _pattern(self, operation: Operation) -> tuple[BoundExpr, str | None]:
        operand, pattern = map(self.bind, operation.arguments[:2])
        if name_of(operand.type) not in {"string", "unknown"}:
            raise ArgumentError(f"{operation.name} takes a string, not {operand.type}", 0)
        if not isinstance(pattern, Literal) or name_of(pattern.type) not in {"string", "unknown"}:
            raise ArgumentError(f"{operation.name} takes a constant pattern in a filter", 1)
        return coerce(operand, STRING), pattern.value

    def _bind_like(self, operation: Operation) -> BoundExpr:
        operand, pattern = self._pattern(operation)
        escape = operation.arguments[2]
        assert isinstance(escape, Constant)  # noqa: S101  # the parser and `Expr.like` build no other
        if pattern is None:
            return Literal(None, BOOLEAN)
        escape_text = None if escape.value is None else str(escape.value)
        try:
            like_parts(pattern, escape_text)
        except ValueError as error:
            raise self.refuse(operation.arguments[1], str(error)) from error
        return Like(operand, pattern, escape_text, operation.name == "ilike")

    def _bind_regex(self, operation: Operation) -> BoundExpr:
        operand, pattern = self._pattern(operation)
        if pattern is None:
            return Literal(None, BOOLEAN)
        try:
            translated_regex(pattern)
        except ValueError as error:
            raise self.refuse(operation.arguments[1], str(error)) from error
        return Call("rlike", (operand, Literal(pattern, STRING)), BOOLEAN)

    def _bind_case(self, operation: Operation) -> BoundExpr:
        bound = [self.bind(a) for a in operation.arguments]
        conditions = [condition_of(c, "when", 2 * i) for i, c in enumerate(bound[:-1:2])]
        values, type_ = same_type("case", (*bound[1:-1:2], bound[-1]))
        return Case(tuple(zip(conditions, values[:-1], strict=True)), values[-1], type_)

    def _bind_extract(self, operation: Operation, part: str, moment: Expr) -> BoundExpr:
        part = {"doy": "dayofyear", "dow": "dayofweek", "week": "weekofyear"}.get(part, part)
        if part not in (*DATE_PARTS, "hour", "minute"):  # extract(second ...) has a fraction, unlike second()
            raise self.refuse(operation, f"extract({part}) is not supported in a filter")
        return FUNCTIONS[part].bind(part, (self.bind(moment),))

    def _bind_shift(self, operation: Operation) -> BoundExpr | None:
        """A date or timestamp plus or minus days or an interval; None if this is other arithmetic."""
        left, right = operation.arguments
        if isinstance(left, Operation) and left.name == "interval" and operation.name == "+":
            left, right = right, left
        moment = self.bind(left)
        kind, sign = name_of(moment.type), -1 if operation.name == "-" else 1
        if isinstance(right, Operation) and right.name == "interval":
            amount, unit = (str(a.value) for a in right.arguments if isinstance(a, Constant))
            return plus_interval(moment, amount, unit, sign)
        if kind != "date":
            return None
        days = self.bind(right)
        if name_of(days.type) != "int":
            raise self.refuse(operation, "a date takes plus or minus days as an int; datediff() subtracts two dates")
        return Call("date_add" if sign > 0 else "date_sub", (moment, days), DATE)


def _decimal_for(side: BoundExpr, common: Type) -> Type:
    return decimal_type(*decimal_of(side.type)) if name_of(side.type) in {"int", "long"} else common
