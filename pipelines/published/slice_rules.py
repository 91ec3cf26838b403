"""When a slice of the result of a SELECT is made of a slice of one of its sources, and when a parameter says so itself."""

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from pipelines.published.query_shape import SelectShape, equalities, is_plain, owner
from pipelines.published.sql_functions import is_row_wise

PARTITION, PARTITION_START, PARTITION_END = "partition", "partition_start", "partition_end"
"""Parameters that stand for the partition that is made."""
_TIMES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMPTZ", "TIMESTAMPLTZ"})


def why_not_sliced(shape: SelectShape, expressions: Sequence[exp.Expression]) -> str | None:
    """Why slices of the result of a SELECT by these expressions are not made of slices of one source; None if they are."""
    owners = {owner(e) for e in expressions}
    if not all(is_row_wise(e) for e in expressions):
        return "the partition is computed from several rows, or by a function that is not repeatable"
    if len(owners) != 1 or not owners <= shape.sources.keys():
        return "the partition does not come from columns of one table"
    if owners & shape.nullable:
        return "the partition comes from the optional side of an outer join"
    return _why_rows_mix(shape, expressions)


def full_join_keys(shape: SelectShape, expressions: Sequence[exp.Expression]) -> dict[str, exp.Expression]:
    """By source, what is the slice of its rows where slices are told by `coalesce(x, y)` of a full join on `x = y`.

    A row that one side alone has is in its own slice, rows that meet are in one. Empty where this is not certain: the
    join must come first, nothing after it may bring rows without either, and both must be NULL where their side is.
    """
    merged = expressions[0].unnest() if len(expressions) == 1 else None
    if not isinstance(merged, exp.Coalesce) or len(merged.expressions) != 1:
        return {}
    keys = {owner(key): key for key in (merged.this.unnest(), merged.expressions[0].unnest())}
    if {*keys} != {*list(shape.sources)[:2]} or not all(is_plain(key) for key in keys.values()):
        return {}
    first, *others = [source for source in shape.sources.values() if source.join is not None]
    if first.kind != "FULL" or any(other.kind not in {"INNER", "LEFT", "SEMI", "ANTI"} for other in others):
        return {}
    left, right = keys.values()
    if left.type is None or left.type.is_type("unknown") or left.type != right.type:
        return {}
    links = equalities(first.condition)
    if not any(link in ((left, right), (right, left)) for link in links) or _why_rows_mix(shape, expressions):
        return {}
    return {str(source): key for source, key in keys.items()}


def _why_rows_mix(shape: SelectShape, expressions: Sequence[exp.Expression]) -> str | None:
    """Why rows of several slices make one row, or decide about one another."""
    select, group = shape.select, shape.select.args.get("group")
    if select.args.get("limit") or select.args.get("offset"):
        return "a limit chooses rows of all partitions"
    if group is None and shape.aggregates:
        return "an aggregate without group by takes the rows of all partitions"
    if group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None:
        return "rollup, cube or grouping sets mix partitions"
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
    """Expressions of rows that parameters bind to the partition, directly or between its start and end."""
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
