"""Under which partition spec a manifest was written: its manifest list says, or its own header.

Only inline manifests of format v1 are on no list. Their headers must hold the fields of the spec and may hold its id.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from scan_core.avro.container import AvroError, Header
from scan_core.manifest_list import ManifestFile
from scan_core.metadata import TableMetadata
from scan_core.snapshot import PartitionSpec

_MOST_DIGITS = 10


def spec_of(manifest: ManifestFile, header: Header, metadata: TableMetadata) -> PartitionSpec:
    """The partition spec of a manifest.

    Raises:
        AvroError: the table has no such spec, or nothing tells which of several it is.
    """
    spec_id = manifest.spec_id if manifest.spec_id is not None else _stated_id(header)
    if spec_id is None:
        return _spec_with_the_fields_of(header, metadata)
    if spec_id not in metadata.specs:
        raise AvroError(f"partition_spec_id (502): the table has no partition spec {spec_id}")
    return metadata.specs[spec_id]


def _stated_id(header: Header) -> int | None:
    stated = header.metadata.get("partition-spec-id")
    if stated is None:
        return None
    text = stated.decode("ascii", "replace")
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise AvroError(f"partition-spec-id in its header is {text!r:.40}")
    return int(text)


def _spec_with_the_fields_of(header: Header, metadata: TableMetadata) -> PartitionSpec:
    stated = header.metadata.get("partition-spec")
    if stated is None:
        if len(metadata.specs) > 1:
            raise AvroError("it does not tell its partition-spec-id, and the table has several specs")
        return metadata.specs[metadata.default_spec_id]
    fields = _stated_fields(stated)
    for spec in metadata.specs.values():
        if [(f.source_id, f.transform) for f in spec.fields] == fields:
            return spec
    raise AvroError(f"partition-spec in its header is that of no spec of the table: {stated!r:.200}")


def _stated_fields(stated: bytes) -> list[tuple[Any, Any]]:
    """Source columns and transforms: names change, and early writers gave the fields no ids."""
    try:
        content = orjson.loads(stated)
    except orjson.JSONDecodeError as error:
        raise AvroError(f"partition-spec in its header is not a JSON document: {error}") from error
    if isinstance(content, Mapping):  # some writers put the whole spec there
        content = content.get("fields")
    if not isinstance(content, list) or not all(isinstance(f, Mapping) for f in content):
        raise AvroError(f"partition-spec in its header is no list of fields: {stated!r:.80}")
    return [(f.get("source-id"), f.get("transform")) for f in content]
