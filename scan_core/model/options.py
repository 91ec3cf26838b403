"""How a scan may work: limits and switches. None of them changes a result."""

import os
from dataclasses import dataclass, fields
from typing import Any, Literal

from scan_core.model.errors import OptionError

DEFAULT_MEMORY_LIMIT_BYTES = 2 * 1024**3
"""Generous on a laptop, small enough that two workers on a 4 GiB container survive."""
DEFAULT_BATCH_ROWS = 131_072
"""Above 64k rows per-batch costs vanish; above 256k the batches of wide tables leave the cache."""
DEFAULT_SPLIT_BYTES = 128 * 1024**2
"""Iceberg's `read.split.target-size`."""
DEFAULT_DELETE_CACHE_BYTES = 512 * 1024**2
"""About 60 M integer keys; larger indexes are built per scan and dropped."""
DEFAULT_READ_AHEAD_BYTES = 256 * 1024**2
"""Two row groups of the usual size for each of two workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Options of one scan; every speed-up can be switched off.

    Attributes:
        memory_limit_bytes: cap of what a scan holds beside its input and output, delete index included.
        batch_rows: most rows of a batch.
        split_bytes: target size of a split.
        parallelism: worker threads; 1 runs in the calling thread.
        read_ahead_bytes: most bytes fetched from object stores before they are decoded, over all workers, a part of the
            memory limit; at most a quarter of it is used, and 0 fetches nothing ahead.
        keep_order: yield batches in the order of the plan; False yields them as they come, so that no worker waits for
            another.
        delete_cache_bytes: cap of the process-wide cache of delete indexes, and of that of the keys of semi joins.
        index_folder: a private folder through which the processes of one host share delete indexes as memory-mapped
            files; None keeps them in each process.
        share_indexes: Spark's Python workers of one host share delete indexes through a folder of their user's, where
            `index_folder` names none.
        prune_partitions: use partition values and manifest summaries against the predicate.
        prune_files: use file bounds against the predicate.
        prune_row_groups: use row-group statistics against the predicate.
        prune_pages: use the page index against predicate and deletes, and read only pages with surviving rows.
        prune_deletes: use bounds to skip deletes that cannot touch a file.
        use_bitmap_indexes: let bitmap indexes, where a table has them, answer what they can of the predicate.
        prune_dictionaries: let dictionary pages exclude row groups that hold no value asked for.
        use_bloom_filters: let Bloom filters of Parquet files exclude row groups that hold no value asked for, and spare
            those that hold none of a few deleted keys the probe.
        read_small_files_whole: read a local delete file of up to 256 kB at once instead of footer and columns by themselves.
        use_runtime_filters: let the keys of semi joins exclude files, row groups and pages; False only looks rows up.
        adaptive_runtime_filters: stop asking what excludes too little: Bloom filters, dictionaries and pages of a runtime
            filter, and its rows where somebody joins again.
        split_row_groups: let several tasks of Spark share a row group larger than a split, each reading its own pages.
        lazy_columns: decode payload columns only where rows survive.
        drop_rows_by_batch: where most rows of a row group survive, drop the others from each batch as it is made, instead of
            from the whole row group before.
        adaptive_order: re-order conjuncts by measured cost.
        use_numba: compiled key kernels where they pay; False uses NumPy only.
        verify_checksums: compare data pages, page indexes and Bloom filters with their checksums, where a file has them;
            those of footers, delete files and manifests are compared in any case.
        trust_record_counts: let `count()` believe manifest record counts (rule 19).
        normalize: "compact" evaluates filters in their own shape; "cnf" multiplies ORs of ANDs out, as long as that makes
            few clauses: each of them may prune where the whole does not.
        case_sensitive: match column names exactly.
    """

    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    split_bytes: int = DEFAULT_SPLIT_BYTES
    parallelism: int = os.cpu_count() or 1
    read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES
    keep_order: bool = True
    delete_cache_bytes: int = DEFAULT_DELETE_CACHE_BYTES
    index_folder: str | None = None
    share_indexes: bool = True
    prune_partitions: bool = True
    prune_files: bool = True
    prune_row_groups: bool = True
    prune_pages: bool = True
    prune_deletes: bool = True
    use_bitmap_indexes: bool = True
    prune_dictionaries: bool = True
    use_bloom_filters: bool = True
    read_small_files_whole: bool = True
    use_runtime_filters: bool = True
    adaptive_runtime_filters: bool = True
    split_row_groups: bool = True
    lazy_columns: bool = True
    drop_rows_by_batch: bool = True
    adaptive_order: bool = True
    use_numba: bool = True
    verify_checksums: bool = True
    trust_record_counts: bool = False
    case_sensitive: bool = True
    normalize: Literal["compact", "cnf"] = "compact"

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if (field.type is int and (isinstance(given, bool) or not isinstance(given, int))) or (
                field.type is bool and not isinstance(given, bool)
            ):
                wanted = "a whole number" if field.type is int else "True or False"
                raise OptionError(f"{field.name} must be {wanted}, not {given!r}")
        for name in ("memory_limit_bytes", "batch_rows", "split_bytes", "parallelism"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.normalize not in {"compact", "cnf"}:
            raise OptionError(f"normalize must be compact or cnf, not {self.normalize!r}")
        for name in ("delete_cache_bytes", "read_ahead_bytes"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, not {getattr(self, name)}")

    @classmethod
    def without_optimisations(cls) -> "ScanOptions":
        """Every switch off: the plainest way to the same rows, for differential tests."""
        switches: dict[str, Any] = {
            f.name: False for f in fields(cls) if f.type is bool and f.name not in _MEANING_SWITCHES
        }
        return cls(parallelism=1, read_ahead_bytes=0, **switches)


_MEANING_SWITCHES = frozenset({"verify_checksums", "trust_record_counts", "case_sensitive", "keep_order"})
