"""What evaluating an expression costs per row, roughly: the first guess before anything is measured.

One unit is comparing a column of fixed width with a constant, about a nanosecond per row.
"""

from functools import lru_cache

from scan_core.expr.bound import BoundExpr, Call, Cast, Column, InSet, Like, Literal, Member, children, walk
from scan_core.expr.coercion import BYTES, name_of

_COPY_COST, _MASK_COST = 4.0, 1.0
_STRING_COST = 8.0
_CALL_COST = {
    "rlike": 40.0,
    **dict.fromkeys(("lower", "upper", "reverse", "replace", "concat"), 30.0),
    **dict.fromkeys(("substr", "left", "right", "trim", "ltrim", "rtrim"), 25.0),
    **dict.fromkeys(("startswith", "endswith", "contains", "length"), 10.0),
    **dict.fromkeys(("map_get", "array_contains", "map_contains_key"), 30.0),
    **dict.fromkeys(("list_get", "list_element_at", "size"), 8.0),
    **dict.fromkeys(("year", "month", "quarter", "day", "trunc", "date_trunc", "add_months"), 8.0),
}


@lru_cache(maxsize=4096)
def column_ids(node: BoundExpr) -> frozenset[int]:
    """Ids of the top-level columns that the expression reads."""
    return frozenset(part.field_id for part in walk(node) if isinstance(part, Column))


@lru_cache(maxsize=4096)
def cost_of(node: BoundExpr) -> float:
    """Units per row."""
    below = sum(cost_of(c) for c in children(node))
    match node:
        case Column() | Literal() | Member():
            return below
        case InSet(operand):
            return below + (20.0 if name_of(operand.type) in BYTES | {"string", "uuid"} else 5.0)
        case Like(ignore_case=True):
            return below + 60.0
        case Like():
            return below + 15.0
        case Cast(operand):
            return below + (200.0 if name_of(operand.type) == "string" else 3.0)
        case Call(function):
            return below + _CALL_COST.get(function.removeprefix("try "), 3.0)
        case _:
            reads_text = any(name_of(c.type) in BYTES | {"string", "uuid"} for c in children(node))
            return below + (_STRING_COST if reads_text else 1.0)


def pays_to_narrow(node: BoundExpr, rows_left: int, num_rows: int) -> bool:
    """Is it cheaper to filter the columns and evaluate the rows left than to evaluate all rows?"""
    copied = rows_left * _COPY_COST * max(1, len(column_ids(node)))
    return copied + num_rows * _MASK_COST < (num_rows - rows_left) * cost_of(node)
