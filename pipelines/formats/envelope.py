"""The schema envelope of Connect's JSON converter: cut it off by comparing bytes, without parsing it per event.

The schema part is byte-identical from event to event: one event is scanned, and every other that begins and ends with
the same bytes around its payload is cut by a comparison.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.formats import json_kernels as kernels
from pipelines.formats import text_kernels
from pipelines.formats.documents import Documents
from pipelines.formats.json_scan import first_member_is, scan_objects

MAX_COMPARED_SCHEMAS = 64
"""Events of still other schemas are scanned one by one, which costs more per event but less than 65 comparisons."""
NO_SCHEMA = -1


@dataclass(frozen=True)
class Payloads:
    """Events without their envelopes.

    Attributes:
        documents: the payload of each event, or the event itself where it has no envelope.
        schema_of: index into `schemas` per event, NO_SCHEMA where it has none.
        schemas: distinct schema documents, in order of appearance.
    """

    documents: Documents
    schema_of: NDArray[np.int32]
    schemas: tuple[bytes, ...]


def cut_envelopes(documents: Documents) -> Payloads:
    """The payloads of events that have an envelope, the events themselves where they have none."""
    start, end = documents.start.copy(), documents.end.copy()
    schema_of = np.full(len(documents), NO_SCHEMA, np.int32)
    schemas: dict[bytes, int] = {}
    pending = first_member_is(documents, "schema", "payload")
    for _ in range(MAX_COMPARED_SCHEMAS):
        if not pending.any():
            break
        first = int(np.argmax(pending))
        cut = _envelope_at(documents, first)
        if cut is None:
            break
        prefix, suffix, schema = cut
        matched = np.zeros(len(documents), np.bool_)
        text_kernels.match_affixes(
            documents.data, documents.start, documents.end, pending, prefix, suffix, start, end, matched
        )
        schema_of[matched] = schemas.setdefault(schema, len(schemas))
        pending = pending & ~matched
    if pending.any():
        _cut_one_by_one(documents, pending, start=start, end=end, schema_of=schema_of, schemas=schemas)
    return Payloads(Documents(documents.data, start, end), schema_of, tuple(schemas))


def _envelope_at(documents: Documents, row: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bytes] | None:
    """(bytes before the payload, bytes after it, schema) of one event; None if it has no envelope."""
    one = scan_objects(documents.take(np.array([row])), ("schema", "payload"), learn=False)
    schema, payload = one.column("schema"), one.column("payload")
    is_schema = schema.kind[0] in (kernels.OBJECT, kernels.NULL)
    if not one.is_object[0] or payload.kind[0] != kernels.OBJECT or not is_schema:
        return None
    begin, end = int(documents.start[row]), int(documents.end[row])
    prefix = documents.data[begin : int(payload.start[0])]
    suffix = np.frombuffer(documents.data[int(payload.end[0]) : end].tobytes().rstrip(), np.uint8)
    return prefix, suffix, documents.data[int(schema.start[0]) : int(schema.end[0])].tobytes()


def _cut_one_by_one(
    documents: Documents,
    pending: NDArray[np.bool_],
    *,
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    schema_of: NDArray[np.int32],
    schemas: dict[bytes, int],
) -> None:
    members = scan_objects(documents.where(pending), ("schema", "payload"), learn=False)
    schema, payload = members.column("schema"), members.column("payload")
    has_payload = members.is_object & ((payload.kind == kernels.OBJECT) | (payload.kind == kernels.NULL))
    # Some writers leave the schema out. Beside other members a payload is a column of a row.
    alone = np.flatnonzero(has_payload & (schema.kind == kernels.MISSING))
    if len(alone):
        alone = alone[scan_objects(documents.take(alone), ("payload",)).of_names({"payload"})]
        start[alone], end[alone] = payload.start[alone], payload.end[alone]
    enveloped = np.flatnonzero(has_payload & ((schema.kind == kernels.OBJECT) | (schema.kind == kernels.NULL)))
    start[enveloped], end[enveloped] = payload.start[enveloped], payload.end[enveloped]
    texts = [documents.data[b:e].tobytes() for b, e in zip(schema.start[enveloped], schema.end[enveloped], strict=True)]
    schema_of[enveloped] = [schemas.setdefault(text, len(schemas)) for text in texts]
