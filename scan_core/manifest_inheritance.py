"""What entries of a manifest inherit from it: sequence numbers (SEMANTICS rule 3) and row ids (rule 21)."""

from scan_core.avro.container import AvroError
from scan_core.manifest_list import ManifestFile
from scan_core.snapshot import PartitionSpec

EXISTING, ADDED, DELETED = 0, 1, 2
"""Status of an entry."""
MAX_FIRST_ROW_ID = 2**62
"""Leaves room for the rows of any file below the largest 64-bit number."""


class Inheritance:
    """What entries of one manifest inherit; row ids advance from entry to entry."""

    __slots__ = ("content", "is_partitioned", "next_row_id", "path", "sequence_number", "spec_id")

    def __init__(self, manifest: ManifestFile, spec: PartitionSpec) -> None:
        self.path = manifest.path
        self.spec_id = spec.spec_id
        self.is_partitioned = bool(spec.fields)
        self.content = manifest.content
        self.sequence_number = manifest.sequence_number
        self.next_row_id = manifest.first_row_id

    def sequence_of(self, status: int, explicit: int | None, name: str) -> int:
        """An entry's sequence number: explicit, or inherited (SEMANTICS rule 3)."""
        if explicit is None:
            if status != ADDED and self.sequence_number != 0:
                raise AvroError(f"{name} is null in an existing entry of a manifest with number {self.sequence_number}")
            return self.sequence_number
        if explicit < 0:
            raise AvroError(f"{name} is negative: {explicit}")
        return explicit

    def row_id_of(self, explicit: int | None, record_count: int) -> int | None:
        """A data file's first row id: explicit, or the next of the manifest (SEMANTICS rule 21)."""
        first = explicit
        if first is None and self.next_row_id is not None:
            first = self.next_row_id
            self.next_row_id += record_count
        if first is not None and not 0 <= first <= MAX_FIRST_ROW_ID:
            raise AvroError(f"first_row_id (142 or 520) is {first}; row ids would leave 64 bits")
        return first
