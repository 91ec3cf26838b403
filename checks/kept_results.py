"""Results of checks, kept by snapshot in files next to the manifests of a table, so that they are not computed twice."""

import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from nevermore.pipelines.iceberg.storage import Storage
from nevermore.pipelines.publish.audit import CheckResult
from nevermore.scan_core import ScanError, TableMetadata

_log = logging.getLogger(__name__)

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
        storage: storage of the table.
        folder: folder of its manifests.
        shape: everything that decides what is checked: with another shape, the results are those of other checks.
        metadata: of the table. Results hold for a snapshot as long as its manifest list has the bytes that it had then.
        kind: prefix of the names of the files, if other results are kept in the same folder.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        shape: Sequence[Any],
        metadata: TableMetadata,
        kind: str = "",
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._folder = f"{folder}/{FOLDER}"
        self._kind = kind
        self._shape = hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]

    def find(self, snapshot_id: int | None = None) -> KeptResults | None:
        """The newest readable results for a snapshot, or for any; None if there are none."""
        for path in sorted(self._paths(snapshot_id), key=_time, reverse=True):
            number = path.rpartition("/")[2].removeprefix(self._kind).partition("-")[0]
            if number.isdigit() and (kept := self._read(path, int(number))) is not None:
                return kept
        return None

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
            earlier = self._paths(kept.snapshot_id)
            self._storage.write(path, json.dumps(document, default=str).encode())
            old = sorted(self._paths(), key=_time, reverse=True)[MAX_KEPT:]
            self._storage.remove([*earlier, *old])
        except (OSError, ScanError) as error:
            _log.warning("results of checks could not be kept in %s: %s", self._folder, error)

    def _paths(self, snapshot_id: int | None = None) -> list[str]:
        prefix = self._kind if snapshot_id is None else f"{self._kind}{snapshot_id}-"
        found = (path for path in self._storage.files_in(self._folder) if path.rpartition("/")[2].startswith(prefix))
        # the files of one kind may begin with a number only
        return [p for p in found if p.rpartition("/")[2].removeprefix(self._kind)[:1].isdigit()]

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


def _time(path: str) -> int:
    """Time when results were kept, by the name of their file; 0 for a file of another origin."""
    parts = path.rpartition("/")[2].split("-")
    return int(parts[-2]) if len(parts) > 2 and parts[-2].isdigit() else 0
