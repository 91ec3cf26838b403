"""The structure of one SELECT: its sources, its conditions, and the equalities that link the sources.

Decides when a slice of the result depends on a slice of one source only.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from nevermore.scan_core.sql.sql_functions import is_aggregate, is_row_wise, join_kind

Expressions = tuple[exp.Expression, ...]
Link = tuple[exp.Expression, exp.Expression]
"""Two expressions of two sources that are equal in every row in which both sources have a row."""


@dataclass(frozen=True, slots=True)
class Source:
    """A table or sub-query of a FROM clause. `join` is its join; None for the first source."""

    alias: str
    node: exp.Expression
    join: exp.Join | None

    @property
    def condition(self) -> exp.Expression | None:
        """ON condition of its join."""
        return None if self.join is None else self.join.args.get("on")

    @property
    def kind(self) -> str | None:
        """Kind of its join, as `join_kind` names it; None for the first source."""
        return None if self.join is None else join_kind(self.join)


class SelectShape:
    """Facts about one SELECT that are certain without running it."""

    def __init__(self, select: exp.Select) -> None:
        self.select = select
        first = select.args.get("from_")
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
            if source.kind in {"RIGHT", "FULL"}:  # everything joined so far becomes optional
                found.update(before)
            before.append(source.alias)
        return frozenset(found)

    def links(self) -> Iterator[tuple[str, str, Link]]:
        """(source, other source, link) for every equality without which a row of the source has no effect.

        A row has an effect if it is part of a row of the result or keeps another row out of it. Where the other source
        can be replaced by NULLs, the link does not hold for the rows in which it is.
        """
        for source in self.sources.values():
            for left, right in equalities(source.condition):
                a, b = owner(left), owner(right)
                if a is None or b is None or a == b or not {a, b} <= self.sources.keys():
                    continue
                if source.alias not in {a, b}:
                    # the ON of an outer, semi or anti join says nothing of rows of earlier sources: it may be false for
                    # rows that are kept
                    if source.kind == "INNER" and not {a, b} & self.nullable:
                        yield a, b, (left, right)
                        yield b, a, (right, left)
                    continue
                mine, other = (left, right) if a == source.alias else (right, left)
                before = b if a == source.alias else a
                # a row on the kept side of an outer join is in the result without a partner, so no equality binds it; so is
                # the left row of an anti join. A row of the optional side, or of the right side of an anti join, has an
                # effect through a partner alone.
                if source.kind in {"INNER", "LEFT", "SEMI", "ANTI"}:
                    yield source.alias, before, (mine, other)
                if source.kind in {"INNER", "RIGHT", "SEMI"}:
                    yield before, source.alias, (other, mine)
        where = self.select.args.get("where")
        for left, right in equalities(where.this if where else None):
            a, b = owner(left), owner(right)
            # WHERE comes after the joins: where a source is NULL, it removes the joined row, not the row of another source
            # that put NULL there, so links of optional sources are not used
            if a is not None and b is not None and a != b and {a, b} <= self.sources.keys() - self.nullable:
                yield a, b, (left, right)
                yield b, a, (right, left)

    def conditions_of(self, alias: str) -> list[exp.Expression]:
        """Conjuncts without which a row of this source has no effect; they may contain columns of other sources."""
        source = self.sources[alias]
        # the right side of a RIGHT or FULL join is kept where its own ON is false
        found = [] if source.kind in {None, "RIGHT", "FULL"} else conjuncts(source.condition)
        # later conditions also apply to the NULLs in its place: a row that fails them still has an effect
        if alias in self.nullable:
            return found
        for other in self.sources.values():
            if other.alias != alias and other.kind == "INNER":
                found += conjuncts(other.condition)
        where = self.select.args.get("where")
        return found + conjuncts(where.this if where else None)

    def own_conditions(self, alias: str) -> list[exp.Expression]:
        """Those of `conditions_of` a source that tell of each of its rows by itself whether they hold."""
        return [c for c in self.conditions_of(alias) if owner(c) == alias and is_row_wise(c)]

    @property
    def windows(self) -> list[exp.Window]:
        """Window functions of this SELECT itself, not of its sub-queries."""
        return [node for node in own_nodes(self.select) if isinstance(node, exp.Window)]

    @property
    def aggregates(self) -> bool:
        """Whether it has aggregates that are not window functions."""
        return any(
            is_aggregate(node) and not isinstance(node.find_ancestor(exp.Window, exp.Query), exp.Window)
            for node in own_nodes(self.select)
        )

    @property
    def subqueries(self) -> list[exp.Query]:
        """Outermost queries in its expressions."""
        return [node for node in own_nodes(self.select) if isinstance(node, exp.Query) and node is not self.select]


def own_nodes(select: exp.Select) -> Iterator[exp.Expression]:
    """Nodes of the expressions of a SELECT, without its sources; sub-queries are yielded but not entered."""
    parts = [*select.expressions]
    for name in ("where", "group", "having", "order", "sort", "distribute", "cluster", "limit", "offset"):
        part = select.args.get(name)
        if part is not None:
            parts.append(part)
    parts += [join.args["on"] for join in select.args.get("joins") or () if join.args.get("on") is not None]
    for part in parts:
        yield from part.walk(prune=lambda node: isinstance(node, exp.Query))


def conjuncts(condition: exp.Expression | None) -> list[exp.Expression]:
    """Parts of a condition that must all be true."""
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
    """The only source whose columns an expression uses; None if there are several or none."""
    names = {column.table for column in expression.find_all(exp.Column)}
    return next(iter(names)) if len(names) == 1 else None


def have_one_type(left: exp.DataType | None, right: exp.DataType | None) -> bool:
    """Whether both types are known and equal."""
    return left is not None and right is not None and left == right and not left.is_type("unknown")


def substituted(expressions: Sequence[exp.Expression], by_name: Mapping[str, exp.Expression]) -> Expressions:
    """Replace columns by what they stand for, in parentheses where operators could mix."""

    def put(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.name.lower() in by_name:
            found = by_name[node.name.lower()].copy()
            is_call = isinstance(found, exp.Func) and not isinstance(found, exp.Binary)
            is_alone = node.parent is None or is_call or isinstance(found, exp.Column | exp.Literal)
            return found if is_alone else exp.Paren(this=found)
        return node

    return tuple(expression.copy().transform(put) for expression in expressions)


def passes_rows_on(subquery: exp.Subquery) -> bool:
    """Whether a sub-query in FROM gives the rows of its query as they are: a limit makes each depend on all, and columns of the alias rename others."""
    is_cut = any(subquery.args.get(part) for part in ("limit", "offset", "sample", "pivots"))
    return not is_cut and not (subquery.args.get("alias") is not None and subquery.args["alias"].columns)


def of_sides(query: exp.SetOperation, expressions: Sequence[exp.Expression], qualifier: str) -> list[Expressions] | str:
    """Expressions of the result of a union, intersection or difference as those of the results of both sides, or why that is not certain.

    Equal rows of both sides decide about each other.
    """
    if query.args.get("limit") or query.args.get("offset"):
        return "a limit"
    # sides are matched by place here
    if query.args.get("by_name") or query.args.get("on"):
        return "a union by name"
    sides = [query.left.unnest(), query.right.unnest()]
    names = [select.alias_or_name.lower() for select in query.selects]
    at = {name: number for number, name in enumerate(names)}
    if len(at) < len(names) or any(not isinstance(s, exp.Query) or len(s.selects) != len(names) for s in sides):
        return "the sides of a union differ"
    used = {column.name.lower() for e in expressions for column in e.find_all(exp.Column)}
    # Spark casts both sides to one type: a value in the type of one side may be another value of the result
    if not all(name in at and have_one_type(*(side.selects[at[name]].type for side in sides)) for name in used):
        return "the sides of a union have other types"
    return [
        substituted(expressions, {n: exp.column(side.selects[at[n]].alias_or_name, table=qualifier) for n in used})
        for side in sides
    ]


def is_evaluated_per_row(query: exp.Query) -> bool:
    """Whether a sub-query is evaluated per row of the sources: elsewhere names may refer to columns of the result."""
    place = query.find_ancestor(exp.Having, exp.Order, exp.Sort, exp.Group, exp.Cluster, exp.Distribute, exp.Select)
    return isinstance(place, exp.Select)


def requalified(expression: exp.Expression, old: str, new: str) -> exp.Expression:
    """The expression with another name of a source."""

    def put(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.table == old:
            found = exp.column(node.this.copy(), table=new)
            found.type = node.type
            return found
        return node

    return expression.copy().transform(put)


def is_plain(expression: exp.Expression) -> bool:
    """Whether this is a column or the day of one, and so is NULL exactly where the column is."""
    if isinstance(expression, exp.Cast | exp.TsOrDsToDate) and not expression.args.get("format"):
        expression = expression.this
    return isinstance(expression, exp.Column)


Path = list[tuple[str, list[Link]]]
"""Sources on a path, each with its links to the previous one: (expression of that one, expression of this one)."""


def path_between(shape: SelectShape, start: str, goal: str, *, without: str | None = None) -> Path | None:
    """Find the shortest path of sources from `start` to `goal`, each with its links to the previous one.

    No source on the path is `without`, if given.
    """
    if start == without:
        return None
    links: dict[str, dict[str, list[Link]]] = {}
    for a, b, (ours, theirs) in shape.links():
        # where b is replaced by NULLs, only a plain column of it is sure to be NULL: `coalesce(b.x, 1)` would be equal to 1
        if b in shape.nullable and not is_plain(theirs):
            continue
        links.setdefault(a, {}).setdefault(b, []).append((ours, theirs))
    before: dict[str, str] = {}
    queue = deque([start])
    while queue and goal not in before:
        here = queue.popleft()
        for there in links.get(here, {}):
            if there not in before and there not in {start, without}:
                before[there] = here
                queue.append(there)
    if goal not in before:
        return None
    path = []
    there = goal
    while there != start:
        path.append((there, links[before[there]][there]))
        there = before[there]
    return path[::-1]


def correlations(
    outer: SelectShape, inner: SelectShape, query: exp.Query
) -> Iterator[tuple[str, exp.Expression, str, exp.Expression]]:
    """(source outside, its expression, source inside, its expression) of equalities that every inner row fulfils."""
    for alias in inner.sources:
        if alias in inner.nullable:  # the sub-query also has rows that do not fulfil this equality
            continue
        for condition in inner.conditions_of(alias):
            for left, right in equalities(condition):
                for ours, theirs in ((left, right), (right, left)):
                    if owner(ours) == alias and (outside := owner(theirs)) in outer.sources and outside:
                        yield outside, theirs, alias, ours
    # `x in (select y ...)` ties y to x as an equality does, but only where it must be true (a conjunct of WHERE: not `not in`,
    # not under `or`), and where y is a column of each row: an aggregate, a window, a group or a limit mixes rows first
    holder = query.parent if not isinstance(query.parent, exp.Subquery) else query.parent.parent
    where = outer.select.args.get("where")
    is_condition = isinstance(holder, exp.In) and where is not None and any(holder is c for c in conjuncts(where.this))
    if is_condition and not inner.aggregates and inner.select.args.get("group") is None and not inner.windows:
        if (
            any(inner.select.args.get(part) for part in ("limit", "offset", "having"))
            or len(inner.select.expressions) != 1
        ):
            return
        asked, given = holder.this, inner.select.expressions[0].unalias()
        outside, alias = owner(asked), owner(given)
        if outside in outer.sources and alias in inner.sources and alias not in inner.nullable and is_row_wise(given):
            yield str(outside), asked, str(alias), given


def computes_by_queries(query: exp.Query) -> bool:
    """Whether columns of a query are computed by sub-queries, which Spark may fail to plan over the result of a union.

    Of `select (select ... where b.k = a.k) from a` Spark computes the column in each part of a union of which `a` consists,
    and fails with "key not found" on `b.k` (`PushProjectionThroughUnion.pushToRight` of 4.3). Groups and orders of windows become
    columns first; conditions do not.
    """
    return any(
        isinstance(node, exp.Query)
        for select in query.find_all(exp.Select)
        for part in (*select.expressions, *select.args.get("windows", ()), *filter(None, [select.args.get("group")]))
        for node in part.walk()
    )


def computes_in_unions(query: exp.Query) -> bool:
    """Whether columns of a query with a UNION are computed by sub-queries, which Spark may fail to plan below it, too.

    Of a column `(select ... where b.k = a.k)` Spark derives a condition that names `b.k`, and carries it through the UNION,
    which fails with "key not found" (`UnionBase.rewriteConstraints` of 4.1; by chance of the conditions above the UNION).
    """
    return query.find(exp.Union) is not None and computes_by_queries(query)


PARTITION, PARTITION_START, PARTITION_END = "partition", "partition_start", "partition_end"
"""Parameters that stand for the partition being made."""
_TIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMPTZ", "TIMESTAMPLTZ"})


def why_not_sliced(shape: SelectShape, expressions: Sequence[exp.Expression]) -> str | None:
    """Why slices of a SELECT's result by these expressions mix slices of several sources; None if they do not."""
    owners = {owner(e) for e in expressions}
    # otherwise a changed row could move unchanged rows to another partition
    if not all(is_row_wise(e) for e in expressions):
        return "the partition is computed from several rows, or by a function that is not repeatable"
    # with `a.x + b.y` a change in either source moves rows, and neither source alone tells where to
    if len(owners) != 1 or not owners <= shape.sources.keys():
        return "the partition does not come from columns of one table"
    # a changed row of the optional side moves rows of the kept side from or to the NULL partition
    if owners & shape.nullable:
        return "the partition comes from the optional side of an outer join"
    return _why_rows_mix(shape, expressions)


def full_join_keys(shape: SelectShape, expressions: Sequence[exp.Expression]) -> dict[str, exp.Expression]:
    """By source, the slice expression of its rows where `coalesce(x, y)` of a full join on `x = y` defines slices.

    A row found on one side only is in its own slice; joined rows are in one slice. Empty where this is not certain: the
    join must come first, nothing after it may add rows without either side, and both keys must be NULL where their side
    is missing.
    """
    merged = expressions[0].unnest() if len(expressions) == 1 else None
    if not isinstance(merged, exp.Coalesce) or len(merged.expressions) != 1:
        return {}
    keys = {owner(key): key for key in (merged.this.unnest(), merged.expressions[0].unnest())}
    if {*keys} != {*list(shape.sources)[:2]} or not all(is_plain(key) for key in keys.values()):
        return {}
    # rows that a later RIGHT or FULL join keeps have neither key and would be in the NULL slice
    first, *others = [source for source in shape.sources.values() if source.join is not None]
    if first.kind != "FULL" or any(other.kind not in {"INNER", "LEFT", "SEMI", "ANTI"} for other in others):
        return {}
    left, right = keys.values()
    # equal values of two types may still be written as two partitions
    if left.type is None or left.type.is_type("unknown") or left.type != right.type:
        return {}
    links = equalities(first.condition)
    if not any(link in ((left, right), (right, left)) for link in links) or _why_rows_mix(shape, expressions):
        return {}
    return {str(source): key for source, key in keys.items()}


def _why_rows_mix(shape: SelectShape, expressions: Sequence[exp.Expression]) -> str | None:
    """Why rows of several slices form one row or decide about each other; None if they do not."""
    select, group = shape.select, shape.select.args.get("group")
    # one more row in any partition pushes out another row, perhaps of another partition
    if select.args.get("limit") or select.args.get("offset"):
        return "a limit chooses rows of all partitions"
    if group is None and shape.aggregates:  # one row made of all rows
        return "an aggregate without group by takes the rows of all partitions"
    # Their subtotals are rows of the NULL partition, or of none, computed from all rows. A plain GROUP BY names the
    # expressions of the partition, as SQL selects nothing but these and aggregates.
    if group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None:
        return "rollup, cube or grouping sets mix partitions"
    # a row may decide about any row of its window: rank, running sum
    for window in shape.windows:
        if not all(_is_made_of(e, window.args.get("partition_by") or ()) for e in expressions):
            return "a window goes beyond the partition: add it to partition by"
    return None


def _is_made_of(expression: exp.Expression, keys: Sequence[exp.Expression]) -> bool:
    if any(expression == key for key in keys):
        return True
    return not isinstance(expression, exp.Column) and all(
        _is_made_of(child, keys) for child in expression.iter_expressions()
    )


def bound_by_parameters(conditions: Sequence[exp.Expression], partition_type: str) -> Iterator[exp.Expression]:
    """Expressions of rows that parameters bind to the partition, directly or as a range from its start to its end."""
    # one bound alone would leave out what a run for another partition needs, and tell a change of a later row as one of this
    starts, ends = [], []
    for condition in conditions:
        if not isinstance(condition, exp.EQ | exp.GTE | exp.LT | exp.LTE | exp.GT):
            continue
        left, right = condition.left.unnest(), condition.right.unnest()
        if isinstance(left, exp.Placeholder):
            left, right = right, left
            kind: type[exp.Expression] = _MIRRORED.get(type(condition), type(condition))
        else:
            kind = type(condition)
        if not isinstance(right, exp.Placeholder) or not is_plain(left):
            continue
        if kind is exp.EQ and right.name == PARTITION and _type_name(left.type) == partition_type:
            yield left
        elif kind is exp.GTE and right.name == PARTITION_START:
            starts.append(left)
        elif kind is exp.LT and right.name == PARTITION_END:
            ends.append(left)
    yield from (e for e in starts if e in ends and _type_name(e.type) in _TIMES)


_MIRRORED: Mapping[type[exp.Expression], type[exp.Expression]] = {
    exp.GTE: exp.LTE,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.LT: exp.GT,
}


def _type_name(kind: exp.DataType | None) -> str | None:
    return None if kind is None else str(kind.this.name if hasattr(kind.this, "name") else kind.this)
