import pyarrow as pa
import pytest

from nevermore.scan_core.io.cache import BoundedCache
from nevermore.scan_core.joins import key_set
from nevermore.scan_core.joins.column_keys import KeyField
from nevermore.scan_core.joins.key_set import KeyLookup, KeySet
from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.model.schema import PrimitiveType


def test_lookups_kept_for_later_scans_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: BoundedCache[object, KeyLookup] = BoundedCache(lambda lookup: lookup.num_bytes)
    monkeypatch.setattr(key_set, "_LOOKUPS", kept)
    options = ScanOptions(delete_cache_bytes=400_000)
    for start in range(20):
        keys = KeySet((KeyField(1, "id", PrimitiveType("long")),), (pa.array(range(start, start + 10_000)),))
        assert keys.lookup(options) is keys.lookup(options)
        assert kept.size <= 400_000
    assert 1 < len(kept) < 20
