"""Each rule of the lineage, broken on purpose, lets a partition that changed go unnamed: the comparison with DuckDB fails."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlglot import exp

from nevermore.pipelines.publish import partition_lineage
from nevermore.scan_core.sql import query, query_shape
from nevermore.scan_core.sql.sql_functions import join_kind
from tests.differential.test_partition_lineage import check

MAX_SEEDS = 400


def _only_within(patch: pytest.MonkeyPatch, owner: Any, function: str, name: str, replacement: Any) -> None:
    """Break `query_shape.name` for one of its users alone."""
    original: Callable[..., Any] = getattr(owner, function)

    def broken(*arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(query_shape, name, replacement)
            return iter(list(original(*arguments)))

    patch.setattr(owner, function, broken)


def _no_nullable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query_shape.SelectShape, "_nullable", lambda _: frozenset())


def _no_window_rule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query_shape, "_is_made_of", lambda *_: True)


def _limits_are_fine(patch: pytest.MonkeyPatch) -> None:
    original: Callable[..., str | None] = query_shape.why_not_sliced

    def without_limits(shape: Any, expressions: Any) -> str | None:
        found = original(shape, expressions)
        return None if found is not None and "limit" in found else found

    patch.setattr(partition_lineage, "why_not_sliced", without_limits)


def _rollups_are_fine(patch: pytest.MonkeyPatch) -> None:
    original: Callable[..., str | None] = query_shape.why_not_sliced

    def without_rollups(shape: Any, expressions: Any) -> str | None:
        found = original(shape, expressions)
        return None if found is not None and "rollup" in found else found

    patch.setattr(partition_lineage, "why_not_sliced", without_rollups)


def _any_condition_is_an_equality(patch: pytest.MonkeyPatch) -> None:
    def of_every_comparison(condition: Any) -> list[Any]:
        found = [] if condition is None else [condition, *condition.find_all(exp.EQ)]
        return [(c.left.unnest(), c.right.unnest()) for c in found if isinstance(c, exp.EQ)]

    _only_within(patch, query_shape.SelectShape, "links", "equalities", of_every_comparison)


def _joined_tables_reach_nothing(patch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = partition_lineage.through

    def nowhere(*arguments: Any) -> Any:
        reach = original(*arguments)
        return partition_lineage.Reach(reach.table, reach.values.where("1 = 0"), None, reach.final)

    patch.setattr(partition_lineage, "through", nowhere)


def _not_in_counts_as_in(patch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = query_shape.conjuncts

    def with_negated(condition: Any) -> list[Any]:
        found = original(condition)
        return [*found, *(c.this for c in found if isinstance(c, exp.Not) and isinstance(c.this, exp.In))]

    _only_within(patch, partition_lineage, "correlations", "conjuncts", with_negated)


def _full_joins_may_come_last(patch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = query_shape.full_join_keys

    def of_first_two(shape: Any, expressions: Any) -> Any:
        for source in list(shape.sources.values())[2:]:
            source.join.set("side", "")
            source.join.set("kind", "")
        return original(shape, expressions)

    patch.setattr(partition_lineage, "full_join_keys", of_first_two)


def _anti_joins_are_inner_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query_shape, "join_kind", lambda join: "INNER" if join.kind.upper() == "ANTI" else join_kind(join))


def _what_is_joined_keeps_rows_out(patch: pytest.MonkeyPatch) -> None:
    original: Callable[..., Any] = query_shape.SelectShape.links

    def both_ways(shape: Any) -> Any:
        for a, b, (ours, theirs) in original(shape):
            yield a, b, (ours, theirs)
            yield b, a, (theirs, ours)

    patch.setattr(query_shape.SelectShape, "links", both_ways)


def _names_may_be_hidden(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(query, "_name_sources_apart", lambda _: True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutate", "kinds"),
    [
        (_no_nullable, ["loose"]),
        (_no_window_rule, ["window"]),
        (_limits_are_fine, ["window"]),
        (_rollups_are_fine, ["group"]),
        (_any_condition_is_an_equality, ["join"]),
        (_joined_tables_reach_nothing, ["join", "half"]),
        (_not_in_counts_as_in, ["subquery"]),
        (_full_joins_may_come_last, ["full"]),
        (_anti_joins_are_inner_ones, ["loose"]),
        (_what_is_joined_keeps_rows_out, ["loose"]),
        (_names_may_be_hidden, ["hidden"]),
    ],
)
def test_a_broken_rule_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(MAX_SEEDS):
        try:
            check(seed, kinds)
        except AssertionError:
            return
    pytest.fail(f"{MAX_SEEDS} random queries did not notice")
