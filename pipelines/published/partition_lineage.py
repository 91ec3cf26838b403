"""Which partitions of a query's result the changed rows of its tables can reach, found in the SQL alone.

A *slice* of a relation are its rows whose partition has one value. Wherever it is certain that a slice of the result is
made of the rows of a table that have one property, that property is a query over the changed rows; else there is none,
and a reason. What is found may be too much, never too little. Tables are changed one after the other, each one that
others are reached through before these: so all queries but those over changed rows see the new state.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from pipelines.published.query_links import correlations, path_between
from pipelines.published.query_shape import SelectShape, is_plain, owner
from pipelines.published.slice_queries import Anchor, Expressions, Reach, of_changed_rows, through
from pipelines.published.slice_rules import bound_by_parameters, full_join_keys, why_not_sliced

_OUT = "_out"
"""Qualifies columns of a query's result in expressions about it."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What an outer query wants to know of an inner one: expressions of its result, or why none would help."""

    expressions: Expressions | None
    final: bool = True
    reason: str = ""

    def without(self, reason: str) -> "_Wanted":
        return _Wanted(None, reason=self.reason or reason)


def reaches(tree: exp.Query, partition: str, partition_type: str = "DATE") -> tuple[Reach, ...]:
    """One for every place where the tree names a table.

    Args:
        tree: as `traceable` gives it.
        partition: the column of the result that names the partition, in lower case.
        partition_type: sqlglot's name of its type, which parameters have too.
    """
    column = exp.column(partition, table=_OUT)
    names = [select.alias_or_name.lower() for select in tree.selects]
    if names.count(partition) != 1:
        wanted = _Wanted(None, reason=f"the result has no certain column {partition}")
    else:
        wanted = _Wanted((column,))
    found = tuple(_Tracer(partition_type).of_query(tree, wanted))
    # one at least for each place: a change that no reach tells of would be lost
    named, told = (Counter(each) for each in ((t.name for t in tree.find_all(exp.Table)), (r.table for r in found)))
    missed = sorted(table for table, count in named.items() if told[table] < count)
    return (
        *found,
        *(Reach(table, None, reason="a place where the SQL names it is not understood") for table in missed),
    )


class _Tracer:
    """Walks from the result down to the tables."""

    def __init__(self, partition_type: str) -> None:
        self._partition_type = partition_type

    def of_query(self, query: exp.Expression, wanted: _Wanted) -> Iterator[Reach]:
        if isinstance(query, exp.Subquery):
            limited = any(query.args.get(part) for part in ("limit", "offset", "sample", "pivots"))
            columns = query.args.get("alias") is not None and query.args["alias"].columns
            yield from self.of_query(query.this, wanted.without("a limit") if limited or columns else wanted)
        elif isinstance(query, exp.SetOperation):
            yield from self._of_set_operation(query, wanted)
        elif isinstance(query, exp.Select):
            yield from self._of_select(query, wanted)
        else:
            yield from _unreachable(query, wanted.reason or f"{query.key} is not understood")

    def _of_set_operation(self, query: exp.SetOperation, wanted: _Wanted) -> Iterator[Reach]:
        outputs = [select.alias_or_name.lower() for select in query.selects]
        if query.args.get("limit") or query.args.get("offset"):
            wanted = wanted.without("a limit")
        if query.args.get("by_name") or query.args.get("on"):
            wanted = wanted.without("a union by name")
        left, right = query.left.unnest(), query.right.unnest()
        kinds = [[select.type for select in side.selects] for side in (left, right) if isinstance(side, exp.Query)]
        if len(kinds) != 2 or len(kinds[0]) != len(kinds[1]) or len(set(outputs)) != len(outputs):
            wanted = wanted.without("the sides of a union are not alike")
        for side in (query.left, query.right):
            inner = wanted
            if wanted.expressions is not None:
                named = {n: s.alias_or_name for n, s in zip(outputs, side.unnest().selects, strict=True)}
                used = {c.name.lower() for e in wanted.expressions for c in e.find_all(exp.Column)}
                typed = dict(zip(outputs, zip(*kinds, strict=True), strict=True))
                if any(not _same_type(*typed[name]) for name in used if name in typed):
                    inner = wanted.without("the sides of a union have other types")
                else:
                    renamed = {n: exp.column(to, table=_OUT) for n, to in named.items()}
                    inner = replace(wanted, expressions=_substituted(wanted.expressions, renamed))
            yield from self.of_query(side, inner)

    def _of_select(self, select: exp.Select, wanted: _Wanted) -> Iterator[Reach]:
        shape = SelectShape(select)
        anchors = list(self._by_parameter(shape))
        reason = wanted.reason
        if wanted.expressions is not None:
            names = Counter(e.alias_or_name.lower() for e in select.expressions)
            projected = {e.alias_or_name.lower(): e.unalias() for e in select.expressions}
            expressions = _substituted(wanted.expressions, projected)
            if any(names[c.name.lower()] != 1 for e in wanted.expressions for c in e.find_all(exp.Column)):
                problem: str | None = "two columns of a sub-query have one name"
            else:
                problem = why_not_sliced(shape, expressions)
            if problem is None:
                anchors.append(Anchor(str(owner(expressions[0])), expressions, wanted.final))
            elif keys := full_join_keys(shape, expressions):
                problem = None
                anchors += [
                    Anchor(source, (key,), wanted.final, apart=next(other for other in keys if other != source))
                    for source, key in keys.items()
                ]
            reason = problem or ""
        for alias in shape.sources:
            yield from self._of_source(shape, alias, anchors, reason)
        for subquery in shape.subqueries:
            yield from self._of_subquery(shape, subquery, anchors, reason)

    def _of_source(self, shape: SelectShape, alias: str, anchors: Sequence[Anchor], reason: str) -> Iterator[Reach]:
        for anchor in sorted(anchors, key=lambda a: a.source != alias):
            found = list(self._from_anchor(shape, alias, anchor))
            if found and all(reach.values is not None for reach in found):
                yield from found
                return
            reason = reason or next((reach.reason for reach in found), "")
        yield from self._within(shape, alias, _Wanted(None, reason=reason or f"{alias} is joined without an equality"))

    def _from_anchor(self, shape: SelectShape, alias: str, anchor: Anchor) -> Iterator[Reach]:
        if alias == anchor.source:
            yield from self._within(shape, alias, _Wanted(anchor.expressions, anchor.final))
            return
        if len(anchor.expressions) == 1:
            for a, b, (ours, theirs) in shape.links():
                if (
                    (a, b) == (alias, anchor.source)
                    and theirs == anchor.expressions[0]
                    and _same_type(ours.type, theirs.type)
                ):
                    yield from self._within(shape, alias, _Wanted((ours,), anchor.final))
                    return
        path = path_between(shape, alias, anchor.source, without=anchor.apart)
        if path is None:
            return
        keys = tuple(ours for ours, _ in path[0][1])
        for reach in self._within(shape, alias, _Wanted(keys, final=False)):
            yield reach if reach.final else through(shape, path, anchor, reach)

    def _within(self, shape: SelectShape, alias: str, wanted: _Wanted) -> Iterator[Reach]:
        """Down into a source, whose slices are told by expressions of its own columns."""
        node = shape.sources[alias].node
        if isinstance(node, exp.Table):
            if wanted.expressions is None:
                yield Reach(node.name, None, reason=wanted.reason)
            else:
                yield of_changed_rows(shape, alias, node, wanted.expressions, final=wanted.final)
            return
        if wanted.expressions is not None:
            outside = {
                c.name.lower(): exp.column(c.name, table=_OUT)
                for e in wanted.expressions
                for c in e.find_all(exp.Column)
            }
            wanted = replace(wanted, expressions=_substituted(wanted.expressions, outside))
        yield from self.of_query(node, wanted)

    def _of_subquery(
        self, shape: SelectShape, query: exp.Query, anchors: Sequence[Anchor], reason: str
    ) -> Iterator[Reach]:
        """A query among the expressions: reached by what correlates it with a source outside."""
        inner = query.unnest()
        inner_shape = SelectShape(inner) if isinstance(inner, exp.Select) else None
        why = reason or "a sub-query is not tied to the partition"
        # elsewhere, names may be those of the result's columns
        place = query.find_ancestor(exp.Having, exp.Order, exp.Sort, exp.Group, exp.Cluster, exp.Distribute, exp.Select)
        if inner_shape is not None and isinstance(place, exp.Select):
            for outer, theirs, alias, ours in correlations(shape, inner_shape, query):
                found = list(self._correlated(shape, inner_shape, (outer, theirs), (alias, ours), anchors))
                if found and all(reach.values is not None for reach in found):
                    yield from found
                    return
        yield from self.of_query(query, _Wanted(None, reason=why))

    def _correlated(
        self,
        shape: SelectShape,
        inner: SelectShape,
        outside: tuple[str, exp.Expression],
        inside: tuple[str, exp.Expression],
        anchors: Sequence[Anchor],
    ) -> Iterator[Reach]:
        keyed = Anchor(inside[0], (inside[1],), final=False)
        for anchor in anchors:
            link = [(inside[1], outside[1])]
            at_anchor = outside[0] == anchor.source
            on = [] if at_anchor else path_between(shape, outside[0], anchor.source, without=anchor.apart)
            if on is None or (outside[0] in shape.nullable and not is_plain(outside[1])):
                continue
            for alias in inner.sources:
                for reach in self._of_source(inner, alias, [keyed, *self._by_parameter(inner)], ""):
                    yield reach if reach.final else through(shape, [(outside[0], link), *on], anchor, reach)
            for nested in inner.subqueries:
                yield from self._of_subquery(inner, nested, [], "a sub-query is not tied to the partition")
            return

    def _by_parameter(self, shape: SelectShape) -> Iterator[Anchor]:
        """Sources of which every row that matters is bound to the partition by a parameter."""
        for alias in shape.sources:
            conditions = shape.conditions_of(alias)
            bound = next((e for e in bound_by_parameters(conditions, self._partition_type) if owner(e) == alias), None)
            if bound is not None and alias not in shape.nullable:
                yield Anchor(alias, (bound,), final=True)


def _unreachable(node: exp.Expression, reason: str) -> Iterator[Reach]:
    for table in node.find_all(exp.Table):
        yield Reach(table.name, None, reason=reason)


def _substituted(expressions: Expressions, by_name: Mapping[str, exp.Expression]) -> Expressions:
    """The expressions with columns replaced by what they stand for."""

    def put(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.name.lower() in by_name:
            return by_name[node.name.lower()].copy()
        return node

    return tuple(e.copy().transform(put) for e in expressions)


def _same_type(left: exp.DataType | None, right: exp.DataType | None) -> bool:
    """Both known, and one."""
    return left is not None and right is not None and left == right and not left.is_type("unknown")
