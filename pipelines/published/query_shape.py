"""The shape of one SELECT, as far as it tells which rows can meet: sources, conditions, links between columns.

Trees are qualified (every column names its source) and hold no common table expressions. What follows from a shape is
decided in `partition_lineage.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from pipelines.published.sql_functions import is_aggregate, is_row_wise

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


class SelectShape:
    """What is certain of one SELECT without running it."""

    def __init__(self, select: exp.Select) -> None:
        self.select = select
        first = select.args.get("from_") or select.args.get("from")
        nodes = [] if first is None else [(first.this, None)]
        nodes += [(join.this, join) for join in select.args.get("joins") or ()]
        self.sources = {node.alias_or_name: Source(node.alias_or_name, node, join) for node, join in nodes}
        self.nullable = self._nullable()
        self.obstacle = self._obstacle()

    def _nullable(self) -> frozenset[str]:
        """Sources that an outer join can replace by NULLs."""
        found: set[str] = set()
        before: list[str] = []
        for source in self.sources.values():
            side = "" if source.join is None else source.join.side.upper()
            if side in {"LEFT", "FULL"} and source.join is not None and not _is_half(source.join):
                found.add(source.alias)
            if side in {"RIGHT", "FULL"}:
                found.update(before)
            before.append(source.alias)
        return frozenset(found)

    def _obstacle(self) -> str | None:
        """Why the shape cannot be judged at all."""
        if self.select.args.get("sample"):
            return "a sample"
        for source in self.sources.values():
            if source.join is not None and (source.join.args.get("method") or source.join.args.get("using")):
                return "a join without ON"
            if not isinstance(source.node, exp.Table | exp.Subquery) or source.node.args.get("pivots"):
                return "a source that is neither table nor sub-query"
            if source.node.find(exp.TableSample) is not None or source.node.args.get("sample"):
                return "a sample"
            if isinstance(source.node, exp.Table) and (source.node.args.get("when") or source.node.args.get("version")):
                return "time travel"
        count = len(self.select.args.get("joins") or ()) + bool(
            self.select.args.get("from_") or self.select.args.get("from")
        )
        return None if count == len(self.sources) else "two sources of one name"

    def links(self) -> Iterator[tuple[str, str, Link]]:
        """(source, other source, link) for every equality that two joined rows must fulfil, in both directions."""
        for source in self.sources.values():
            inner = source.join is not None and not source.join.side
            for left, right in equalities(source.condition):
                a, b = owner(left), owner(right)
                if a is None or b is None or a == b or not {a, b} <= self.sources.keys():
                    continue
                if source.alias in {a, b} or (inner and not {a, b} & self.nullable):
                    yield from self._both(a, b, (left, right))
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
        join = self.sources[alias].join
        found = [] if join is None or join.side.upper() in {"RIGHT", "FULL"} else conjuncts(join.args.get("on"))
        if alias in self.nullable:
            return found
        for other in self.sources.values():
            if other.alias != alias and other.join is not None and not other.join.side:
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


def _is_half(join: exp.Join) -> bool:
    """LEFT SEMI and LEFT ANTI: rows of the right side never become NULL, for they never appear."""
    return join.kind.upper() in {"SEMI", "ANTI"}


def own_nodes(select: exp.Select) -> Iterator[exp.Expression]:
    """Nodes of the expressions of a SELECT; sub-queries in them are yielded, not entered; sources are left out."""
    parts = [*select.expressions]
    for name in ("where", "group", "having", "order", "sort", "distribute", "cluster", "limit", "qualify"):
        part = select.args.get(name)
        if part is not None:
            parts.append(part)
    parts += [join.args["on"] for join in select.args.get("joins") or () if join.args.get("on") is not None]
    parts += select.args.get("laterals") or ()
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
