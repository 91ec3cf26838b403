"""Columns of a file in the types of the table."""

from typing import Any

import pyarrow as pa

from nevermore.scan_core.model.schema import Schema
from nevermore.scan_core.read.projection import FileProjection
from tests.scan_core.read.builders import context_of, data_file


def projection_of(file_schema: pa.Schema, schema: Schema, *, has_ids: bool = True, **facts: Any) -> FileProjection:
    partition = facts.pop("partition", ())
    return FileProjection(
        file_schema, has_field_ids=has_ids, context=context_of(schema, **facts), file=data_file(partition=partition)
    )
