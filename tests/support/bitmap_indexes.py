"""Bitmap indexes for tests: building them on a table without catalog, and scans that use them at any price."""

import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson

from nevermore.pipelines.errors import CommitConflictError
from nevermore.pipelines.iceberg import metadata_swap
from nevermore.pipelines.iceberg.bitmap_indexes import CatalogTarget, IndexReport, build_indexes, new_statistics
from nevermore.pipelines.iceberg.storage import Storage
from nevermore.scan_core import ScanOptions, Table, open_table
from nevermore.scan_core.bitmaps import answers
from nevermore.scan_core.bitmaps.column_index import is_indexable
from nevermore.scan_core.io import parse_location
from nevermore.scan_core.model.schema import Schema, StructType


class PathTarget(CatalogTarget):
    """A table without catalog: creating the next `vN.metadata.json` is the commit, as in the Hadoop catalog."""

    def __init__(self, location: str) -> None:
        self._location = location
        self.storage = Storage()

    @property
    def folder(self) -> str:
        """The folder of the newest metadata file."""
        return self.load().metadata_path.rpartition("/")[0]

    def load(self) -> Table:
        """The newest metadata in the folder."""
        return open_table(self._location)

    def set_statistics(self, base: Table, entry: Mapping[str, Any], superseded: Collection[str] = ()) -> None:
        """Create the next version of the metadata, which fails if another writer has created it."""
        base_path = Path(parse_location(base.metadata_path).path)
        version = metadata_swap.next_version(base.metadata_path)
        # Other writers must find that this version exists, so it has the name that they give it.
        updates = new_statistics(base, entry, superseded)
        text = self.storage.read(base.metadata_path)
        document = orjson.loads(metadata_swap.decompress_document(text, base.metadata_path))
        changed = metadata_swap._changed(document, updates, base.metadata_path)
        name, content = metadata_swap.metadata_file(f"v{version}", changed)
        path = base_path.with_name(name)
        scratch = base_path.with_name(f"{uuid.uuid4()}.tmp")
        scratch.write_bytes(content)
        try:
            os.link(scratch, path)
        except FileExistsError as error:
            raise CommitConflictError(f"another writer created {path}") from error
        finally:
            scratch.unlink()
        hint = base_path.with_name("version-hint.text")
        scratch.write_text(str(version))
        scratch.replace(hint)


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
        patch.object(answers, "MAX_ANSWERED_SHARE", most_of_stage_1),
    ):
        yield
