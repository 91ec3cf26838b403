"""Recognises queries that only select columns of a single mirror: the tasks that read the mirror write the files."""

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from pipelines.publish.query import PublishedQuery

_SIMPLE = frozenset({"expressions", "from", "from_", "kind", "hint"})
"""Parts of a query that only selects columns; `kind` and `hint` must be empty."""


def copied_columns(
    query: PublishedQuery, columns: Sequence[str], result: Sequence[str], day: str | None = None
) -> list[str | None] | None:
    """Find the column of the mirror behind each column of the result, None for the day; or None for any other query.

    Applies to queries that only select columns of one mirror; Spark names the columns of their result. `day` is the
    column of the result that is known to hold a single day in all rows, however it is computed.
    """
    select = query.tree
    if not isinstance(select, exp.Select) or any(value for name, value in select.args.items() if name not in _SIMPLE):
        return None
    table = _only_table(select)
    if table is None or len(query.tables) != 1:
        return None
    by_lower = {name.lower(): name for name in columns}
    if len(by_lower) != len(columns):
        return None
    day = (day or "").lower()
    found: list[tuple[str, str | None]] = []
    for expression in select.expressions:
        inner = expression.unalias()
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            found += [(name, name) for name in columns]
        elif day and expression.alias_or_name.lower() == day:
            found.append((expression.alias_or_name, None))
        elif _is_column_of(inner, table) and inner.name.lower() in by_lower:
            found.append((expression.alias_or_name, by_lower[inner.name.lower()]))
        else:
            return None
    if [name.lower() for name, _ in found] != [name.lower() for name in result]:
        return None
    return [None if name.lower() == day else column for name, column in found]


def _only_table(select: exp.Select) -> exp.Table | None:
    """Table that the query selects from, if it is a table without modifiers."""
    source: Any = select.args.get("from_") or select.args.get("from")
    if select.args.get("kind") or select.args.get("hint") or source is None or not isinstance(source.this, exp.Table):
        return None
    table = source.this
    is_renamed = table.args.get("alias") is not None and table.args["alias"].columns
    return None if is_renamed or any(table.args.get(name) for name in _READ_OTHERWISE) else table


def _is_column_of(expression: exp.Expression, table: exp.Table) -> bool:
    """Whether this is a column, bare or qualified by its table: `a.b` may also be a member of a struct `a`."""
    if not isinstance(expression, exp.Column) or not isinstance(expression.this, exp.Identifier):
        return False
    qualifier = [part.name.lower() for part in expression.parts[:-1]]
    known = (
        [[table.alias.lower()]]
        if table.alias
        else [[part.name.lower() for part in table.parts[-n:]] for n in (1, len(table.parts))]
    )
    return not qualifier or qualifier in known


_READ_OTHERWISE = frozenset({"sample", "joins", "laterals", "pivots", "version", "when", "hints", "only", "partition"})
"""Parts of a table reference that would change the mirror's rows."""
