"""Removes the files of runs that were killed while they wrote.

Every run leaves a record next to the table's metadata; a later run finds the files by it.
"""

import json
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from nevermore.pipelines.errors import PublishError
from nevermore.pipelines.iceberg.loaded_table import (
    data_location,
    metadata_location,
    source_types,
    specs_of,
    storage_of,
)
from nevermore.pipelines.iceberg.manifests import PartitionLayout, read_manifest, read_manifest_list
from nevermore.pipelines.iceberg.row_shape import partition_types
from nevermore.pipelines.iceberg.storage import Storage

if TYPE_CHECKING:
    from nevermore.pipelines.iceberg.catalog import Table


def remove_leftovers(storage: Storage, folders: Iterable[str], run: str, reported: Collection[str]) -> int:
    """Remove the files of `run` in `folders` that are not reported; return how many there were."""
    left = [
        path
        for folder in sorted(set(folders))
        for path in storage.files_in(folder)
        if path.rpartition("/")[2].startswith(f"{run}-") and path not in reported
    ]
    storage.remove(left)
    return len(left)


def remove_all(storage: Storage, folder: str, run: str, named: Collection[str] = ()) -> int:
    """Remove the files of `run` in a folder and its subfolders, except `named` ones; return how many there were."""
    kept = {path.rpartition("/")[2] for path in named}  # File names of a run are unique across folders.
    found = {path: path.rpartition("/")[2] for path in storage.files_below(folder)}
    left = [path for path, name in found.items() if name.startswith(f"{run}-") and name not in kept]
    storage.remove(left)
    return len(left)


STAGED_PREFIX = "nevermore-staged-"
"""Prefix of the names of branches with rows that are not published yet, or never were."""
RUN = "nevermore.run"
"""Key in a staged snapshot's summary: the prefix of its file names."""
FOLDER = "nevermore-runs"
"""Folder of the records, next to the manifests."""
CONDEMNED = "condemned-"
"""Prefix of the names of records of runs that may no longer commit."""
REFUSED = "refused-"
"""Prefix of the names of records of runs whose rows failed a check and are kept on a branch for inspection."""
REFUSED_KEPT_SECONDS = 7 * 24 * 3600.0
"""Age from which the next run removes rows that failed a check."""
ABANDONED_AFTER_SECONDS = 48 * 3600.0
"""Age from which a run on another machine counts as dead. A run on this machine does as soon as its process is gone."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Record that a run is writing files.

    Attributes:
        path: path of the record.
        run: the run, which is the prefix of the names of all its files.
        machine: identity of the machine and its process ids; empty where unknown.
        process: process id on that machine.
        began: start of that process by the machine's own count, since process ids are reused.
        started: start of the run, in seconds since 1970.
    """

    path: str
    run: str
    machine: str
    process: int
    began: str
    started: float

    @classmethod
    def begin(cls, table: "Table", run: str) -> Self:
        """Record that this process writes files of `run`."""
        process = os.getpid()
        record = cls(f"{_folder(table)}/{run}.json", run, _machine(), process, _began(process), time.time())
        storage_of(table).write(record.path, json.dumps(asdict(record)).encode())
        return record

    def check(self, storage: Storage) -> None:
        """Refuse to commit if another run has declared this one dead; call it once the table is loaded.

        Raises:
            PublishError: this run was declared dead, and its files are being removed.
        """
        if self.path not in storage.files_in(self.path.rpartition("/")[0]):
            hours = round(ABANDONED_AFTER_SECONDS / 3600)
            raise PublishError(
                f"run {self.run} took more than {hours} hours, and another run has removed its files: publish fewer "
                "partitions at a time"
            )

    def end(self, storage: Storage) -> None:
        """Remove the record: a snapshot names the files, or they are gone."""
        storage.remove([self.path])

    @property
    def is_dead(self) -> bool:
        """Whether the run that wrote these files can no longer commit them."""
        if self._has(REFUSED):
            return time.time() - self.started > REFUSED_KEPT_SECONDS
        if time.time() - self.started > ABANDONED_AFTER_SECONDS:
            return True
        if not self.machine or self.machine != _machine():
            return False
        began = _began(self.process)
        return began != self.began if began else not _exists(self.process)

    @property
    def is_condemned(self) -> bool:
        """Whether the run may no longer commit."""
        return self._has(CONDEMNED)

    def _has(self, mark: str) -> bool:
        return self.path.rpartition("/")[2].startswith(mark)

    def mark(self, mark: str, storage: Storage) -> Self:
        """Replace this record by one with a mark, CONDEMNED or REFUSED, and return it."""
        found = replace(self, path=f"{self.path.rpartition('/')[0]}/{mark}{self.run}.json")
        storage.write(found.path, json.dumps(asdict(found)).encode())
        self.end(storage)
        return found


def is_written(table: "Table") -> bool:
    """Whether a run is writing files of a table, or was killed while it did."""
    return bool(storage_of(table).files_in(_folder(table)))


def runs_in_progress(table: "Table") -> list[str]:
    """The runs that may still commit files to a table, and those whose rows are kept for inspection."""
    return [
        record.run for record in _records(table, storage_of(table)) if not record.is_condemned and not record.is_dead
    ]


def condemn_abandoned(table: "Table | None") -> tuple[RunRecord, ...]:
    """Keep dead runs from committing to a table; return the runs whose files can be removed after the next commit."""
    if table is None:
        return ()
    try:
        storage = storage_of(table)
        records = tuple(_records(table, storage))
        dead = [record.mark(CONDEMNED, storage) for record in records if not record.is_condemned and record.is_dead]
        return (*(record for record in records if record.is_condemned), *dead)
    except OSError as error:
        _log.warning("%s: cannot look for dead runs: %s", ".".join(table.name()), error)
        return ()


def branches_of(table: "Table", condemned: Collection[RunRecord]) -> list[str]:
    """Branches with rows that dead runs staged, or that failed a check and were kept for inspection long enough."""
    runs = {record.run for record in condemned}
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    found = []
    for name, ref in table.metadata.refs.items():
        summary = snapshots[ref.snapshot_id].summary if name.startswith(STAGED_PREFIX) else None
        if summary is not None and summary.additional_properties.get(RUN) in runs:
            found.append(name)
    return found


def remove_abandoned(table: "Table | None", condemned: Collection[RunRecord]) -> int:
    """Remove the files of dead runs; return how many there were. Unreachable files are left to a later run.

    The runs were condemned before the last commit to the table, so none of them can commit after it.
    """
    if table is None or not condemned:
        return 0
    removed = 0
    try:
        storage = storage_of(table)
        named = set(_named_files(table, storage, tuple(f"{record.run}-" for record in condemned)))
        for record in condemned:
            count = remove_all(storage, data_location(table), record.run, named)
            record.end(storage)
            _log.warning("%s: removed %d files of run %s, which was killed", ".".join(table.name()), count, record.run)
            removed += count
    except Exception as error:  # noqa: BLE001 - the rows are published, whatever lies around or cannot be read
        _log.warning("%s: cannot remove files of dead runs: %s", ".".join(table.name()), error)
    return removed


def _folder(table: "Table") -> str:
    return f"{metadata_location(table)}/{FOLDER}"


def _records(table: "Table", storage: Storage) -> Iterator[RunRecord]:
    for path in storage.files_in(_folder(table)):
        try:
            record = json.loads(storage.read(path))
            run = path.rpartition("/")[2].removeprefix(CONDEMNED).removeprefix(REFUSED).removesuffix(".json")
            yield RunRecord(
                path,
                run,
                str(record["machine"]),
                int(record["process"]),
                str(record["began"]),
                float(record["started"]),
            )
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            _log.warning("%s is not a record of a run, or has been removed: %s", path, error)


def _named_files(table: "Table", storage: Storage, prefixes: tuple[str, ...]) -> Iterator[str]:
    """Paths of all files of the given runs that any snapshot names."""
    types = source_types(table)
    specs = specs_of(table)
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        for manifest in read_manifest_list(storage.read(snapshot.manifest_list), snapshot.manifest_list):
            if manifest["manifest_path"] in seen:
                continue
            seen.add(manifest["manifest_path"])
            spec = specs[manifest["partition_spec_id"]]
            layout = PartitionLayout(spec, partition_types(spec, types))
            for entry in read_manifest(storage.read(manifest["manifest_path"]), manifest, layout):
                if entry.path.rpartition("/")[2].startswith(prefixes):
                    yield entry.path


def _machine() -> str:
    """Identity shared by processes that see each other under the same process ids; empty where unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _began(process: int) -> str:
    """Start of a process of this machine; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _exists(process: int) -> bool:
    """Whether this machine has such a process, even one that is hidden because it belongs to another user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
