"""Determines from the SQL alone which rows of its tables a query needs: by conditions, and by joins they must survive.

A row that fails a condition found here affects no row of the result, so a scan may leave it out. Where this is not
certain, there is no condition. The rules for one SELECT are in `query_shape.py`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sqlglot import exp

from nevermore.scan_core.sql.query import DIALECT
from nevermore.scan_core.sql.query_shape import (
    SelectShape,
    conjuncts,
    correlations,
    have_one_type,
    is_evaluated_per_row,
    of_sides,
    owner,
    passes_rows_on,
    requalified,
    substituted,
    why_not_sliced,
)

_RESULT = "_result"
"""Qualifier of a query's result columns in conditions on the result."""
_MAX_CONDITIONS = 64
"""Maximum of conditions on one source; equalities between many columns could multiply them without end."""


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """Columns of the table at one place of the query: index of the place, and column names."""

    place: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partners:
    """Requires that a row's values of `columns` occur among the values of `keys`, in this order."""

    columns: tuple[str, ...]
    keys: PlaceColumns


@dataclass(slots=True)
class TablePlace:
    """One place where the query names a table, and the rows that it certainly needs there.

    Attributes:
        table: name of the table in the tree.
        conditions: conditions on columns of this table alone; a needed row fulfils all of them.
        partners: equi-joins in which a needed row must find a partner.
    """

    table: str
    conditions: list[exp.Expression] = field(default_factory=list)
    partners: list[Partners] = field(default_factory=list)


class _HasPartner(exp.Expression):  # type: ignore[misc]  # sqlglot has no types
    """Condition that expressions occur among the values of columns; moves through a query like any other."""

    arg_types: ClassVar = {"expressions": True, "keys": True}


def needed_rows(tree: exp.Query) -> tuple[TablePlace, ...]:
    """Determine the rows that the query needs of its tables, for every place that names one.

    Args:
        tree: as `traceable` returns it, without parameters.
    """
    return _Descent(tree).places


class _Descent:
    """Carries conditions from the result down to the tables."""

    def __init__(self, tree: exp.Query) -> None:
        tables = list(tree.find_all(exp.Table))
        self.places = tuple(TablePlace(table.name) for table in tables)
        self._indexes = {id(table): index for index, table in enumerate(tables)}
        self._visit(tree, [])

    def _visit(self, query: exp.Expression, wanted: Sequence[exp.Expression]) -> None:
        """Trace a query; of its result, only rows that fulfil `wanted` are needed."""
        if isinstance(query, exp.Subquery):
            self._visit(query.this, wanted if passes_rows_on(query) else [])
        elif isinstance(query, exp.SetOperation):
            found = [of_sides(query, [condition], _RESULT) for condition in wanted]
            for number, side in enumerate((query.left, query.right)):
                self._visit(side, [sides[number][0] for sides in found if not isinstance(sides, str)])
        elif isinstance(query, exp.Select):
            self._visit_select(query, wanted, {})

    def _visit_select(
        self, select: exp.Select, wanted: Sequence[exp.Expression], inherited: Mapping[str, Sequence[exp.Expression]]
    ) -> None:
        shape = SelectShape(select)
        known = {alias: _Conditions(inherited.get(alias, ())) for alias in shape.sources}
        for alias, conditions in known.items():
            conditions.extend(shape.own_conditions(alias))
        for condition in wanted:
            if (inner := _through_projection(shape, condition)) is not None:
                known[str(owner(inner))].add(inner)
        self._add_partners(shape, known)
        queries = [query for query in shape.subqueries if isinstance(query.unnest(), exp.Select)]
        ties = {id(query): list(self._ties(shape, query)) for query in queries if is_evaluated_per_row(query)}
        for query in queries:
            if _must_find_rows(query, select):
                self._add_outer_partners(shape, known, query, ties.get(id(query), []))
        _spread(shape, known)
        for alias, source in shape.sources.items():
            if isinstance(source.node, exp.Table):
                self._settle_place(self._indexes[id(source.node)], known[alias])
            else:
                self._visit(source.node, [requalified(c, alias, _RESULT) for c in known[alias]])
        for query in shape.subqueries:
            inner_select = query.unnest()
            if isinstance(inner_select, exp.Select):
                self._visit_select(inner_select, [], self._inherited(shape, known, ties.get(id(query), [])))
            else:
                self._visit(query, [])

    def _settle_place(self, index: int, conditions: "_Conditions") -> None:
        place = self.places[index]
        for condition in conditions:
            if not isinstance(condition, _HasPartner):
                place.conditions.append(condition)
            elif condition.args["keys"].place != index and all(
                isinstance(e, exp.Column) for e in condition.expressions
            ):
                place.partners.append(Partners(tuple(e.name for e in condition.expressions), condition.args["keys"]))

    def _add_partners(self, shape: SelectShape, known: Mapping[str, "_Conditions"]) -> None:
        pairs: dict[tuple[str, str], list[tuple[exp.Expression, exp.Expression]]] = {}
        for alias, other, link in shape.links():
            # where a join fills the other source up with NULLs, rows need no partner in it
            if other not in shape.nullable and link not in pairs.setdefault((alias, other), []):
                pairs[alias, other].append(link)
        for (alias, other), links in pairs.items():
            known[alias].extend(self._partners(shape, other, links))

    def _partners(
        self, shape: SelectShape, other: str, links: Sequence[tuple[exp.Expression, exp.Expression]]
    ) -> Iterator[_HasPartner]:
        """Yield one entry for each place where the keys of the other source come from."""
        groups: list[tuple[int, dict[str, exp.Expression]]] = []  # place; by column, what it is compared with
        for ours, theirs in links:
            if isinstance(ours, exp.Column) and (key := self._origin(shape.sources[other].node, theirs)) is not None:
                (column,) = key.columns
                # a column that is compared again starts another set of keys: no table has a column twice
                free = (g for place, g in groups if place == key.place and column not in g and ours not in g.values())
                if (group := next(free, None)) is None:
                    groups.append((key.place, group := {}))
                group[column] = ours
        for place, columns in groups:
            yield _HasPartner(
                expressions=[ours.copy() for ours in columns.values()], keys=PlaceColumns(place, tuple(columns))
            )

    def _origin(self, node: exp.Expression, column: exp.Expression) -> PlaceColumns | None:
        """Column of a table that all values of a source's column come from, apart from NULLs."""
        if not isinstance(column, exp.Column):
            return None
        while isinstance(node, exp.Subquery):
            if node.args.get("alias") is not None and node.args["alias"].columns:
                return None
            node = node.this
        if isinstance(node, exp.Table):
            return PlaceColumns(self._indexes[id(node)], (column.name,))
        if not isinstance(node, exp.Select):
            return None
        found = [e.unalias() for e in node.expressions if e.alias_or_name.lower() == column.name.lower()]
        sources = SelectShape(node).sources
        if len(found) != 1 or not isinstance(found[0], exp.Column) or found[0].table not in sources:
            return None
        group = node.args.get("group")
        if group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None:
            return None
        return self._origin(sources[found[0].table].node, found[0])

    @staticmethod
    def _ties(shape: SelectShape, query: exp.Query) -> Iterator[tuple[str, exp.Column, str, exp.Column]]:
        """Equalities between plain columns outside and inside that every row of a sub-query fulfils."""
        inner = query.unnest()
        assert isinstance(inner, exp.Select)  # noqa: S101  its caller asked
        for outside, theirs, alias, ours in correlations(shape, SelectShape(inner), query):
            if isinstance(theirs, exp.Column) and isinstance(ours, exp.Column):
                yield outside, theirs, alias, ours

    def _add_outer_partners(
        self,
        shape: SelectShape,
        known: Mapping[str, "_Conditions"],
        query: exp.Query,
        ties: Sequence[tuple[str, exp.Column, str, exp.Column]],
    ) -> None:
        """Add partners in the sub-query, with its conditions, to rows that `exists` or `in` keeps."""
        inner = query.unnest()
        assert isinstance(inner, exp.Select)  # noqa: S101  its caller asked
        inside = SelectShape(inner)
        pairs: dict[tuple[str, str], list[tuple[exp.Expression, exp.Expression]]] = {}
        for outside, theirs, alias, ours in ties:
            if outside not in shape.nullable:
                pairs.setdefault((outside, alias), []).append((theirs, ours))
        for (outside, alias), links in pairs.items():
            known[outside].extend(self._partners(inside, alias, links))
            for condition in inside.own_conditions(alias):
                for theirs, ours in links:
                    known[outside].add_renamed(condition, ours, theirs)

    def _inherited(
        self,
        shape: SelectShape,
        known: Mapping[str, "_Conditions"],
        ties: Sequence[tuple[str, exp.Column, str, exp.Column]],
    ) -> dict[str, list[exp.Expression]]:
        """Conditions on the rows of a sub-query, which is only needed for outer rows that are needed themselves."""
        found: dict[str, _Conditions] = {}
        pairs: dict[tuple[str, str], list[tuple[exp.Expression, exp.Expression]]] = {}
        for outside, theirs, alias, ours in ties:
            mine = found.setdefault(alias, _Conditions())
            for condition in () if outside in shape.nullable else known[outside]:
                mine.add_renamed(condition, theirs, ours)
            pairs.setdefault((alias, outside), []).append((ours, theirs))
        for (alias, outside), links in pairs.items():
            found[alias].extend(self._partners(shape, outside, links))
        return {alias: list(conditions) for alias, conditions in found.items()}


class _Conditions:
    """Conditions on the rows of one source, without duplicates."""

    def __init__(self, conditions: Sequence[exp.Expression] = ()) -> None:
        self._by_text: dict[str, exp.Expression] = {}
        self.extend(conditions)

    def __iter__(self) -> Iterator[exp.Expression]:
        return iter(list(self._by_text.values()))

    def __len__(self) -> int:
        return len(self._by_text)

    def add(self, condition: exp.Expression) -> None:
        """Add a condition unless it is already there or there are too many."""
        if len(self._by_text) < _MAX_CONDITIONS:
            self._by_text.setdefault(_text(condition), condition)

    def extend(self, conditions: "Sequence[exp.Expression] | Iterator[exp.Expression]") -> None:
        for condition in conditions:
            self.add(condition)

    def add_renamed(self, condition: exp.Expression, old: exp.Expression, new: exp.Expression) -> None:
        """Add a condition on the column `old` alone as one on the equal column `new`."""
        columns = list(condition.find_all(exp.Column))
        if columns and all(column == old for column in columns) and have_one_type(old.type, new.type):
            self.add(_with_column(condition, old, new))


def _spread(shape: SelectShape, known: Mapping[str, _Conditions]) -> None:
    """Copy conditions from one side of an equality to the other until nothing changes."""
    links = [
        (alias, other, ours, theirs)
        for alias, other, (ours, theirs) in shape.links()
        if other not in shape.nullable and isinstance(ours, exp.Column) and isinstance(theirs, exp.Column)
    ]
    before = -1
    while before != (before := sum(map(len, known.values()))):
        for alias, other, ours, theirs in links:
            for condition in known[other]:
                known[alias].add_renamed(condition, theirs, ours)


def _through_projection(shape: SelectShape, condition: exp.Expression) -> exp.Expression | None:
    """Rewrite a condition on the result of a SELECT to the rows of one source; None where its meaning would change."""
    outputs = Counter(e.alias_or_name.lower() for e in shape.select.expressions)
    used = {column.name.lower() for column in condition.find_all(exp.Column)}
    if not used or any(outputs[name] != 1 for name in used):
        return None
    projected = {e.alias_or_name.lower(): e.unalias() for e in shape.select.expressions}
    if why_not_sliced(shape, [projected[name] for name in sorted(used)]) is not None:
        return None
    return substituted((condition,), projected)[0]


def _must_find_rows(query: exp.Query, select: exp.Select) -> bool:
    """Whether a row is kept only if the sub-query finds a row for it: `exists` or `in` as a conjunct of WHERE."""
    where = select.args.get("where")
    inner = query.unnest()
    holder = query.parent.parent if isinstance(query.parent, exp.Subquery) else query.parent
    if where is None or not isinstance(holder, exp.Exists | exp.In) or not isinstance(inner, exp.Select):
        return False
    # without GROUP BY, an aggregate returns a row even for no input
    gives_rows_of_its_own = SelectShape(inner).aggregates or any(
        inner.args.get(part) for part in ("limit", "offset", "group", "having")
    )
    return not gives_rows_of_its_own and any(holder is condition for condition in conjuncts(where.this))


def _text(condition: exp.Expression) -> str:
    if isinstance(condition, _HasPartner):
        return f"{[e.sql(dialect=DIALECT) for e in condition.expressions]} in {condition.args['keys']}"
    return str(condition.sql(dialect=DIALECT))


def _with_column(condition: exp.Expression, old: exp.Expression, new: exp.Expression) -> exp.Expression:
    return condition.copy().transform(lambda node: new.copy() if node == old else node)
