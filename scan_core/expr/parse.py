"""SQL text of a filter, in Spark's dialect, to unbound expressions."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from sqlglot import exp, tokens
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from nevermore.scan_core.expr.coercion import from_python, parse_number, parse_text
from nevermore.scan_core.expr.nodes import CastTo, Constant, Expr, Name, Operation, Span
from nevermore.scan_core.model.errors import PredicateError
from nevermore.scan_core.model.schema import PrimitiveType

BINARY: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.DPipe: "||",
    exp.RegexpLike: "rlike",
}
PLAIN = frozenset({"this", "expression", "expressions"})
ARGUMENTS: dict[type[exp.Expression], frozenset[str]] = {
    exp.Div: PLAIN | {"typed", "safe"},
    exp.DPipe: PLAIN | {"safe"},
    exp.Like: PLAIN | {"negate"},
    exp.ILike: PLAIN | {"negate"},
    exp.Is: PLAIN | {"negate"},
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to", "safe", "requires_string"}),
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Concat: frozenset({"expressions", "safe", "coalesce"}),
    exp.In: PLAIN | {"query", "field"},
    exp.Interval: frozenset({"this", "unit"}),
    exp.Literal: frozenset({"this", "is_string"}),
}
"""What the conversion reads of each kind of node; a node that says more is refused, not read without it."""
COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
PREDICATES = (exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape)
TYPE_NAMES = {
    exp.DType.BOOLEAN: "boolean",
    exp.DType.INT: "int",
    exp.DType.BIGINT: "long",
    exp.DType.FLOAT: "float",
    exp.DType.DOUBLE: "double",
    exp.DType.DECIMAL: "decimal",
    exp.DType.TEXT: "string",
    exp.DType.BINARY: "binary",
    exp.DType.DATE: "date",
    exp.DType.TIME: "time",
    exp.DType.TIMESTAMPTZ: "timestamptz",
    exp.DType.TIMESTAMPLTZ: "timestamptz",
    exp.DType.TIMESTAMPNTZ: "timestamp",
    exp.DType.UUID: "uuid",
}


IN_QUERIES = "queries take it: nevermore sql"
"""The hint where a condition is one of Spark's, but not of filters."""
MAX_TOKENS = 50_000
"""Names, values and operators of a text outside of IN lists: some 10,000 conditions. Parsing takes 0.1 ms each."""
MAX_LISTED_TOKENS = 800_000
"""Inside of IN lists, where a value takes a comma and perhaps a sign: 200,000 values and more."""
MAX_NESTING = 200
"""Parentheses, brackets and CASEs within each other: as deep as expressions may be."""

_OPENING = frozenset({tokens.TokenType.L_PAREN, tokens.TokenType.L_BRACKET, tokens.TokenType.CASE})
_CLOSING = frozenset({tokens.TokenType.R_PAREN, tokens.TokenType.R_BRACKET, tokens.TokenType.END})


def syntax_trees(sql: str) -> list[exp.Expression]:
    """The trees of the expressions in a text, separated by semicolons.

    Raises:
        SqlglotError: syntax error.
        PredicateError: more than a parser takes in bounded time.
    """
    dialect = _Filter()
    found = dialect.tokenize(sql)
    require_bounded(found)
    return [tree for tree in dialect.parser().parse(found, sql) if tree is not None]


def require_bounded(found: list[tokens.Token]) -> None:
    """Refuse a text, before it is parsed, that would take very long to parse or nests too deeply for the parser.

    Raises:
        PredicateError: the text exceeds a limit, which the message names.
    """
    if len(found) <= MAX_NESTING:
        return
    open_lists: list[bool] = []
    inside = 0
    before = None
    for token in found:
        kind = token.token_type
        if kind in _OPENING:
            open_lists.append(before is tokens.TokenType.IN)
            if len(open_lists) > MAX_NESTING:
                raise PredicateError(
                    f"the SQL nests too deeply: more than {MAX_NESTING} parentheses, brackets or CASEs within each other"
                )
        elif kind in _CLOSING and open_lists:
            open_lists.pop()
        elif open_lists and open_lists[-1]:
            inside += 1
        before = kind
    if len(found) - inside > MAX_TOKENS:
        raise PredicateError(
            f"the SQL has {len(found) - inside} names, values and operators; more than {MAX_TOKENS} outside of IN lists "
            "are refused: use IN lists, or semi_join for many keys"
        )
    if inside > MAX_LISTED_TOKENS:
        raise PredicateError(
            f"the IN lists of the SQL have {inside} values, signs and commas; more than {MAX_LISTED_TOKENS} are refused: "
            "use semi_join"
        )


class _FilterParser(SparkParser):  # type: ignore[misc]  # sqlglot is untyped here
    """Spark's grammar, but calls stay calls: no rewriting of functions into canonical ones."""

    TERM: ClassVar[dict[Any, Any]] = {**SparkParser.TERM, tokens.TokenType.DPIPE: exp.DPipe}  # as tight as `+`

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: parser for name, parser in SparkParser.FUNCTION_PARSERS.items() if name in {"CAST", "TRY_CAST", "EXTRACT"}
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: parser for name, parser in SparkParser.NO_PAREN_FUNCTION_PARSERS.items() if name in {"CASE", "ANY"}
    }
    PRIMARY_PARSERS: ClassVar[dict[Any, Any]] = {
        **SparkParser.PRIMARY_PARSERS,
        tokens.TokenType.NULL: lambda self, token: self.expression(exp.Null(), token),
        tokens.TokenType.TRUE: lambda self, token: self.expression(exp.Boolean(this=True), token),
        tokens.TokenType.FALSE: lambda self, token: self.expression(exp.Boolean(this=False), token),
    }

    def _parse_csv(self, parse_method: Any, sep: Any = tokens.TokenType.COMMA) -> list[Any]:
        def parse_one() -> Any:
            found = parse_method()
            if found is None and (self._prev.token_type is sep or self._match(sep)):
                self.raise_error("Required keyword", self._prev)  # sqlglot leaves out what is missing
            return found

        return super()._parse_csv(parse_one, sep)  # type: ignore[no-any-return]


class _Filter(Spark):  # type: ignore[misc]  # sqlglot is untyped here
    """Spark 4: a doubled quote inside a string is a quote."""

    class Tokenizer(Spark.Tokenizer):  # type: ignore[misc]  # sqlglot is untyped here
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    Parser = _FilterParser


_SHOWN_BEFORE, _SHOWN = 60, 120


def point_at(sql: str | None, span: Span | None, message: str) -> str:
    """The message, and below it the line of `sql` in question with carets under `span`."""
    if sql is None or span is None:
        return f"{message}\n  {sql[:_SHOWN]}" if sql else message
    start, end = span
    line_start = sql.rfind("\n", 0, start) + 1
    line_end = sql.find("\n", start)
    line = sql[line_start : line_end if line_end >= 0 else len(sql)]
    left = max(0, start - line_start - _SHOWN_BEFORE)
    shown = line[left : left + _SHOWN]
    width = max(1, min(end, line_start + left + len(shown) - 1) - start + 1)
    return f"{message}\n  {shown}\n  {' ' * (start - line_start - left)}{'^' * width}"


MAX_FILTER_CHARACTERS = 4_000_000
"""Generous for IN lists of 100,000 values; longer text is a mistake or an attack."""


@lru_cache(maxsize=4)  # `where` binds a text once to report mistakes at once, the plan of the scan binds it again
def parse(sql: str) -> Expr:
    """The expression that `sql` states.

    Raises:
        PredicateError: syntax error or unsupported construct; the message shows the place with a caret.
    """
    if len(sql) > MAX_FILTER_CHARACTERS:
        raise PredicateError(f"the filter has {len(sql)} characters; more than {MAX_FILTER_CHARACTERS} are refused")
    try:
        trees = syntax_trees(sql)
    except SqlglotError as error:
        raise PredicateError(_syntax_message(sql, error)) from error
    except RecursionError as error:
        raise PredicateError("the filter nests too deeply") from error
    if len(trees) == 1 and isinstance(trees[0], exp.Select):
        raise PredicateError(point_at(sql, (0, 5), "write the condition alone, without 'select'"))
    if len(trees) != 1:
        raise PredicateError("the filter is empty" if not trees else point_at(sql, None, "one expression, no ';'"))
    try:
        return _Converter(sql).convert(trees[0])
    except RecursionError as error:
        raise PredicateError("the filter nests too deeply") from error


def _syntax_message(sql: str, error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if not details:
        return point_at(sql, (max(0, len(sql) - 1), len(sql)), f"cannot read the filter: {error}")
    if (word := sql.split(None, 1)[0].lower()) in {"where", "select"}:
        start = len(sql) - len(sql.lstrip())
        return point_at(sql, (start, start + len(word) - 1), f"write the condition alone, without {word!r}")
    first = details[0]
    lines = sql.split("\n")
    line = min(int(first.get("line") or 1), len(lines))
    end = sum(len(text) + 1 for text in lines[: line - 1]) + int(first.get("col") or 1) - 1
    width = max(1, len(first.get("highlight") or ""))
    description = str(first.get("description"))
    if description.startswith("Required keyword"):
        description = "something is missing after this"
    elif description.startswith(("Invalid expression", "Expected")):  # the second kind shows objects of the parser
        description = "this was not expected here"
    elif description.startswith("Expecting"):
        description = f"a {description.removeprefix('Expecting ')} is missing after this"
    return point_at(sql, (max(0, end - width + 1), end), f"syntax error in the filter: {description}")


_TEXT_LITERALS = frozenset({"date", "time", "timestamp", "timestamptz"})


class _Converter:
    def __init__(self, sql: str) -> None:
        self._sql = sql

    def refuse(self, node: exp.Expression, what: str) -> PredicateError:
        return PredicateError(point_at(self._sql, _span(node), what))

    def convert(self, node: exp.Expression) -> Expr:
        unexpected = {name for name, value in node.args.items() if value} - ARGUMENTS.get(type(node), PLAIN)
        if unexpected:
            raise self.refuse(node, f"{_name_of(node)} is not supported in a filter")
        if type(node) in BINARY:
            return self._binary(node)
        if isinstance(node, exp.And | exp.Or):
            return self._connector(node)
        method = getattr(self, f"_convert_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.refuse(node, f"{_name_of(node)} is not supported in a filter; {IN_QUERIES}")
        result: Expr = method(node)
        return result

    def _operation(self, name: str, node: exp.Expression, *arguments: exp.Expression | Expr) -> Operation:
        converted = tuple(a if isinstance(a, Expr) else self.convert(a) for a in arguments)
        return Operation(name, converted, _span(node))

    def _binary(self, node: exp.Expression) -> Expr:
        self._forbid_chains(node, node.this, node.expression)
        return self._operation(BINARY[type(node)], node, node.this, node.expression)

    def _forbid_chains(self, node: exp.Expression, *operands: exp.Expression) -> None:
        # Spark and sqlglot group `a = b is null` and `a = b < c` differently: refuse rather than choose
        loose = COMPARISONS + PREDICATES
        if isinstance(node, loose) and (bad := next((o for o in operands if isinstance(o, (*loose, exp.Not))), None)):
            raise self.refuse(bad, "put parentheses around a comparison that is an operand of another one")

    def _connector(self, node: exp.Expression) -> Expr:
        kind = type(node)
        operands: list[exp.Expression] = []
        stack = [node]
        while stack:  # chains of 10,000 ORs nest as deep
            current = stack.pop()
            if type(current) is kind:
                stack.extend((current.expression, current.this))
            else:
                operands.append(current)
        return self._operation("and" if kind is exp.And else "or", node, *operands)

    def _convert_paren(self, node: exp.Paren) -> Expr:
        return self.convert(node.this)

    def _convert_column(self, node: exp.Column) -> Expr:
        if not isinstance(node.this, exp.Identifier):
            raise self.refuse(node, f"{_name_of(node.this)} is not supported in a filter")
        return Name(tuple(p.name for p in node.parts), _span(node))

    def _convert_dot(self, node: exp.Dot) -> Expr:
        if not isinstance(node.expression, exp.Identifier):
            raise self.refuse(node, f"{_name_of(node.expression)} after '.' is not supported in a filter")
        below = self.convert(node.this)
        if isinstance(below, Name):
            return Name((*below.parts, node.expression.name), _span(node))
        return self._operation(".", node, below, Constant(node.expression.name))

    def _convert_bracket(self, node: exp.Bracket) -> Expr:
        if len(node.expressions) != 1:
            raise self.refuse(node, "a subscript takes one position or key")
        return self._operation("[]", node, node.this, node.expressions[0])

    def _convert_literal(self, node: exp.Literal) -> Expr:
        if node.is_string:
            return Constant(node.this, span=_span(node))
        return self._number(node.this, node)

    def _number(self, text: str, node: exp.Expression) -> Constant:
        try:
            number = parse_number(text)
            from_python(number)
        except ValueError as error:
            raise self.refuse(node, f"not a valid number: {error}") from error
        return Constant(number, span=_span(node))

    def _convert_concat(self, node: exp.Concat) -> Expr:  # 'a' 'b': adjacent strings are one
        return Constant("".join(part.this for part in node.expressions), span=_span(node))

    def _convert_hexstring(self, node: exp.HexString) -> Expr:
        try:
            return Constant(bytes.fromhex("0" * (len(node.this) % 2) + node.this), span=_span(node))
        except ValueError as error:
            raise self.refuse(node, f"X'{node.this}' is not a hexadecimal string") from error

    def _convert_rawstring(self, node: exp.Expression) -> Expr:
        return Constant(node.this, span=_span(node))

    _convert_boolean = _convert_null = _convert_rawstring

    def _convert_neg(self, node: exp.Neg) -> Expr:
        below = node.this
        if isinstance(below, exp.Literal) and not below.is_string:  # -2147483648 is an int, 2147483648 is not
            return self._number(f"-{below.this}", node)
        if isinstance(below, exp.TryCast) and isinstance(below.this, exp.Literal) and not below.this.is_string:
            return CastTo(self._number(f"-{below.this.this}", node), self._type_name(below), safe=False)
        return self._operation("negative", node, below)

    def _convert_not(self, node: exp.Not) -> Expr:
        return self._operation("not", node, node.this)

    def _convert_is(self, node: exp.Is) -> Expr:
        self._forbid_chains(node, node.this)
        match node.expression:
            case exp.Null():
                test = self._operation("is null", node, node.this)
            case exp.Boolean(this=value):
                test = self._operation("<=>", node, node.this, Constant(bool(value)))
            case other:
                raise self.refuse(node, f"is {other.sql('spark').lower()} is not supported in a filter")
        return self._operation("not", node, test) if node.args.get("negate") else test

    def _convert_nullsafeneq(self, node: exp.NullSafeNEQ) -> Expr:
        self._forbid_chains(node, node.this, node.expression)
        return self._operation("not", node, self._operation("<=>", node, node.this, node.expression))

    def _convert_between(self, node: exp.Between) -> Expr:
        self._forbid_chains(node, node.this, node.args["low"], node.args["high"])
        return self._operation("between", node, node.this, node.args["low"], node.args["high"])

    def _convert_in(self, node: exp.In) -> Expr:
        self._forbid_chains(node, node.this)
        if node.args.get("query"):
            raise self.refuse(node, "in (subquery) is not supported in a filter")
        if not node.expressions:
            raise self.refuse(node, "in takes values in parentheses; array_contains(list, value) looks into a list")
        return self._operation("in", node, node.this, *node.expressions)

    def _convert_like(self, node: exp.Like | exp.ILike, escape: str = "\\") -> Expr:
        name = "ilike" if isinstance(node, exp.ILike) else "like"
        self._forbid_chains(node, node.this)
        quantified = node.expression
        patterns = [quantified]
        if isinstance(quantified, exp.Any | exp.All):
            listed = quantified.this.unnest()
            patterns = listed.expressions if isinstance(listed, exp.Tuple) else [listed]
        parts: list[Expr] = [self._operation(name, node, node.this, p, Constant(escape)) for p in patterns]
        if node.args.get("negate"):  # of LIKE ANY, too: any pattern that does not match
            parts = [self._operation("not", node, part) for part in parts]
        if len(parts) == 1:
            return parts[0]
        return self._operation("or" if isinstance(quantified, exp.Any) else "and", node, *parts)

    _convert_ilike = _convert_like

    def _convert_escape(self, node: exp.Escape) -> Expr:
        escape = node.expression
        if not isinstance(node.this, exp.Like | exp.ILike) or not escape.is_string or len(escape.this) != 1:
            raise self.refuse(node, "escape takes one character, after like or ilike")
        return self._convert_like(node.this, escape.this)

    def _convert_case(self, node: exp.Case) -> Expr:
        parts: list[Expr] = []
        for branch in node.args["ifs"]:
            condition = self.convert(branch.this)
            if node.this is not None:
                condition = self._operation("=", branch, node.this, condition)
            parts += (condition, self.convert(branch.args["true"]))
        default = node.args.get("default")
        return Operation("case", (*parts, self.convert(default) if default else Constant(None)), _span(node))

    def _convert_cast(self, node: exp.Cast) -> Expr:
        if isinstance(node.this, exp.Literal) and not isinstance(node, exp.TryCast):  # date '2026-01-01'
            name = self._type_name(node)
            value = parse_text(node.this.this, name) if name in _TEXT_LITERALS else None
            if value is None:
                raise self.refuse(node, f"{node.this.this!r} is not a valid {name.removesuffix('tz')}")
            return Constant(value, PrimitiveType(name), _span(node))
        return CastTo(self.convert(node.this), self._type_name(node), safe=False, span=_span(node))

    def _convert_trycast(self, node: exp.TryCast) -> Expr:
        return CastTo(
            self.convert(node.this), self._type_name(node), safe=bool(node.args.get("safe")), span=_span(node)
        )

    def _type_name(self, node: exp.Cast) -> str:
        to = node.to
        name = TYPE_NAMES.get(to.this)
        if name is None or to.args.get("nested"):
            raise self.refuse(node, f"cast to {to.sql('spark').lower()} is not supported in a filter")
        if name != "decimal":
            return name
        parameters = [p.name for p in to.expressions]
        precision, scale = (*parameters, "0")[:2] if parameters else ("10", "0")
        return f"decimal({precision}, {scale})"

    def _convert_extract(self, node: exp.Extract) -> Expr:
        return self._operation(f"extract {node.name.lower()}", node, node.expression)

    def _convert_interval(self, node: exp.Interval) -> Expr:
        unit = node.args.get("unit")
        if not isinstance(node.this, exp.Literal) or not isinstance(unit, exp.Var):
            raise self.refuse(node, "an interval in a filter is a number and one unit: interval 3 days")
        return self._operation(
            "interval", node, Constant(node.this.this), Constant(unit.name.lower().removesuffix("s"))
        )

    def _convert_anonymous(self, node: exp.Anonymous) -> Expr:
        return self._operation(node.name.lower(), node, *node.expressions)


def _span(node: exp.Expression) -> Span | None:
    """Characters from the first to the last token below `node` that knows its place."""
    starts, ends = [], []
    for part in node.walk():
        if "start" in part.meta:
            starts.append(part.meta["start"])
            ends.append(part.meta["end"])
    return (min(starts), max(ends)) if starts else None


def _name_of(node: exp.Expression) -> str:
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists | exp.SetOperation):
        return "a subquery"
    if isinstance(node, exp.In):
        return "in (subquery)"
    if isinstance(node, exp.Alias):
        return f"the alias {node.alias!r}"
    if isinstance(node, exp.Func):
        return f"{node.sql_name().lower()}()"
    return f"{node.sql('spark')!r:.60}"


def inside(struct: str, predicate: str | Expr) -> Expr:
    """The same condition on the members of a struct column."""
    node = parse(predicate) if isinstance(predicate, str) else predicate
    match node:
        case Name():
            return replace(node, parts=(struct, *node.parts), span=None)
        case Operation():
            return Operation(node.name, tuple(inside(struct, argument) for argument in node.arguments))
        case CastTo():
            return CastTo(inside(struct, node.operand), node.type, node.safe)
        case _:
            return node


_STRICT = frozenset(
    {"and", "or", "not", "=", "<>", "<", "<=", ">", ">=", "in", "between", "like", "ilike", "rlike", ".", "[]"}
)
"""Operations that are true only if they are for every value that a NULL may stand for."""


def null_is_unknown(predicate: str | Expr) -> tuple[Expr, tuple[Name, ...]]:
    """The same condition where a NULL stands for a value that is not known: true only if it is whatever the value may be.

    Also returns the columns whose NULLs the condition tests, as `is null` and `coalesce` do; without any, it is unchanged.
    """
    node = parse(predicate) if isinstance(predicate, str) else predicate
    if isinstance(node, Operation) and node.name in {"and", "or", "not"}:
        parts = [null_is_unknown(argument) for argument in node.arguments]
        return Operation(node.name, tuple(part for part, _ in parts)), tuple(n for _, names in parts for n in names)
    names = tuple(_tested_for_null(node, is_tested=False))
    if not names:
        return node, ()
    known = tuple(Operation("not", (Operation("is null", (name,)),)) for name in names)
    return Operation("case", (known[0] if len(known) == 1 else Operation("and", known), node, Constant(None))), names


def _tested_for_null(node: Expr, *, is_tested: bool) -> Iterator[Name]:
    match node:
        case Name():
            if is_tested:
                yield node
        case Operation():
            for argument in node.arguments:
                yield from _tested_for_null(argument, is_tested=is_tested or node.name not in _STRICT)
        case CastTo():
            yield from _tested_for_null(node.operand, is_tested=is_tested)


def texts_in(predicate: str | Expr) -> Iterator[str]:
    """The text constants of a condition."""
    match parse(predicate) if isinstance(predicate, str) else predicate:
        case Constant(value=str(text)):
            yield text
        case Operation(arguments=arguments):
            for argument in arguments:
                yield from texts_in(argument)
        case CastTo(operand=operand):
            yield from texts_in(operand)
