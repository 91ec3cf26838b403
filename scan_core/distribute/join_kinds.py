"""Kinds of joins, and which side may lose rows without partner before the join sees them.

A side whose rows come out without partner (the outer ones, anti) is never filtered: that would lose rows.
"""

from difflib import get_close_matches

from scan_core.errors import OptionError

_NAMES = {
    "inner": "inner",
    "semi": "left_semi",
    "leftsemi": "left_semi",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "outer": "full",
    "full": "full",
    "fullouter": "full",
    "anti": "left_anti",
    "leftanti": "left_anti",
}
_FACT_MAY_LOSE = frozenset({"inner", "left_semi", "right"})
_DIMENSION_MAY_LOSE = frozenset({"inner", "left_semi", "left", "left_anti"})
_GIVES_DIMENSION = frozenset({"right", "full"})
_MAY_BROADCAST_DIMENSION = frozenset({"inner", "left_semi", "left", "left_anti"})


def join_kind(how: str) -> str:
    """The one name of a kind that Spark knows by several.

    Raises:
        OptionError: an unknown one, or a cross join, which has no keys.
    """
    plain = how.strip().lower().replace("_", "")
    if plain == "cross":
        raise OptionError("a cross join has no keys; use DataFrame.crossJoin")
    if plain not in _NAMES:
        near = get_close_matches(plain, _NAMES, n=1, cutoff=0.0)
        raise OptionError(f"unknown join {how!r}; did you mean {near[0]!r}?")
    return _NAMES[plain]


def may_filter_fact(kind: str) -> bool:
    """Whether rows of the fact (left) without partner leave no trace in the result."""
    return kind in _FACT_MAY_LOSE


def may_filter_dimension(kind: str) -> bool:
    """The same of the dimension (right)."""
    return kind in _DIMENSION_MAY_LOSE


def may_give_keys_of_dimension(kind: str) -> bool:
    """Whether rows come out that have no row of the fact: their keys lie where the dimension's do."""
    return kind in _GIVES_DIMENSION


def may_broadcast_dimension(kind: str) -> bool:
    """Whether Spark can hold the dimension in every task."""
    return kind in _MAY_BROADCAST_DIMENSION
