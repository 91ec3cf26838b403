"""The shapes of SQL whose meaning is known here: a list of what is understood, so that anything else is not.

Which rows make which partition is only asked of queries that consist of these parts alone, used in these ways. Trees are
qualified (`query_tree.py`). Functions are listed in `sql_functions.py`.
"""

from collections.abc import Mapping

from sqlglot import exp

from pipelines.published.sql_functions import is_generator, is_known_part

_SELECT = frozenset((
    "expressions", "from", "from_", "joins", "where", "group", "having", "order", "sort", "distribute", "cluster", "limit",
    "offset", "distinct", "hint", "laterals",
))  # fmt: skip
_PARTS: Mapping[str, frozenset[str]] = {
    "Select": _SELECT,
    "From": frozenset({"this"}),
    "Join": frozenset({"this", "on", "side", "kind"}),
    "Table": frozenset({"this", "alias"}),
    "Subquery": frozenset({"this", "alias", "order", "limit", "offset"}),
    "TableAlias": frozenset({"this"}),
    "Lateral": frozenset({"this", "view", "outer", "alias"}),
    "Where": frozenset({"this"}),
    "Group": frozenset({"expressions", "rollup", "cube", "grouping_sets"}),
    "Rollup": frozenset({"expressions"}),
    "Cube": frozenset({"expressions"}),
    "GroupingSets": frozenset({"expressions"}),
    "Having": frozenset({"this"}),
    "Order": frozenset({"expressions"}),
    "Sort": frozenset({"expressions"}),
    "Cluster": frozenset({"expressions"}),
    "Distribute": frozenset({"expressions"}),
    "Ordered": frozenset({"this", "desc", "nulls_first"}),
    "Limit": frozenset({"expression"}),
    "Offset": frozenset({"expression"}),
    "Distinct": frozenset({"expressions"}),
    "Union": frozenset({"this", "expression", "distinct", "order", "limit", "offset"}),
    "Except": frozenset({"this", "expression", "distinct", "order", "limit", "offset"}),
    "Intersect": frozenset({"this", "expression", "distinct", "order", "limit", "offset"}),
    "Exists": frozenset({"this"}),
    "In": frozenset({"this", "expressions", "query"}),
    "Window": frozenset({"this", "partition_by", "order", "spec", "over"}),
    "WindowSpec": frozenset({"kind", "start", "start_side", "end", "end_side"}),
    "IgnoreNulls": frozenset({"this"}),
    "RespectNulls": frozenset({"this"}),
    "Filter": frozenset({"this", "expression"}),
    "WithinGroup": frozenset({"this", "expression"}),
}
"""Parts of queries, and the arguments that are understood of each."""
_WORDS = {"Where": "WHERE", "Lateral": "a lateral view", "Pivot": "a pivot", "TableSample": "a sample"}
_JOINS = {
    ("", ""): "INNER",
    ("", "INNER"): "INNER",
    ("", "CROSS"): "INNER",
    ("LEFT", ""): "LEFT",
    ("LEFT", "OUTER"): "LEFT",
    ("RIGHT", ""): "RIGHT",
    ("RIGHT", "OUTER"): "RIGHT",
    ("FULL", ""): "FULL",
    ("FULL", "OUTER"): "FULL",
    ("", "SEMI"): "SEMI",
    ("LEFT", "SEMI"): "SEMI",
    ("", "ANTI"): "ANTI",
    ("LEFT", "ANTI"): "ANTI",
}
"""What a side and a kind mean together: which rows of either source are kept."""


def join_kind(join: exp.Join) -> str | None:
    """`INNER`, `LEFT`, `RIGHT`, `FULL`, `SEMI` or `ANTI`, however it is written; None for any other join."""
    return _JOINS.get((join.side.upper(), join.kind.upper()))


def why_not_understood(tree: exp.Expression) -> str | None:
    """The first part of a tree that is not understood, in words; None if all are."""
    for node in tree.walk(prune=lambda node: isinstance(node, exp.Hint)):
        known = _PARTS.get(type(node).__name__)
        # any function may compute a value: which ones are trusted with more is asked where a value decides
        if known is None and not isinstance(node, exp.Func | exp.Hint) and not is_known_part(node):
            return f"{_in_words(node)} is not understood"
        listed = (known or frozenset()) | ({"columns"} if isinstance(node.parent, exp.Lateral) else set())
        for name, value in node.args.items() if known is not None else ():
            if value and name not in listed:
                return f"{_in_words(node)} with {name.strip('_').replace('_', ' ')} is not understood"
        if (reason := _why_not_a_source(node)) is not None:
            return f"{reason} is not understood"
    return None


def _why_not_a_source(node: exp.Expression) -> str | None:
    """What a node brings into a FROM that is not understood, in words."""
    match node:
        case exp.Join() if join_kind(node) is None:
            return f"{node.side} {node.kind} JOIN".strip()
        case exp.Join() if node.args.get("on") is None and join_kind(node) != "INNER":
            return f"{join_kind(node)} JOIN without ON"
        case exp.Join() | exp.From() if not isinstance(node.this, exp.Table | exp.Subquery):
            return f"{_in_words(node.this)} as a source"
        case exp.Lateral() if not (node.args.get("view") and is_generator(node.this)):
            return f"{_in_words(node)} of {node.this.sql(dialect='spark')}"
        case exp.Table() if not isinstance(node.this, exp.Identifier):
            return "a function as a source"
        case _:
            return None


def _in_words(node: exp.Expression) -> str:
    name = type(node).__name__
    return _WORDS.get(name, name.upper())
