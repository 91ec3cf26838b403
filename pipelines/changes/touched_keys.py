"""Which keys changes touch: the one before each change and the one after it."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.tables.row_shape import member


def keys_touched(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key before each change, then the key after each; a deleted row keeps its key."""
    before = [member(changes.column("key"), n) for n in key]
    gone = pc.is_null(changes.column("after"))
    after = [pc.if_else(gone, b, member(changes.column("after"), n)) for n, b in zip(key, before, strict=True)]
    return pa.concat_tables([pa.table(side, names=list(key)) for side in (before, after)], promote_options="permissive")
