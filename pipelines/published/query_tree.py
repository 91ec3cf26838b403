"""The tree of a query in the form in which it can be judged: columns named in full, types known, CTEs put in place."""

from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from scan_core.schema import PrimitiveType, Schema, Type

DIALECT = "spark"
_TYPES = {
    "long": "bigint",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "timestamptz_ns": "timestamp",
    "timestamp_ns": "timestamp_ntz",
    "uuid": "string",
    "fixed": "binary",
}
"""Iceberg's names of types that Spark calls otherwise."""


def qualified(sql: str, schemas: Mapping[str, Schema]) -> exp.Query | None:
    """The query with every column named by its source and every star spelled out; None where that is in doubt.

    Args:
        sql: over tables of one-part names, the keys of `schemas`.
        schemas: of those tables.
    """
    shapes = {table: {f.name.lower(): _sql_type(f.type) for f in schema.fields} for table, schema in schemas.items()}
    try:
        parsed = sqlglot.parse_one(sql, dialect=DIALECT)
        if _renames_columns(parsed):
            return None
        tree = qualify(parsed, schema=shapes, dialect=DIALECT, quote_identifiers=False)
        tree = annotate_types(tree, schema=shapes, dialect=DIALECT)
    except SqlglotError:
        return None
    return tree if isinstance(tree, exp.Query) else None


def _renames_columns(tree: exp.Expression) -> bool:
    """Whether columns of tables have other names in the text, so that a name may be that of another column."""
    aliases = (table.args.get("alias") for table in tree.find_all(exp.Table))
    computed = (node for node in tree.find_all(exp.Anonymous) if node.name.lower() == "identifier")
    return any(alias is not None and alias.columns for alias in aliases) or next(computed, None) is not None


def takes_all_columns(tree: exp.Expression) -> bool:
    """Whether a qualified query has a use for columns that it does not name.

    A star that was not spelled out, as in `struct(*)`, and a pivot, which groups by all other columns.
    """
    stars = (star for star in tree.find_all(exp.Star) if not isinstance(star.parent, exp.Count))
    return next(stars, None) is not None or next(tree.find_all(exp.Pivot), None) is not None


def inlined(tree: exp.Query) -> exp.Query | None:
    """The query with each reference to a common table expression replaced by it; None if one refers to itself."""
    if any(node.args.get("recursive") for node in tree.find_all(exp.With)):
        return None
    if any(cte.args["alias"].columns for cte in tree.find_all(exp.CTE)):
        return None
    found = _inlined(tree.copy(), {})
    return found if isinstance(found, exp.Query) else None


def _inlined(node: exp.Expression, known: Mapping[str, exp.Expression]) -> exp.Expression:
    clause = node.args.get("with_") or node.args.get("with")
    if isinstance(node, exp.Query) and clause is not None:
        known = dict(known)
        for cte in clause.expressions:
            known[cte.alias.lower()] = _inlined(cte.this, known)
        for name in ("with_", "with"):
            if name in node.args:
                node.set(name, None)
    if isinstance(node, exp.Table) and not node.text("db") and node.name.lower() in known:
        alias = exp.TableAlias(this=exp.to_identifier(node.alias_or_name))
        return exp.Subquery(this=known[node.name.lower()].copy(), alias=alias)
    for name, value in list(node.args.items()):
        if isinstance(value, exp.Expression):
            node.set(name, _inlined(value, known))
        elif isinstance(value, list):
            node.set(name, [_inlined(v, known) if isinstance(v, exp.Expression) else v for v in value])
    return node


def _sql_type(kind: Type) -> str:
    if not isinstance(kind, PrimitiveType):
        return "UNKNOWN"
    return _TYPES.get(kind.name, str(kind).replace(" ", ""))
