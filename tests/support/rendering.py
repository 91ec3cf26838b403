"""Rows as `expected.json` of the shared fixtures writes them, so that they compare as text."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from nevermore.pipelines.cli.row_output import render_rows


def json_rows(rows: Iterable[Sequence[Any]]) -> list[str]:
    """One JSON text per row, sorted: two lists are equal iff the rows are, as multisets."""
    return sorted(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)


def rendered(table: pa.Table) -> list[str]:
    """The rows of an Arrow table in that form."""
    names = [str(i) for i in range(table.num_columns)]
    return json_rows(list(row.values()) for row in all_rows(table.rename_columns(names)))


def matches(table: pa.Table, expected: Any) -> bool:
    """Whether a table has exactly the expected rows, given as rows or as a digest of them."""
    return not differences(table, expected)


def differences(table: pa.Table, expected: Any) -> list[str]:
    """Up to ten rows that are on one side only, `-` expected and missing, `+` there and not expected."""
    got = rendered(table)
    if isinstance(expected, dict):
        digest = hashlib.sha256("\n".join(got).encode()).hexdigest()
        wanted = (expected["num_rows"], expected["sha256"])
        return [] if (len(got), digest) == wanted else [f"{len(got)} rows, digest {digest}, not {wanted}"]
    return list(_text_differences(got, json_rows(expected)))[:10]


def _text_differences(got: list[str], wanted: list[str]) -> Iterable[str]:
    for row in sorted({*got, *wanted}):
        surplus = got.count(row) - wanted.count(row)
        if surplus:
            yield f"{'+' if surplus > 0 else '-'} {abs(surplus)} x {row}"


def all_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows of all batches, as the command line renders them."""
    for batch in table.to_batches():
        yield from render_rows(batch)
