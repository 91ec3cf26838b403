"""Rows of a mirror that a faulty connector lost, and what `mirror_equals_source` must say of them."""

from collections.abc import Callable
from typing import Any

from nevermore.checks.source_equality import mirror_equals_source
from nevermore.pipelines.publish.audit import CheckResult


def found_after_losses(
    shop: Any, config: Any, lose: Callable[..., None], inserted: str, *, num_rows: int, has_key: bool
) -> tuple[CheckResult, list[str]]:
    """Compare `items`, lose one change of each kind, and compare again: (the result, what it must say first)."""
    found = mirror_equals_source(config, "shop.items")
    assert (found.passed, found.details) == (True, [])
    assert found.compared == {"rows in database": num_rows, "rows in mirror": num_rows}
    lose(
        shop,
        config,
        "DELETE FROM items WHERE n = 7",
        inserted,
        "UPDATE items SET amount = NULL WHERE n = 9",
    )
    shop.sql("UPDATE items SET amount = 0 WHERE n IN (10, 11)", "DELETE FROM items WHERE n = 12")  # on their way
    found = mirror_equals_source(config, "shop.items")
    changed = ["1 row with other values than in the database"] if has_key else []
    count = "1 row" if has_key else "2 rows"
    wrong = [f"{count} of the database missing in the mirror", f"{count} of the mirror not in the database", *changed]
    assert found.details[: len(wrong) + 1] == [*wrong, "3 rows that changed meanwhile not compared"]
    return found, wrong
