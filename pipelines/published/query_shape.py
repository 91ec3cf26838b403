"""The shape of one SELECT, as far as it tells which rows can meet: sources, conditions, links between columns.

Trees are those of `traceable` in `query_tree.py`: every column names its source, sources have one name each in the whole
query, there are no common table expressions, and all parts are understood. What follows from a shape is decided in
`partition_lineage.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from pipelines.published.sql_functions import is_aggregate, is_row_wise
from pipelines.published.understood_sql import join_kind

Link = tuple[exp.Expression, exp.Expression]
"""Two expressions, of two sources, that are equal in every row where both sources have one."""


@dataclass(frozen=True, slots=True)
class Source:
    """A table or sub-query of a FROM clause. `join` brought it in; None for the first."""

    alias: str
    node: exp.Expression
    join: exp.Join | None

    @property
    def condition(self) -> exp.Expression | None:
        """The ON of its join."""
        return None if self.join is None else self.join.args.get("on")

    @property
    def kind(self) -> str | None:
        """Of its join, as `join_kind` calls it; None for the first source."""
        return None if self.join is None else join_kind(self.join)


class SelectShape:
    """What is certain of one SELECT without running it."""

    def __init__(self, select: exp.Select) -> None:
        self.select = select
        first = select.args.get("from_") or select.args.get("from")
        nodes = [] if first is None else [(first.this, None)]
        nodes += [(join.this, join) for join in select.args.get("joins") or ()]
        self.sources = {node.alias_or_name: Source(node.alias_or_name, node, join) for node, join in nodes}
        self.nullable = self._nullable()

    def _nullable(self) -> frozenset[str]:
        """Sources that an outer join can replace by NULLs."""
        found: set[str] = set()
        before: list[str] = []
        for source in self.sources.values():
            if source.kind in {"LEFT", "FULL"}:
                found.add(source.alias)
            if source.kind in {"RIGHT", "FULL"}:
                found.update(before)
            before.append(source.alias)
        return frozenset(found)

    def links(self) -> Iterator[tuple[str, str, Link]]:
        """(source, other source, link) for every equality without which a row of the source takes part in nothing.

        Taking part is to be in a row of the result, or to keep another row out of it. Where the other source may be
        replaced by NULLs, the link says nothing of the rows in which it is.
        """
        for source in self.sources.values():
            for left, right in equalities(source.condition):
                a, b = owner(left), owner(right)
                if a is None or b is None or a == b or not {a, b} <= self.sources.keys():
                    continue
                if source.alias not in {a, b}:
                    if source.kind == "INNER" and not {a, b} & self.nullable:
                        yield from self._both(a, b, (left, right))
                    continue
                mine, other = (left, right) if a == source.alias else (right, left)
                before = b if a == source.alias else a
                # rows on the kept side of an outer join are there without the other one; so are those of an anti join
                if source.kind in {"INNER", "LEFT", "SEMI", "ANTI"}:
                    yield source.alias, before, (mine, other)
                if source.kind in {"INNER", "RIGHT", "SEMI"}:
                    yield before, source.alias, (other, mine)
        where = self.select.args.get("where")
        for left, right in equalities(where.this if where else None):
            a, b = owner(left), owner(right)
            if a is not None and b is not None and a != b and {a, b} <= self.sources.keys() - self.nullable:
                yield from self._both(a, b, (left, right))

    @staticmethod
    def _both(a: str, b: str, link: Link) -> Iterator[tuple[str, str, Link]]:
        yield a, b, link
        yield b, a, (link[1], link[0])

    def conditions_of(self, alias: str) -> list[exp.Expression]:
        """Conjuncts without which a row of this source takes part in nothing; other sources may occur in them."""
        source = self.sources[alias]
        found = [] if source.kind in {None, "RIGHT", "FULL"} else conjuncts(source.condition)
        if alias in self.nullable:
            return found
        for other in self.sources.values():
            if other.alias != alias and other.kind == "INNER":
                found += conjuncts(other.condition)
        where = self.select.args.get("where")
        return found + conjuncts(where.this if where else None)

    @property
    def windows(self) -> list[exp.Window]:
        """Window functions of this SELECT itself."""
        return [node for node in own_nodes(self.select) if isinstance(node, exp.Window)]

    @property
    def aggregates(self) -> bool:
        """Whether it has aggregates that are no windows."""
        return any(
            is_aggregate(node) and not isinstance(node.find_ancestor(exp.Window, exp.Query), exp.Window)
            for node in own_nodes(self.select)
        )

    @property
    def subqueries(self) -> list[exp.Query]:
        """Queries in its expressions, outermost ones."""
        return [node for node in own_nodes(self.select) if isinstance(node, exp.Query) and node is not self.select]


def own_nodes(select: exp.Select) -> Iterator[exp.Expression]:
    """Nodes of the expressions of a SELECT; sub-queries in them are yielded, not entered; sources are left out."""
    parts = [*select.expressions]
    for name in ("where", "group", "having", "order", "sort", "distribute", "cluster", "limit", "offset"):
        part = select.args.get(name)
        if part is not None:
            parts.append(part)
    parts += [join.args["on"] for join in select.args.get("joins") or () if join.args.get("on") is not None]
    for part in parts:
        yield from part.walk(prune=lambda node: isinstance(node, exp.Query))


def conjuncts(condition: exp.Expression | None) -> list[exp.Expression]:
    """The parts of a condition that must all be true."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    return [condition]


def equalities(condition: exp.Expression | None) -> list[Link]:
    """Both sides of the conjuncts that are equalities of row-wise expressions."""
    return [
        (c.left.unnest(), c.right.unnest())
        for c in conjuncts(condition)
        if isinstance(c, exp.EQ) and is_row_wise(c.left) and is_row_wise(c.right)
    ]


def owner(expression: exp.Expression) -> str | None:
    """The one source whose columns an expression is made of."""
    names = {column.table for column in expression.find_all(exp.Column)}
    return next(iter(names)) if len(names) == 1 else None


def is_plain(expression: exp.Expression) -> bool:
    """Whether this is a column, or the day of one: NULL where the column is."""
    if isinstance(expression, exp.Cast | exp.TsOrDsToDate) and not expression.args.get("format"):
        expression = expression.this
    return isinstance(expression, exp.Column)
