"""Ways from one source of a SELECT to another by columns that must be equal, sub-queries in expressions included."""

from collections import deque
from collections.abc import Iterator

from sqlglot import exp

from pipelines.published.query_shape import Link, SelectShape, conjuncts, equalities, is_plain, owner
from pipelines.published.sql_functions import is_row_wise

Path = list[tuple[str, list[Link]]]
"""Sources on the way, each with its links to the one before: (expression of that one, expression of this one)."""


def path_between(shape: SelectShape, start: str, goal: str, *, without: str | None = None) -> Path | None:
    """Sources on the way from `start` to `goal`, each with its links to the one before; the shortest way.

    None is `without`, where there is such a source.
    """
    if start == without:
        return None
    links: dict[str, dict[str, list[Link]]] = {}
    for a, b, (ours, theirs) in shape.links():
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
        if alias in inner.nullable:
            continue
        for condition in inner.conditions_of(alias):
            for left, right in equalities(condition):
                for ours, theirs in ((left, right), (right, left)):
                    if owner(ours) == alias and (outside := owner(theirs)) in outer.sources and outside:
                        yield outside, theirs, alias, ours
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
