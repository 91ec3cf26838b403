"""Queries over changed rows: the slices that they are part of, at once or by way of the rows that they meet."""

from dataclasses import dataclass

from sqlglot import exp

from pipelines.published.query_links import Path
from pipelines.published.query_shape import SelectShape, owner
from pipelines.published.sql_functions import is_row_wise

OF_CHANGED = "_changed"
"""Ends the name under which the queries here read changed rows, after the name of their table."""

Expressions = tuple[exp.Expression, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """How changed rows of a table reach the result, by one of the places where the query names the table.

    Attributes:
        table: as the tree names it.
        values: selects a superset of the values of `k0` whose slices changed rows can touch; None if that may be any.
        expression: the value of a row as an expression of its own columns, if it is one.
        final: whether the values are partitions of the result, not keys on the way there.
        reason: why there are no values.
    """

    table: str
    values: exp.Select | None
    expression: exp.Expression | None = None
    final: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Expressions of one source of a SELECT that decide to which slice a row of its result belongs.

    Attributes:
        source: of the rows.
        expressions: of its columns.
        final: whether slices are partitions of the result.
        apart: another source whose rows may be in the result without any of this one: no way to it leads through those.
    """

    source: str
    expressions: Expressions
    final: bool
    apart: str | None = None


def of_changed_rows(
    shape: SelectShape, alias: str, table: exp.Table, expressions: Expressions, *, final: bool
) -> Reach:
    """What rows of `table` that changed are part of, told by expressions of its columns."""
    select = exp.Select(distinct=exp.Distinct()).from_(
        exp.alias_(exp.to_table(f"{table.name}{OF_CHANGED}"), alias, table=True), copy=False
    )
    select = select.select(*_named(expressions), copy=False)
    for condition in shape.conditions_of(alias):
        if owner(condition) == alias and is_row_wise(condition) and condition.find(exp.Placeholder) is None:
            select = select.where(condition.copy(), copy=False)
    return Reach(table.name, select, expressions[0] if final else None, final)


def through(
    shape: SelectShape,
    path: Path,
    anchor: Anchor,
    reach: Reach,
) -> Reach:
    """The slices of the anchor that rows with the keys of `reach` meet, hop by hop."""
    if reach.values is None:
        return reach
    values = reach.values
    for number, (alias, links) in enumerate(path):
        outgoing = anchor.expressions if alias == anchor.source else tuple(a for a, _ in path[number + 1][1])
        keys = exp.Subquery(this=values, alias=exp.TableAlias(this=exp.to_identifier("_keys")))
        meets = exp.and_(
            *(
                exp.EQ(this=theirs.copy(), expression=exp.column(f"k{n}", table="_keys"))
                for n, (_, theirs) in enumerate(links)
            )
        )
        values = (
            exp.Select(distinct=exp.Distinct())
            .from_(shape.sources[alias].node.copy(), copy=False)
            .join(keys, on=meets, copy=False)
            .select(*_named(outgoing), copy=False)
        )
    return Reach(reach.table, values, None, anchor.final)


def _named(expressions: Expressions) -> list[exp.Expression]:
    return [exp.alias_(e.copy(), f"k{n}") for n, e in enumerate(expressions)]
