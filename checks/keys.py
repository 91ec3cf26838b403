"""Sets of keys in SQL: what is common, missing or repeated, where NULL equals NULL."""

from collections.abc import Sequence

import pyarrow as pa

from checks.compare import canonical
from checks.oracle.connection import open_connection
from checks.result import MOST_OFFENDING_KEYS, CheckResult, sample
from checks.subject import Subject


def key_is_unique(subject: Subject) -> CheckResult:
    """No two live rows of the table have the same key."""
    keys = subject.engine_keys
    repeated, count = repeated_keys(keys)
    details = [f"{count:,} keys occur more than once"] if count else []
    return CheckResult("key_is_unique", not count, {"rows in table": keys.num_rows}, sample(repeated), details)


def repeated_keys(keys: pa.Table) -> tuple[pa.Table, int]:
    """Up to 20 keys that occur more than once, each with `occurrences`, and how many there are."""
    names = [f"c{i}" for i in range(keys.num_columns)]
    with open_connection() as connection:
        connection.register("keys", canonical(keys).rename_columns(names))
        grouped = f"SELECT {', '.join(names)}, count(*) AS occurrences FROM keys GROUP BY ALL HAVING count(*) > 1"
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({grouped})").fetchall()
        found = connection.sql(f"{grouped} ORDER BY ALL LIMIT {MOST_OFFENDING_KEYS}").to_arrow_table()
    return found.rename_columns([*keys.column_names, "occurrences"]), int(count)


def common_keys(left: pa.Table, right: pa.Table) -> tuple[pa.Table, int]:
    """Up to 20 keys that are in both tables, and how many there are."""
    return _matched(left, right, "SEMI")


def missing_keys(left: pa.Table, right: pa.Table) -> tuple[pa.Table, int]:
    """Up to 20 keys of `left` that `right` lacks, and how many there are."""
    return _matched(left, right, "ANTI")


def _matched(left: pa.Table, right: pa.Table, kind: str) -> tuple[pa.Table, int]:
    names: Sequence[str] = [f"c{i}" for i in range(left.num_columns)]
    on = " AND ".join(f"l.{n} IS NOT DISTINCT FROM r.{n}" for n in names)
    with open_connection() as connection:
        connection.register("left_keys", canonical(left).rename_columns(names))
        connection.register("right_keys", canonical(right.select(left.column_names)).rename_columns(names))
        query = f"SELECT DISTINCT l.* FROM left_keys AS l {kind} JOIN right_keys AS r ON {on}"
        ((count,),) = connection.execute(f"SELECT count(*) FROM ({query})").fetchall()
        found = connection.sql(f"{query} ORDER BY ALL LIMIT {MOST_OFFENDING_KEYS}").to_arrow_table()
    return found.rename_columns(left.column_names), int(count)
