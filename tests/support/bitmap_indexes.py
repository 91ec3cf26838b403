"""Bitmap indexes for tests: building them on a table without catalog, and scans that use them at any price."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from nevermore.pipelines.iceberg.bitmap_indexes import IndexReport, PathTarget, build_indexes
from nevermore.scan_core import ScanOptions
from nevermore.scan_core.bitmaps import answers
from nevermore.scan_core.bitmaps.column_index import is_indexable
from nevermore.scan_core.model.schema import Schema, StructType


def index_columns(
    location: Path | str, columns: Sequence[str], snapshot_id: int | None = None, max_values: int = 10_000
) -> IndexReport:
    """Build indexes on a table given by its folder."""
    return build_indexes(
        PathTarget(str(location)),
        columns,
        snapshot_id=snapshot_id,
        max_values=max_values,
        options=ScanOptions(case_sensitive=True),
    )


def indexable_columns(schema: Schema) -> list[str]:
    """All columns and members of structs that can have an index."""
    found = []
    for field in schema.fields:
        members = (
            [(f"{field.name}.{m.name}", m.type) for m in field.type.fields]
            if isinstance(field.type, StructType)
            else []
        )
        for name, kind in [(field.name, field.type), *members]:
            if is_indexable(kind):
                found.append(name)
    return found


@contextmanager
def bitmaps_for_nothing(most_of_stage_1: float = 1.0) -> Iterator[None]:
    """Bitmaps cost nothing, so that even tables of few rows are filtered by them, and however many rows they keep."""
    with (
        patch.object(answers, "BITMAP_COST", 0.0),
        patch.object(answers, "BITMAP_BYTE_COST", 0.0),
        patch.object(answers, "READ_COST", 1.0),
        patch.object(answers, "MAX_OF_STAGE_1", most_of_stage_1),
    ):
        yield
