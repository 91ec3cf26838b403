"""The key columns of equality-delete files: which they are, and whether they may be keys at all (SEMANTICS rule 11)."""

from collections.abc import Mapping

from scan_core.errors import MalformedTableError
from scan_core.schema import NestedField, PrimitiveType, StructType
from scan_core.snapshot import DeleteFile


def key_ids_of(delete_file: DeleteFile, field_paths: Mapping[int, tuple[NestedField, ...]]) -> tuple[int, ...]:
    """Sorted ids of the key columns of an equality-delete file; looked up over all schemas of the table.

    Raises:
        MalformedTableError: no ids, an id no schema has, of something that is not primitive, or inside a list or map.
    """
    if delete_file.is_deletion_vector:
        raise MalformedTableError(f"{delete_file.path}: content (134) of a deletion vector is 2; it must be 1")
    if not delete_file.equality_ids:
        raise MalformedTableError(f"{delete_file.path}: equality_ids (135) is missing or empty in its manifest entry")
    for field_id in delete_file.equality_ids:
        path = field_paths.get(field_id)
        if path is None:
            raise _malformed(delete_file, field_id, "which no schema of the table has")
        if not isinstance(path[-1].type, PrimitiveType):
            raise _malformed(delete_file, field_id, f"which is a {path[-1].type}; keys are primitive")
        if any(not isinstance(parent.type, StructType) for parent in path[:-1]):
            raise _malformed(delete_file, field_id, "which is inside a list or map")
    return tuple(sorted(set(delete_file.equality_ids)))


def _malformed(delete_file: DeleteFile, field_id: int, reason: str) -> MalformedTableError:
    return MalformedTableError(f"{delete_file.path}: equality_ids (135) names field {field_id}, {reason}")
