"""How a scan may work, limits and switches, and the counters of what it did.

Options never change a result. The metrics of a scan are the sum of those of its splits.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from nevermore.scan_core.model.errors import OptionError

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
class Switches:
    """Optimisations of a scan, all on by default. Any combination gives the same rows.

    Attributes:
        prune_files: compare the predicate with partition values, manifest summaries and the bounds of files.
        prune_row_groups: compare the predicate with the statistics of row groups.
        prune_pages: compare predicate and deletes with the page index, and read only pages with surviving rows.
        prune_deletes: use bounds to skip deletes that cannot apply to a file.
        use_bitmap_indexes: answer what bitmap indexes, where a table has them, can answer of the predicate.
        use_bloom_filters: let Bloom filters of Parquet files exclude row groups that do not contain any value of the
            predicate, and do not probe row groups that contain none of a few deleted keys.
        use_runtime_filters: let the keys of semi joins exclude files, row groups and pages; if off, rows are only looked up.
        share_indexes: let Spark's Python workers of one host share delete indexes through a folder of their user, unless
            `index_folder` names one.
    """

    prune_files: bool = True
    prune_row_groups: bool = True
    prune_pages: bool = True
    prune_deletes: bool = True
    use_bitmap_indexes: bool = True
    use_bloom_filters: bool = True
    use_runtime_filters: bool = True
    share_indexes: bool = True

    def __post_init__(self) -> None:
        _check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Options of one scan. `ScanOptions.of` also takes the names of switches.

    Attributes:
        memory_limit_bytes: most memory that a scan holds besides its input and output, delete index included. Scans that run
            in one process at the same time share it, each an equal part; every thread needs some 8 MB however little it is.
        batch_rows: most rows of a batch.
        split_bytes: target size of a split.
        parallelism: worker threads; 1 runs in the calling thread. While other scans run in the process, as many fewer.
        read_ahead_bytes: most bytes fetched from object stores before they are decoded, over all workers, as part of the
            memory limit; at most a quarter of the limit is used, and 0 fetches nothing ahead.
        delete_cache_bytes: limit of the process-wide cache of delete indexes, and of the cache of semi-join keys.
        index_folder: a private folder through which the processes of one host share delete indexes as memory-mapped
            files; None keeps them in each process.
        keep_order: return batches in the order of the plan; if off, as they are read, so that no worker waits for another.
        verify_checksums: compare data pages with their checksums, where a file has them; those of delete files are always
            compared.
        wants_few: expect that only the first rows will be taken, as with a limit: the first split is read alone, nothing
            ahead, in small pieces.
        trust_record_counts: let `count()` use the record counts of manifests (rule 19).
        case_sensitive: match column names exactly.
        record_filters: remember in the user's cache folder which columns have filters that remove rows only after their values
            were read, for `index: {bitmap: auto}`; numbers of rows, no values.
        switches: the optimisations.
    """

    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES
    batch_rows: int = DEFAULT_BATCH_ROWS
    split_bytes: int = DEFAULT_SPLIT_BYTES
    parallelism: int = os.cpu_count() or 1
    read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES
    delete_cache_bytes: int = DEFAULT_DELETE_CACHE_BYTES
    index_folder: str | None = None
    keep_order: bool = True
    verify_checksums: bool = True
    wants_few: bool = False
    trust_record_counts: bool = False
    case_sensitive: bool = True
    record_filters: bool = True
    switches: Switches = field(default_factory=Switches)

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("memory_limit_bytes", "batch_rows", "split_bytes", "parallelism"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("delete_cache_bytes", "read_ahead_bytes"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, not {getattr(self, name)}")

    @classmethod
    def of(cls, **values: Any) -> "ScanOptions":
        """Options and switches by name: `ScanOptions.of(parallelism=1, prune_pages=False)`.

        Raises:
            OptionError: an unknown name (names the nearest) or a value of the wrong type.
        """
        from difflib import get_close_matches

        known = {f.name for f in (*fields(cls), *fields(Switches)) if f.name != "switches"}
        for name in values:
            if name not in known:
                near = get_close_matches(name, sorted(known), n=1, cutoff=0.0)
                raise OptionError(f"unknown scan option {name!r}; did you mean {near[0]!r}?")
        switches = {f.name: values.pop(f.name) for f in fields(Switches) if f.name in values}
        return cls(**values, switches=Switches(**switches))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "ScanOptions":
        """Options and switches as configs and command lines state them: also text, such as `64MiB`, `8` and `false`.

        Raises:
            OptionError: an unknown name (names the nearest), or a value of the wrong type or out of range.
        """
        types = {f.name: f.type for f in (*fields(cls), *fields(Switches))}
        return cls.of(**{name: _from_text(name, value, types.get(name)) for name, value in settings.items()})

    def changed(self) -> Mapping[str, Any]:
        """The options and switches that differ from the defaults by name, as `of` takes them."""
        default = ScanOptions()
        pairs = ((self, default), (self.switches, default.switches))
        return {
            f.name: getattr(mine, f.name)
            for mine, usual in pairs
            for f in fields(mine)
            if f.name != "switches" and getattr(mine, f.name) != getattr(usual, f.name)
        }

    @classmethod
    def without_optimisations(cls) -> "ScanOptions":
        """Every switch off: the plainest way to the same rows, for differential tests."""
        return cls.of(parallelism=1, read_ahead_bytes=0, **{f.name: False for f in fields(Switches)})


_SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _from_text(name: str, value: Any, type_: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if type_ is bool:
        if text not in {"true", "false"}:
            raise OptionError(f"{name} must be true or false, not {value!r:.60}")
        return text == "true"
    if type_ is not int:
        return value
    unit = "([kmg]?)i?b?" if name.endswith("_bytes") else "()"
    if (match := re.fullmatch(rf"(-?[0-9]{{1,18}})\s*{unit}", text)) is None:
        form = "a size, such as 64MiB" if name.endswith("_bytes") else "a whole number"
        raise OptionError(f"{name} must be {form}, not {value!r:.60}")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def _check_types(options: ScanOptions | Switches) -> None:
    for option in fields(options):
        given = getattr(options, option.name)
        if option.type is int and (isinstance(given, bool) or not isinstance(given, int)):
            raise OptionError(f"{option.name} must be a whole number, not {given!r}")
        if option.type is bool and not isinstance(given, bool):
            raise OptionError(f"{option.name} must be True or False, not {given!r}")
        if option.name == "index_folder" and not (given is None or isinstance(given, str | os.PathLike)):
            raise OptionError(f"index_folder must be the path of a folder, not {given!r}")


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
