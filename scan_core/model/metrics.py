"""Counters of the work of a scan: the metrics of a scan are the sum of those of its splits."""

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class ScanMetrics:
    """Counters of one split, thread or scan; `a + b` adds every one of them.

    Planning fills the first block, reading the others. Rows removed are counted once, by the first cause:
    sampling, position deletes (DVs included), then equality deletes and the filter in the order they ran. Bytes skipped are those
    of wanted columns that were not read, and of data files that planning pruned. Rows removed by bitmaps and by
    runtime filters are among those removed by the filter, data files and row groups that runtime filters exclude among
    those pruned. Bytes read ahead were fetched from object stores before they were asked for, those read in vain never
    were. Bytes spilled are decoded columns
    that went through a temporary file, because a page of each column of a row group does not fit into the memory limit at the
    same time; splits are read again if bytes of an object store were damaged on the way. In row groups over the memory limit the pages of a single column exceed a worker's part of it.
    """

    manifests_read: int = 0
    manifests_pruned: int = 0
    data_files_planned: int = 0
    data_files_pruned: int = 0
    delete_files_planned: int = 0
    delete_files_pruned: int = 0

    splits_read: int = 0
    splits_read_again: int = 0
    data_files_read: int = 0
    row_groups_read: int = 0
    row_groups_pruned: int = 0
    row_groups_pruned_by_bloom_filters: int = 0
    bloom_filters_read: int = 0
    bloom_bytes_read: int = 0
    delete_probes_spared_by_bloom_filters: int = 0
    pages_read: int = 0
    pages_skipped: int = 0
    rows_in_files: int = 0
    rows_removed_by_sampling: int = 0
    rows_removed_by_position_deletes: int = 0
    rows_removed_by_equality_deletes: int = 0
    rows_removed_by_filter: int = 0
    rows_out: int = 0
    bytes_read: int = 0
    bytes_skipped: int = 0
    bytes_read_ahead: int = 0
    bytes_read_in_vain: int = 0

    bitmap_indexes_used: int = 0
    bitmap_indexes_refused: int = 0
    bitmaps_read: int = 0
    bitmap_bytes_read: int = 0
    rows_removed_by_bitmaps: int = 0

    data_files_pruned_by_runtime_filters: int = 0
    row_groups_pruned_by_runtime_filters: int = 0
    rows_removed_by_runtime_filters: int = 0
    runtime_filters_switched_off: int = 0
    delete_keys_left_out: int = 0

    delete_files_opened: int = 0
    delete_rows_loaded: int = 0
    delete_bytes_read: int = 0
    delete_index_hits: int = 0
    delete_indexes_built: int = 0
    relocated_position_matches: int = 0
    fallbacks: int = 0
    retries: int = 0
    bytes_spilled: int = 0
    row_groups_over_memory_limit: int = 0

    def __add__(self, other: "ScanMetrics") -> "ScanMetrics":
        return ScanMetrics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def add(self, other: "ScanMetrics") -> None:
        """Add `other` in place."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    def as_dict(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)
