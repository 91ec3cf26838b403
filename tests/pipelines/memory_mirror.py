"""A mirror in memory, for tests: rows by key, changed by what a fold says, the naive way."""

from typing import Any

import pyarrow as pa

from nevermore.pipelines.mirrors.fold import FoldResult, fold

Row = dict[str, Any]


class MemoryMirror:
    def __init__(self, key: tuple[str, ...], rows: list[Row] | None = None) -> None:
        self.key = key
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.unresolved: list[str] = []
        for row in rows or []:
            self.rows[self.key_of(row)] = row

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def apply(self, changes: pa.Table) -> FoldResult:
        """Fold the changes and write what the result says."""
        result = fold(changes, self.key)
        upserts: list[Row | None] = list(result.upserts.to_pylist())
        if result.needs_lookup is not None:
            for lookup in result.needs_lookup.to_pylist():
                found = self.rows.get(self.key_of(lookup["key"]))
                row = upserts[lookup["upsert"]]
                if found is None or row is None:
                    self.unresolved.append(f"no row {lookup['key']}")
                    upserts[lookup["upsert"]] = None
                else:
                    row.update({name: found.get(name) for name in lookup["unchanged"]})
        self.unresolved += result.unresolved.column("reason").to_pylist()
        if result.truncated:
            self.rows.clear()
        for key in result.deletes.to_pylist():
            self.rows.pop(self.key_of(key), None)
        for row in upserts:
            if row is not None:
                self.rows[self.key_of(row)] = row
        return result
