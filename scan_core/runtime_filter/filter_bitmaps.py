"""A runtime filter of few keys answered by the bitmap index of its column, where the file has one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scan_core.metrics import ScanMetrics
from scan_core.read.projection import FromFile
from scan_core.read.row_filter import ValueSource
from scan_core.runtime_filter.key_set import KeyLookup
from scan_core.split import FileScanTask, ScanContext

if TYPE_CHECKING:
    from scan_core.bitmap_index.filter import BitmapFilter

MOST_KEYS = 1_000
"""The union of more bitmaps costs more than values."""


def open_key_bitmaps(
    lookup: KeyLookup, sources: Sequence[ValueSource], task: FileScanTask, context: ScanContext, metrics: ScanMetrics
) -> "BitmapFilter | None":
    """The bitmaps that answer the whole filter; None if there are none, or values cost less."""
    field, values = lookup.columns[0].field, lookup.columns[0].values
    has_index = any(blob.field_id == field.field_id and not blob.is_list for blob in task.bitmap_indexes)
    if len(sources) != 1 or not has_index or values is None or not 0 < len(values) <= MOST_KEYS:
        return None
    if lookup.columns[0].has_nan or not isinstance(sources[0], FromFile):
        return None
    from scan_core.bitmap_index.filter import open_bitmap_filter
    from scan_core.expr.bound import Column, InSet
    from scan_core.read.predicate_step import PredicateStep

    conjunct = InSet(Column(field.field_id, field.name, field.type), frozenset(values))
    step = PredicateStep(conjunct, {field.field_id: sources[0]}, 0)
    found = open_bitmap_filter([step], task, context, metrics)
    return None if found is None or found.remaining([step]) else found
