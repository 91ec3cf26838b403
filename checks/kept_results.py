"""Results of checks, kept by snapshot in files next to the manifests of a table, so that they are not computed twice."""

import hashlib
import json
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from nevermore.pipelines.config.project import Config
from nevermore.pipelines.errors import SourceError
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.iceberg.loaded_table import metadata_location, storage_of
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.scan_core import ScanError, Table

_log = logging.getLogger(__name__)
_NAME = re.compile(r"(.*?)(\d+)-(\d+)-[0-9a-f]+[.]json")
"""Kind, snapshot and time."""

FOLDER = "nevermore-checks"
"""Folder next to the manifests, with files for each snapshot that was checked."""
MAX_KEPT = 200
"""Number of files that are kept; few enough to list."""


@dataclass(frozen=True, slots=True)
class KeptResults:
    """The results of the checks of one snapshot.

    Attributes:
        snapshot_id: of the mirror; 0 for a table without snapshots.
        results: results by name of the check.
        since: the green snapshot after which only changed keys were compared; None if all rows were.
        full_at: time of the last comparison of all rows, of this snapshot or of its ancestors, in seconds since 1970.
        documents: what the program that ran the checks reports, as JSON.
    """

    snapshot_id: int
    results: Mapping[str, CheckResult]
    since: int | None
    full_at: float
    documents: Sequence[Mapping[str, Any]] = ()

    def is_green(self, names: Iterable[str]) -> bool:
        """Whether all these checks were run and passed."""
        return all(name in self.results and self.results[name].passed for name in names)


class ResultStore:
    """The results kept for one table.

    Args:
        config: the project.
        name: the table.
        opened: the table. Results hold for a snapshot as long as its manifest list has the bytes that it had then.
        shape: everything that decides what is checked: with another shape, the results are those of other checks.
        kind: prefix of the names of the files, if other results are kept in the same folder.

    Raises:
        SourceError: the table no longer exists.
    """

    def __init__(self, config: Config, name: str, opened: Table, shape: Sequence[Any], kind: str = "") -> None:
        handle = find_table(open_catalog(config), name)
        if handle is None:
            raise SourceError(f"{name} no longer exists")
        self._storage = storage_of(handle)
        self._metadata = opened.metadata
        self._folder = f"{metadata_location(handle)}/{FOLDER}"
        self._kind = kind
        document = json.dumps([str(opened.metadata.table_uuid), *shape])
        self._shape = hashlib.sha256(document.encode()).hexdigest()[:16]

    def find(self, snapshot_id: int | None = None) -> KeptResults | None:
        """The newest readable results for a snapshot, or for any; None if there are none."""
        found = (self._read(path, number) for _, number, path in self._files(snapshot_id))
        return next(filter(None, found), None)

    def last_green(self, snapshot_id: int, names: Collection[str]) -> KeptResults | None:
        """The results of the newest earlier snapshot that has passed these checks; None if there is none."""
        earlier = self._metadata.ancestors(snapshot_id)[1:] if snapshot_id in self._metadata.snapshots else ()
        results = (self.find(snapshot.snapshot_id) for snapshot in earlier)
        return next((kept for kept in results if kept is not None and kept.is_green(names)), None)

    def keep(self, kept: KeptResults) -> None:
        """Keep results, replacing earlier ones for the snapshot; if writing fails, the checks run again later."""
        path = f"{self._folder}/{self._kind}{kept.snapshot_id}-{time.time_ns()}-{uuid4().hex[:8]}.json"
        try:
            document = {
                "shape": self._shape,
                "manifest_list": self._checksum(kept.snapshot_id),
                "since": kept.since,
                "full_at": kept.full_at,
                "results": {name: asdict(result) for name, result in kept.results.items()},
                "documents": list(kept.documents),
            }
            earlier = self._files(kept.snapshot_id)
            self._storage.write(path, json.dumps(document, default=str).encode())
            self._storage.remove([path for *_, path in (*earlier, *self._files()[MAX_KEPT:])])
        except (OSError, ScanError) as error:
            _log.warning("results of checks could not be kept in %s: %s", self._folder, error)

    def _files(self, snapshot_id: int | None = None) -> list[tuple[int, int, str]]:
        """Times, snapshots and paths of the files for a snapshot, or for any, the newest first."""
        named = ((_NAME.fullmatch(path.rpartition("/")[2]), path) for path in self._storage.files_in(self._folder))
        found = ((int(n[3]), int(n[2]), path) for n, path in named if n and n[1] == self._kind)
        return sorted((one for one in found if snapshot_id in {None, one[1]}), reverse=True)

    def _checksum(self, snapshot_id: int) -> str:
        """The checksum of a snapshot's manifest list; empty if it is unknown or has none."""
        snapshot = self._metadata.snapshots.get(snapshot_id)
        path = None if snapshot is None else snapshot.manifest_list
        return "" if path is None else hashlib.sha256(self._storage.read(path)).hexdigest()

    def _read(self, path: str, snapshot_id: int) -> KeptResults | None:
        try:
            document = json.loads(self._storage.read(path))
            if document["shape"] != self._shape or document["manifest_list"] != self._checksum(snapshot_id):
                return None
            results = {name: CheckResult(**kept) for name, kept in document["results"].items()}
            documents = tuple(document.get("documents", ()))
            return KeptResults(snapshot_id, results, document["since"], float(document["full_at"]), documents)
        except (OSError, ScanError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s cannot be read, so the snapshot counts as not checked: %s", path, error)
            return None
