"""What checks found for snapshots of a mirror, kept in files beside its manifests: never as a commit to the table.

A publication asks for them before it reads a snapshot, and the next check of the mirror begins at the last green one.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from uuid import uuid4

from checks.comparison import CheckResult
from checks.subject import Subject
from pipelines.iceberg.storage import Storage
from scan_core import ScanError

FOLDER = "nevermore-checks"
"""Beside manifests: one file for each snapshot that was checked."""
MOST_KEPT = 200
"""Files: more than anyone looks back, few enough to list."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptResults:
    """The results of the checks of one snapshot.

    Attributes:
        snapshot_id: of the mirror; 0 for a table without snapshots.
        results: by name of the check.
        since: the green snapshot from which on only the keys that changed were compared; None where all rows were.
        full_at: seconds since 1970 when all rows were last compared, for this snapshot or for those it builds upon.
    """

    snapshot_id: int
    results: Mapping[str, CheckResult]
    since: int | None
    full_at: float

    def is_green(self, names: Iterable[str]) -> bool:
        """Whether all these checks were run and passed."""
        return all(name in self.results and self.results[name].passed for name in names)


class ResultStore:
    """The results kept for one mirror.

    Args:
        subject: the mirror, at any of its snapshots.
        storage: of the mirror.
        folder: of its manifests.
    """

    def __init__(self, subject: Subject, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = f"{folder}/{FOLDER}"
        # another key, or another meaning of rows, makes these the results of another check
        shape = [str(subject.opened.metadata.table_uuid), list(subject.key), subject.soft_delete]
        self._shape = hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]

    def find(self, snapshot_id: int) -> KeptResults | None:
        """The newest results for a snapshot; None if there are none, or none that can be read."""
        found = (self._read(path, snapshot_id) for path in sorted(self._paths(snapshot_id), key=_time, reverse=True))
        return next((kept for kept in found if kept is not None), None)

    def keep(self, kept: KeptResults) -> None:
        """Keep results in the place of earlier ones for the snapshot; what cannot be written now is found out again."""
        document = {
            "shape": self._shape,
            "since": kept.since,
            "full_at": kept.full_at,
            "results": {name: asdict(result) for name, result in kept.results.items()},
        }
        earlier = self._paths(kept.snapshot_id)
        path = f"{self._folder}/{kept.snapshot_id}-{time.time_ns()}-{uuid4().hex[:8]}.json"
        try:
            self._storage.write(path, json.dumps(document, default=str).encode())
            old = sorted(self._storage.files_in(self._folder), key=_time, reverse=True)[MOST_KEPT:]
            self._storage.remove([*earlier, *old])
        except OSError as error:
            _log.warning("results of checks could not be kept in %s: %s", self._folder, error)

    def _paths(self, snapshot_id: int) -> list[str]:
        return [p for p in self._storage.files_in(self._folder) if _name(p).startswith(f"{snapshot_id}-")]

    def _read(self, path: str, snapshot_id: int) -> KeptResults | None:
        try:
            document = json.loads(self._storage.read(path))
            if document["shape"] != self._shape:
                return None
            results = {name: CheckResult(**told) for name, told in document["results"].items()}
            return KeptResults(snapshot_id, results, document["since"], float(document["full_at"]))
        except (OSError, ScanError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s cannot be read, so the snapshot counts as not checked: %s", path, error)
            return None


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _time(path: str) -> int:
    """When results were kept, by the name of their file; 0 for a file of somebody else."""
    parts = _name(path).split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
