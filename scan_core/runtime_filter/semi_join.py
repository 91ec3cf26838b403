"""SemiJoin: what a scan was asked to match its rows with, and how that becomes a runtime filter of one schema.

Keys that are a scan are read once, when the first plan needs them; everything else is taken as it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from scan_core.errors import OptionError
from scan_core.runtime_filter.column_keys import KeyField
from scan_core.runtime_filter.given_keys import distinct_keys, key_table
from scan_core.runtime_filter.induced import GivenRanges, KeyRangeSource
from scan_core.runtime_filter.key_set import KeySet
from scan_core.runtime_filter.late_keys import LateKeys
from scan_core.runtime_filter.request import FilterKeys, RuntimeFilter

if TYPE_CHECKING:
    from scan_core.scan import Scan

_KEYS_SHARE = 4
"""Keys read from a scan may take this part of its memory limit before repeats are dropped, half of it afterwards."""


@dataclass(frozen=True)
class SemiJoin:
    """Rows of a scan that have a partner among keys.

    Attributes:
        columns: names of the scan's columns.
        keys: a table of key rows, a scan that gives them, late ones, or ranges that another scan's statistics give.
        is_exact: the result has no row without partner; otherwise it may have some.
    """

    columns: tuple[str, ...]
    keys: "pa.Table | Scan | LateKeys | KeyRangeSource | GivenRanges"
    is_exact: bool
    _known: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was asked for: a lock stays in its process, and so does what was read of a scan."""
        return SemiJoin, (self.columns, self.keys, self.is_exact)

    def bind(self, fields: tuple[KeyField, ...]) -> RuntimeFilter:
        """The filter on these columns.

        Raises:
            OptionError: keys of another kind than their column.
        """
        return RuntimeFilter(fields, self._bound(fields), self.is_exact)

    def key_rows(self) -> pa.Table | None:
        """The keys as a table, read now if they are a scan; None if they are late or ranges."""
        if isinstance(self.keys, LateKeys | KeyRangeSource | GivenRanges):
            return None
        if isinstance(self.keys, pa.Table):
            return self.keys
        with self._lock:
            if "rows" not in self._known:
                self._known["rows"] = _rows_of(self.keys, self.columns)
            rows: pa.Table = self._known["rows"]
        return rows

    def _bound(self, fields: tuple[KeyField, ...]) -> FilterKeys:
        if isinstance(self.keys, LateKeys):
            return self.keys
        if isinstance(self.keys, KeyRangeSource | GivenRanges):
            return self.keys.ranges(fields[0])
        rows = self.key_rows()
        assert rows is not None  # noqa: S101  only the kinds above have none
        with self._lock:
            known: KeySet | None = self._known.get("keys")
            if known is None or known.fields != fields:
                known = KeySet(fields, distinct_keys(rows, fields, self.columns))
                self._known["keys"] = known
        return known


def semi_join(columns: str | Sequence[str], keys: Any, *, is_exact: bool) -> SemiJoin:
    """A join as it is asked for.

    Args:
        columns: one name or several.
        keys: see `Scan.semi_join` and `Scan.prefilter`.
        is_exact: whether the result depends on it.

    Raises:
        OptionError: no columns, keys that are none, or not as many columns of keys as names.
    """
    from scan_core.scan import Scan

    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names:
        raise OptionError("a semi join needs at least one column")
    if isinstance(keys, LateKeys):
        if is_exact:
            raise OptionError("late keys may come too late for a semi join: use prefilter(), and join again")
        return SemiJoin(names, keys, is_exact)
    if isinstance(keys, KeyRangeSource | GivenRanges):
        if len(names) > 1 or is_exact:
            raise OptionError("ranges are for prefilter() on one column: they do not tell single keys")
        return SemiJoin(names, keys, is_exact)
    if isinstance(keys, Scan):
        return SemiJoin(names, _only_keys(keys, names), is_exact)
    return SemiJoin(names, key_table(keys, names), is_exact)


def _only_keys(keys: "Scan", names: tuple[str, ...]) -> "Scan":
    """The scan of the key columns alone: those it selects, or those with the names of the other side."""
    if keys.columns is None and all(_has(keys, name) for name in names):
        return keys.select(*names)
    selected = keys.schema.names
    if len(selected) != len(names):
        raise OptionError(
            f"the scan of keys has {len(selected)} columns, but {len(names)} are to be matched ({', '.join(names)}): "
            "select its key columns"
        )
    return keys


def _has(keys: "Scan", name: str) -> bool:
    return name in keys.schema.names


def _rows_of(keys: "Scan", names: tuple[str, ...]) -> pa.Table:
    """The distinct rows of a scan of keys, which must fit into a part of its memory limit.

    Raises:
        OptionError: they do not.
    """
    limit = keys.options.memory_limit_bytes // _KEYS_SHARE
    labels = [f"k{i}" for i in range(len(names))]
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in keys.to_batches():
        arrays = [c.storage if isinstance(c, pa.ExtensionArray) else c for c in batch.columns]
        held.append(pa.RecordBatch.from_arrays(arrays, names=labels))
        size += batch.nbytes
        if size > limit:
            held = pa.Table.from_batches(held).group_by(labels).aggregate([]).to_batches()
            size = sum(b.nbytes for b in held)
            if size > limit // 2:
                raise OptionError(
                    f"the keys of a semi join on {', '.join(names)} take more than {limit // 2} bytes; raise "
                    f"memory_limit_bytes ({keys.options.memory_limit_bytes}), or join the other way round"
                )
    if held:
        return pa.Table.from_batches(held)
    schema = keys.arrow_schema
    kinds = [f.type.storage_type if isinstance(f.type, pa.BaseExtensionType) else f.type for f in schema]
    return pa.table([pa.array([], kind) for kind in kinds], names=labels)
