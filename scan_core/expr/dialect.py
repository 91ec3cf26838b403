"""Spark's SQL grammar as filters use it: sqlglot's, with its rewriting into other dialects' equivalents switched off."""

from typing import Any, ClassVar

from sqlglot import exp, tokens
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser


def syntax_trees(sql: str) -> list[exp.Expression]:
    """The trees of the expressions in a text, separated by semicolons.

    Raises:
        SqlglotError: syntax error.
    """
    dialect = _Filter()
    return [tree for tree in dialect.parser().parse(dialect.tokenize(sql), sql) if tree is not None]


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
