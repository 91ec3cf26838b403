"""Rows of a mirror that a faulty connector lost, and what `mirror_equals_source` must say of them."""

from collections.abc import Callable
from typing import Any

import pytest

from nevermore.checks.mirror_checks import checks_of, run_checks
from nevermore.checks.source_equality import mirror_equals_source
from nevermore.pipelines.cli.main import main
from nevermore.pipelines.iceberg.catalog import open_catalog
from nevermore.pipelines.iceberg.loaded_table import open_current
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


def loaded_again(shop: Any, config: Any, lose: Callable[..., None], inserted: str) -> None:
    """Lose changes of `items`, load what the comparison names, and change the same rows before, meanwhile and later."""
    lose(
        shop,
        config,
        "DELETE FROM items WHERE n = 7",
        inserted,
        "UPDATE items SET amount = NULL WHERE n IN (9, 30, 31)",
        "UPDATE items SET id = -id WHERE n = 50",
    )
    (hint,) = (line for line in mirror_equals_source(config, "shop.items").details if "--keys=" in line)
    words = hint.partition("nevermore ")[2].split()
    # on their way: the rows that are loaded contain these changes, and those of other keys still come
    shop.sql(
        "UPDATE items SET body = 'before' WHERE n IN (30, 40)",
        "DELETE FROM items WHERE n IN (31, 41)",
        "UPDATE items SET id = 900000 WHERE n = 9",
        "UPDATE items SET id = -9 WHERE n = 43",
    )
    for number in range(2):  # the second time, the log still knows the load
        assert resync(config, words[1:]) == 0
        assert bodies(config, -50, 50, 7, 30, 31, 9) == ["row 50", None, None, ["before", "after"][number], None, None]
        shop.sql("UPDATE items SET body = 'after', amount = 5 WHERE n IN (30, 44)")
    assert resync(config, ["shop.items", "--keys", f"{10**9}"]) == 0
    shop.sql("UPDATE items SET id = 9 WHERE id = 900000", "UPDATE items SET amount = 6 WHERE n = 30")
    shop.ingest(config)
    found = mirror_equals_source(config, "shop.items")
    assert (found.passed, found.details) == (True, [])
    assert all(one.passed for one in run_checks(config, "shop.items", checks_of(config, "shop.items")))


def bodies(config: Any, *keys: int) -> list[str | None]:
    """Texts of the rows of the mirror `items` with these ids; None without a row."""
    rows = open_current(open_catalog(config).load_table("shop.items")).scan().to_table()
    found = dict(zip(rows.column("id").to_pylist(), rows.column("body").to_pylist(), strict=True))
    return [found.get(key) for key in keys]


def resync(config: Any, words: list[str]) -> int:
    """The exit code of `nevermore resync`."""
    with pytest.raises(SystemExit) as ended:
        main(["resync", *words, "--config", str(config.path)])
    return int(ended.value.code or 0)
