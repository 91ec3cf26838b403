"""What DuckDB's plan of a query says about its scans: conditions that DuckDB evaluates itself, and limits.

DuckDB passes no condition on the beginning of a text to a scan of Arrow data, and no lower bound of floats. It evaluates them again
after the scan, so that a scan may leave out rows but need not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nevermore.scan_core.expr.coercion import round_to_float
from nevermore.scan_core.expr.nodes import Expr, col
from nevermore.scan_core.model.schema import Schema

_NUMBER = r"(-?\d[\d.]*(?:e[+-]?\d+)?)"
_CONDITION = re.compile(rf"prefix\((\w+), '((?:[^'\\]|'')*)'\)|\((\w+) (?:>=?|BETWEEN) {_NUMBER}(?: AND {_NUMBER})?\)")
"""DuckDB prints both bounds of a range like this, whether they belong to it or not, and does not quote names."""


def narrowed(plan: Mapping[str, Any], scans: Mapping[str, Any]) -> dict[str, Any]:
    """The scans with conditions of the plan, and beginning with few rows where DuckDB stops after some; the same where there are none.

    A plan does not name the tables of its scans. One is known by its columns, if only one table has them all, and no other scan
    may be of that table: it would need other rows.

    Args:
        plan: the root of a plan in JSON.
        scans: by table, of all tables that the query may read.
    """
    found = dict(scans)
    places = list(_places(plan))
    tables = [[n for n, scan in scans.items() if columns <= {*scan.schema.names}] for columns, _ in places]
    for (_, condition), names in zip(places, tables, strict=True):
        if len(names) == 1 and sum(names[0] in others for others in tables) == 1:
            for predicate in _predicates(condition, scans[names[0]].schema):
                found[names[0]] = found[names[0]].where(predicate)
    if _takes_few(plan):
        found = {n: scan.with_options(replace(scan.options, wants_few=True)) for n, scan in found.items()}
    return found


def _places(node: Mapping[str, Any], condition: Any = None) -> Iterator[tuple[set[str], str]]:
    """The columns of each scan, and the condition directly above it: empty without one, or if it takes several lines."""
    extra, kind = node["extra_info"], node["name"]
    if kind == "PYTHON_ARROW_SCAN":
        columns = extra.get("Projections", [])
        columns = {columns} if isinstance(columns, str) else {*columns}
        # other names could look like a condition
        yield columns, condition if isinstance(condition, str) and all(map(str.isidentifier, columns)) else ""
    for child in node["children"]:
        yield from _places(child, extra.get("Expression") if kind == "FILTER" else None)


def _predicates(text: str, schema: Schema) -> Iterator[Expr]:
    """The conditions, or wider ones, in the language of scans; none if one of them is not known here."""
    rest = _CONDITION.sub("?", text)
    for name, prefix, number, *bounds in _CONDITION.findall(text) if re.fullmatch(r"\?|\(\?( AND \?)+\)", rest) else ():
        kind = str(schema.find(name or number).type)
        if kind == "string":
            yield col(name).starts_with(prefix.replace("''", "'"))
        elif kind in {"float", "double"}:
            low, *high = (round_to_float(float(b)) if kind == "float" else float(b) for b in bounds if b)
            yield col(number) >= low
            yield from (col(number) <= bound for bound in high)


def _takes_few(plan: Mapping[str, Any], *, is_limited: bool = False) -> bool:
    """Whether DuckDB stops a scan after some rows: nothing below a limit needs all of them."""
    kind = plan["name"]
    stops = kind.endswith("LIMIT") or (is_limited and kind in {"PROJECTION", "FILTER"})
    is_few = is_limited and kind == "PYTHON_ARROW_SCAN"
    return is_few or any(_takes_few(child, is_limited=stops) for child in plan["children"])
