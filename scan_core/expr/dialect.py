"""Spark's SQL grammar as filters use it: sqlglot's, with its rewriting into other dialects' equivalents switched off.

And what its nodes are called here. How they become expressions is in `parse.py`.
"""

from typing import Any, ClassVar

from sqlglot import exp, tokens
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

from scan_core.errors import PredicateError

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
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
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
    """Refuse a text whose parsing would take very long, or nest too deeply for the parser, before it is parsed.

    Raises:
        PredicateError: says which limit it is beyond.
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


class _Filter(Spark):  # type: ignore[misc]  # sqlglot is untyped here
    """Spark 4: a doubled quote inside a string is a quote."""

    class Tokenizer(Spark.Tokenizer):  # type: ignore[misc]  # sqlglot is untyped here
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    Parser = _FilterParser
