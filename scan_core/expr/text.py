"""Expressions as SQL text: for `explain()`, messages and the `sql` of predicates built from objects."""

from typing import Any

from scan_core.expr.bound import (
    And,
    Between,
    BoundExpr,
    Call,
    Case,
    Cast,
    Coalesce,
    Column,
    Comparison,
    Failure,
    InSet,
    IsNull,
    Like,
    Literal,
    Member,
    Not,
    Or,
)
from scan_core.expr.literals import literal_text
from scan_core.expr.nodes import CastTo, Constant, Expr, Name, Operation

MAX_LISTED_VALUES = 12
"""Longer IN lists are shortened in text: a reader of explain() wants the shape, not 1,000 values."""

_INFIX = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "<=>"), 4),
    "|": 6,
    "^": 7,
    "&": 8,
    **dict.fromkeys(("+", "-", "||"), 9),
    **dict.fromkeys(("*", "/", "%", "div"), 10),
}
_CALL_NAMES = {
    "octet_length": "length",
    "list_get": "[]",
    "map_get": "[]",
    "list_element_at": "element_at",
    "try list_get": "get",
    "try list_element_at": "try_element_at",
    "try +": "try_add",
    "try -": "try_subtract",
    "try *": "try_multiply",
    "try /": "try_divide",
    "try %": "try_mod",
}
_NOT, _PREDICATE, _NEGATIVE, _ATOM = 3, 5, 11, 12


def operation_text(operation: Operation) -> str:
    """An unbound operation as SQL."""
    return _unbound(operation)[0]


def bound_text(node: BoundExpr) -> str:
    """A bound expression as SQL that a person can read; long IN lists are shortened."""
    return _bound(node)[0]


def _wrap(part: tuple[str, int], above: int) -> str:
    text, level = part
    return text if level > above else f"({text})"


def _infix(operator: str, parts: list[tuple[str, int]]) -> tuple[str, int]:
    level = _INFIX[operator]
    # the first operand may share the operator's level (left-associative), comparisons never chain
    first = _wrap(parts[0], level if level == _INFIX["="] else level - 1)
    rest = [_wrap(p, level - 1 if operator in {"and", "or"} else level) for p in parts[1:]]
    return f" {operator} ".join([first, *rest]), level


def _unbound(node: Expr) -> tuple[str, int]:
    if not isinstance(node, Operation):
        assert isinstance(node, Name | Constant | CastTo)  # noqa: S101  # the only other classes of expressions
        return str(node), _ATOM
    return _operator(node.name, [_unbound(a) for a in node.arguments])


def _operator(name: str, parts: list[tuple[str, int]]) -> tuple[str, int]:  # noqa: C901  # one flat case per operator
    texts = [p[0] for p in parts]
    match name:
        case _ if name in _INFIX:
            return _infix(name, parts)
        case "not":
            return f"not {_wrap(parts[0], _NOT - 1)}", _NOT
        case "~":
            return f"~{_wrap(parts[0], _NEGATIVE)}", _NEGATIVE
        case "negative":
            return f"-{_wrap(parts[0], _NEGATIVE)}", _NEGATIVE
        case "is null":
            return f"{_wrap(parts[0], _PREDICATE)} is null", _PREDICATE
        case "between":
            low, high = (_wrap(p, _PREDICATE) for p in parts[1:])
            return f"{_wrap(parts[0], _PREDICATE)} between {low} and {high}", _PREDICATE
        case "in":
            return f"{_wrap(parts[0], _PREDICATE)} in ({', '.join(texts[1:])})", _PREDICATE
        case "like" | "ilike" | "rlike":
            escape = "" if len(texts) < 3 or texts[2] == r"'\\'" else f" escape {texts[2]}"
            return f"{_wrap(parts[0], _PREDICATE)} {name} {texts[1]}{escape}", _PREDICATE
        case "[]":
            return f"{_wrap(parts[0], _NEGATIVE)}[{texts[1]}]", _ATOM
        case ".":
            return f"{_wrap(parts[0], _NEGATIVE)}.{texts[1][1:-1]}", _ATOM
        case "case":
            return _case(list(zip(texts[:-1:2], texts[1::2], strict=False)), texts[-1]), _ATOM
        case _:
            return f"{name}({', '.join(texts)})", _ATOM


def _case(branches: list[tuple[str, str]], default: str) -> str:
    arms = " ".join(f"when {condition} then {value}" for condition, value in branches)
    return f"case {arms} else {default} end"


def _bound(node: BoundExpr) -> tuple[str, int]:  # noqa: C901, PLR0912  # one flat case per node
    match node:
        case Column(_, name):
            return str(Name((name,))), _ATOM
        case Member(operand, _, name):
            return f"{_wrap(_bound(operand), _NEGATIVE)}.{Name((name,))}", _ATOM
        case Literal(value, type_):
            return literal_text(value, type_), _ATOM
        case Failure(_, _, expression):
            return _bound(expression)
        case Comparison(operator, left, right):
            return _infix(operator, [_bound(left), _bound(right)])
        case InSet():
            return _in_set(node), _PREDICATE
        case Between(operand, lower, upper, lower_inclusive, upper_inclusive):
            return _between(operand, lower, upper, lower_inclusive, upper_inclusive)
        case IsNull(operand):
            return _operator("is null", [_bound(operand)])
        case Like(operand, pattern, escape, ignore_case):
            parts = [_bound(operand), (str(Constant(pattern)), _ATOM), (str(Constant(escape)), _ATOM)]
            return _operator("ilike" if ignore_case else "like", parts)
        case And(operands):
            return _infix("and", [_bound(o) for o in operands])
        case Or(operands):
            return _infix("or", [_bound(o) for o in operands])
        case Not(IsNull(operand)):
            return f"{_wrap(_bound(operand), _PREDICATE)} is not null", _PREDICATE
        case Not(operand):
            return _operator("not", [_bound(operand)])
        case Cast(operand, type_, safe):
            return f"{'try_cast' if safe else 'cast'}({_bound(operand)[0]} as {type_})", _ATOM
        case Case(branches, default):
            return _case([(_bound(c)[0], _bound(v)[0]) for c, v in branches], _bound(default)[0]), _ATOM
        case Coalesce(operands):
            return f"coalesce({', '.join(_bound(o)[0] for o in operands)})", _ATOM
        case Call(function, arguments):
            if function == "date_trunc":
                arguments = arguments[::-1]
            return _operator(_CALL_NAMES.get(function, function), [_bound(a) for a in arguments])


def _between(operand: BoundExpr, lower: Any, upper: Any, lower_in: bool, upper_in: bool) -> tuple[str, int]:  # noqa: FBT001
    name, type_ = _wrap(_bound(operand), _PREDICATE), operand.type
    if lower is not None and upper is not None and lower_in and upper_in:
        return f"{name} between {literal_text(lower, type_)} and {literal_text(upper, type_)}", _PREDICATE
    parts = []
    if lower is not None:
        parts.append((f"{name} >{'=' * lower_in} {literal_text(lower, type_)}", _INFIX["="]))
    if upper is not None:
        parts.append((f"{name} <{'=' * upper_in} {literal_text(upper, type_)}", _INFIX["="]))
    return _infix("and", parts) if len(parts) > 1 else parts[0]


def _in_set(node: InSet) -> str:
    values = sorted(node.values)
    shown = [literal_text(v, node.operand.type) for v in values[:MAX_LISTED_VALUES]]
    if len(values) > MAX_LISTED_VALUES:
        shown.append(f"... {len(values) - MAX_LISTED_VALUES} more")
    shown += ["null"] * node.has_null + ["double 'NaN'"] * node.has_nan
    return f"{_wrap(_bound(node.operand), _PREDICATE)} in ({', '.join(shown)})"
