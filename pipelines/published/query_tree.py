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
        tree = qualify(sqlglot.parse_one(sql, dialect=DIALECT), schema=shapes, dialect=DIALECT, quote_identifiers=False)
        tree = annotate_types(tree, schema=shapes, dialect=DIALECT)
    except SqlglotError:
        return None
    return tree if isinstance(tree, exp.Query) else None


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
