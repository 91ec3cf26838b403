"""Determines from the SQL alone which partitions or keys of a result the changed rows of its tables can reach.

Builds the queries over changed rows, and the conditions that limit a scan to the rows of some partitions. The rules
for one SELECT are in `scan_core/sql/query_shape.py`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlglot import exp

from nevermore.pipelines.config.published import Period, PublishedPartition
from nevermore.scan_core import NestedField, PrimitiveType, Schema
from nevermore.scan_core.spark import (
    DIALECT,
    Expressions,
    Path,
    SelectShape,
    bound_by_parameters,
    correlations,
    full_join_keys,
    have_one_type,
    is_evaluated_per_row,
    is_plain,
    of_sides,
    owner,
    passes_rows_on,
    path_between,
    requalified,
    substituted,
    why_not_sliced,
)

OF_CHANGED = "_changed"
"""Suffix of the name, after that of the table, under which the queries built here read changed rows."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How changed rows of a table reach the result through one place where the query names the table.

    Attributes:
        table: name of the table in the tree.
        values: query for a superset of the values of `k0`, `k1` and so on whose slices changed rows can touch; None if any
            slice can be touched.
        expressions: the values as expressions of the row's own columns, if there are such.
        final: whether the values are slices of the result rather than keys on the way to it.
        reason: why `values` is None.
    """

    table: str
    values: exp.Select | None
    expressions: Expressions = ()
    final: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Expressions of one source of a SELECT that determine the slice to which a row of its result belongs.

    Attributes:
        source: the source.
        expressions: expressions of its columns.
        final: whether the slices are slices of the result.
        apart: another source whose rows may be in the result without a row of this one; no path may lead through it.
    """

    source: str
    expressions: Expressions
    final: bool
    apart: str | None = None


def of_changed_rows(
    shape: SelectShape, alias: str, table: exp.Table, expressions: Expressions, *, final: bool
) -> Reach:
    """Build the query for the slices of changed rows of `table`, which are values of expressions of its columns."""
    select = exp.Select(distinct=exp.Distinct()).from_(
        exp.alias_(exp.to_table(f"{table.name}{OF_CHANGED}"), alias, table=True), copy=False
    )
    select = select.select(*_named(expressions), copy=False)
    # a changed row that fails such a condition has no effect, before or after; parameters are left out, as they had
    # other values in the run that made the other partitions
    for condition in shape.own_conditions(alias):
        if condition.find(exp.Placeholder) is None:
            select = select.where(condition.copy(), copy=False)
    return Reach(table.name, select, expressions if final else (), final)


def through(
    shape: SelectShape,
    path: Path,
    anchor: Anchor,
    reach: Reach,
) -> Reach:
    """Build the query for the slices of the anchor that join with the keys of `reach`, hop by hop."""
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
    return Reach(reach.table, values, (), anchor.final)


def _named(expressions: Expressions) -> list[exp.Expression]:
    return [exp.alias_(e.copy(), f"k{n}") for n, e in enumerate(expressions)]


_OUT = "_out"
"""Qualifier of a query's result columns in expressions on the result."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Expressions of an inner query's result that an outer query wants traced, or why tracing is impossible."""

    expressions: Expressions | None
    final: bool = True
    reason: str = ""

    def without(self, reason: str) -> "_Wanted":
        return _Wanted(None, reason=self.reason or reason)


def reaches(tree: exp.Query, columns: Sequence[str], partition_type: str = "DATE") -> tuple[Reach, ...]:
    """Trace every place where the tree names a table.

    Args:
        tree: as `traceable` returns it.
        columns: the result columns, in lower case, whose values tell slices apart: that of the partition, or a key.
        partition_type: sqlglot's name of the partition's type, which parameters also have.
    """
    names = [select.alias_or_name.lower() for select in tree.selects]
    if (missing := next((column for column in columns if names.count(column) != 1), None)) is not None:
        wanted = _Wanted(None, reason=f"column {missing} of the result cannot be traced")
    else:
        wanted = _Wanted(tuple(exp.column(column, table=_OUT) for column in columns))
    found = tuple(_Tracer(partition_type).of_query(tree, wanted))
    # at least one for each place: a change that no reach covers would be lost
    named, reached = (Counter(each) for each in ((t.name for t in tree.find_all(exp.Table)), (r.table for r in found)))
    missed = sorted(table for table, count in named.items() if reached[table] < count)
    return (
        *found,
        *(Reach(table, None, reason="a place where the SQL names it is not understood") for table in missed),
    )


class _Tracer:
    """Traces from the result down to the tables."""

    def __init__(self, partition_type: str) -> None:
        self._partition_type = partition_type

    def of_query(self, query: exp.Expression, wanted: _Wanted) -> Iterator[Reach]:
        if isinstance(query, exp.Subquery):
            yield from self.of_query(query.this, wanted if passes_rows_on(query) else wanted.without("a limit"))
        elif isinstance(query, exp.SetOperation):
            sides = None if wanted.expressions is None else of_sides(query, wanted.expressions, _OUT)
            if isinstance(sides, str):
                wanted, sides = wanted.without(sides), None
            for number, side in enumerate((query.left, query.right)):
                inner = wanted if sides is None else replace(wanted, expressions=sides[number])
                yield from self.of_query(side, inner)
        elif isinstance(query, exp.Select):
            yield from self._of_select(query, wanted)
        else:
            yield from _unreachable(query, wanted.reason or f"{query.key} is not understood")

    def _of_select(self, select: exp.Select, wanted: _Wanted) -> Iterator[Reach]:
        shape = SelectShape(select)
        anchors = list(self._by_parameter(shape))
        reason = wanted.reason
        if wanted.expressions is not None:
            names = Counter(e.alias_or_name.lower() for e in select.expressions)
            projected = {e.alias_or_name.lower(): e.unalias() for e in select.expressions}
            expressions = substituted(wanted.expressions, projected)
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
        # an anchor tells its slices from its own rows, without any join
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
        # An equality with the anchor's own expression: the value of this source is the slice, so the anchor need not be
        # read. The types must be the same: values that are equal after a cast may be different partitions.
        if len(anchor.expressions) == 1:
            for a, b, (ours, theirs) in shape.links():
                if (
                    (a, b) == (alias, anchor.source)
                    and theirs == anchor.expressions[0]
                    and have_one_type(ours.type, theirs.type)
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
        """Trace into a source, whose slices are values of expressions of its own columns."""
        node = shape.sources[alias].node
        if isinstance(node, exp.Table):
            if wanted.expressions is None:
                yield Reach(node.name, None, reason=wanted.reason)
            else:
                yield of_changed_rows(shape, alias, node, wanted.expressions, final=wanted.final)
            return
        if wanted.expressions is not None:
            outside = tuple(requalified(e, alias, _OUT) for e in wanted.expressions)
            wanted = replace(wanted, expressions=outside)
        yield from self.of_query(node, wanted)

    def _of_subquery(
        self, shape: SelectShape, query: exp.Query, anchors: Sequence[Anchor], reason: str
    ) -> Iterator[Reach]:
        """Trace a query in an expression, by its correlation with a source outside."""
        inner = query.unnest()
        inner_shape = SelectShape(inner) if isinstance(inner, exp.Select) else None
        why = reason or "a sub-query is not tied to the partition"
        if inner_shape is not None and is_evaluated_per_row(query):
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
            # where the outer source is NULL, only a plain column of it is certain to be NULL and to match no inner row
            if on is None or (outside[0] in shape.nullable and not is_plain(outside[1])):
                continue
            for alias in inner.sources:
                for reach in self._of_source(inner, alias, [keyed, *self._by_parameter(inner)], ""):
                    yield reach if reach.final else through(shape, [(outside[0], link), *on], anchor, reach)
            for nested in inner.subqueries:
                yield from self._of_subquery(inner, nested, [], "a sub-query is not tied to the partition")
            return

    def _by_parameter(self, shape: SelectShape) -> Iterator[Anchor]:
        """Sources whose relevant rows a parameter binds to the partition."""
        for alias in shape.sources:
            conditions = shape.conditions_of(alias)
            bound = next((e for e in bound_by_parameters(conditions, self._partition_type) if owner(e) == alias), None)
            # a row of an optional source that is bound elsewhere still decides whether NULLs replace it
            if bound is not None and alias not in shape.nullable:
                yield Anchor(alias, (bound,), final=True)


def _unreachable(node: exp.Expression, reason: str) -> Iterator[Reach]:
    for table in node.find_all(exp.Table):
        yield Reach(table.name, None, reason=reason)


MAX_RANGES = 20
"""Maximum of time ranges or values in a condition; beyond it, one range that covers them all is faster to evaluate."""
_ZONE_MARGIN = timedelta(days=1)
"""Largest offset of any time zone from UTC, now or in the past."""
_DAY = timedelta(days=1)
_NEXT: dict[str, timedelta] = {
    "YEAR": timedelta(days=366),
    "QUARTER": timedelta(days=92),
    "MONTH": timedelta(days=31),
    "WEEK": timedelta(days=7),
    "DAY": _DAY,
    "HOUR": timedelta(hours=1),
    "MINUTE": timedelta(minutes=1),
    "SECOND": timedelta(seconds=1),
}
_UNITS = {"YYYY": "YEAR", "YY": "YEAR", "MON": "MONTH", "MM": "MONTH", "DD": "DAY", "Q": "QUARTER"}
_FIRST, _LAST = datetime(1, 1, 8, tzinfo=UTC), datetime(9998, 12, 1, tzinfo=UTC)
"""Years outside of these have no room for a margin."""


@dataclass(frozen=True, slots=True)
class ScanCondition:
    """Condition on relevant rows in the syntax of scans. `is_exact`: it selects the partitions' rows and no others."""

    sql: str
    is_exact: bool = False


def scan_condition(
    expression: exp.Expression, schema: Schema, partition: PublishedPartition, values: Collection[Any]
) -> ScanCondition | None:
    """Build the condition on the rows of a table that belong to some partitions of the result.

    `values` are values of the partition field. The expression is over columns of the table alone and computes the
    partition column.
    """
    column = expression.find(exp.Column)
    field = None if column is None else _field(schema, column)
    # rows of the NULL partition may come from any value for which the expression is NULL, so nothing limits them
    if field is None or not isinstance(field.type, PrimitiveType) or None in values or not values:
        return None
    name = "`" + field.name.replace("`", "``") + "`"
    if not partition.is_time:
        return _of_values(name, field.type, values) if isinstance(expression, exp.Column) else None
    is_day = _is_day_of_column(expression)
    periods = partition.periods(values)
    found = []
    for period in _few(periods):
        if not _FIRST < period.start <= period.end < _LAST:
            return None
        widened = _before(expression, period)
        if widened is None:
            return None
        if (text := _range(name, field.type.name, widened)) is None:
            return None
        found.append(text)
    is_column = isinstance(expression, exp.Column) and len(periods) <= MAX_RANGES
    exact = is_column or (is_day and partition.transform == "identity" and len(values) == 1)
    return ScanCondition(found[0] if len(found) == 1 else " or ".join(f"({text})" for text in found), exact)


def _field(schema: Schema, column: exp.Column) -> NestedField | None:
    found = [f for f in schema.fields if f.name.lower() == column.name.lower()]
    return found[0] if len(found) == 1 and isinstance(column.this, exp.Identifier) else None


def plain_columns(reach: Reach, schema: Schema) -> dict[str, int]:
    """Columns of the table that are, unchanged, a column of the slices, with its number; none if that is not certain."""
    found: dict[str, int] = {}
    for number, expression in enumerate(reach.expressions if reach.final else ()):
        field = _field(schema, expression) if isinstance(expression, exp.Column) else None
        if field is not None and isinstance(field.type, PrimitiveType):
            found[field.name] = number
    return found


def _few(periods: Sequence[Period]) -> Sequence[Period]:
    return periods if len(periods) <= MAX_RANGES else [Period(periods[0].start, periods[-1].end)]


def _is_day_of_column(expression: exp.Expression) -> bool:
    if _is_cast_to_date(expression):
        expression = expression.this
    return isinstance(expression, exp.Column)


def _is_cast_to_date(expression: exp.Expression) -> bool:
    if expression.args.get("format"):
        return False
    return isinstance(expression, exp.TsOrDsToDate) or (isinstance(expression, exp.Cast) and expression.is_type("date"))


def _before(expression: exp.Expression, period: Period) -> Period | None:
    """Times of the innermost column for which the expression can lie in the period."""
    match expression:
        case exp.Column():
            return period
        case exp.Paren():
            return _before(expression.this, period)
        case _ if _is_cast_to_date(expression):
            return _before(expression.this, Period(_floor(period.start), _ceiling(period.end, "DAY")))
        case exp.Cast() if expression.is_type("timestamp", "timestampntz", "timestamptz", "timestampltz"):
            return _before(expression.this, period)
        case exp.TimestampTrunc() | exp.DateTrunc():
            named = expression.args.get("unit")
            unit = "" if named is None else str(named.name).upper()
            unit = _UNITS.get(unit, unit)
            if unit not in _NEXT:
                return None
            return _before(expression.this, Period(period.start, _ceiling(period.end, unit)))
        case exp.AtTimeZone() | exp.FromTimeZone():  # rules of time zones change; a margin holds under any of them
            return _before(expression.this, Period(period.start - _ZONE_MARGIN, period.end + _ZONE_MARGIN))
        case _:
            return None


def _floor(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _ceiling(moment: datetime, unit: str) -> datetime:
    """First start of a unit that is not before the moment."""
    starts = {
        "DAY": moment == _floor(moment),
        "HOUR": (moment.minute, moment.second, moment.microsecond) == (0, 0, 0),
        "MONTH": moment == _floor(moment) and moment.day == 1,
        "YEAR": moment == _floor(moment) and (moment.month, moment.day) == (1, 1),
    }
    return moment if starts.get(unit, False) else moment + _NEXT[unit]


def _range(name: str, kind: str, period: Period) -> str | None:
    match kind:
        case "date":
            start, end = period.start.date(), _ceiling(period.end, "DAY").date()
            if end - start == _DAY:
                return f"{name} = date '{start}'"
            return f"{name} >= date '{start}' and {name} < date '{end}'"
        case "timestamp" | "timestamptz":
            zone = "+00:00" if kind == "timestamptz" else ""
            start_text, end_text = (
                moment.replace(tzinfo=None).isoformat(sep=" ") + zone for moment in (period.start, period.end)
            )
            return f"{name} >= timestamp '{start_text}' and {name} < timestamp '{end_text}'"
        case _:
            return None


def _of_values(name: str, kind: PrimitiveType, values: Collection[Any]) -> ScanCondition | None:
    if len(values) > MAX_RANGES or kind.name not in {"int", "long", "string", "boolean"}:
        return None
    if any(isinstance(value, str) and "\\" in value for value in values):  # scans and Spark read it differently
        return None
    literals = [exp.convert(value).sql(dialect=DIALECT) for value in sorted(values)]
    return ScanCondition(f"{name} in ({', '.join(literals)})", is_exact=True)
