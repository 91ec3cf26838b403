"""Live data files by path, as position deletes name them (SEMANTICS rule 7).

Paths are compared after relocation on both sides; a missing scheme or authority matches any.
"""

from bisect import bisect_left
from collections.abc import Iterable

from scan_core.file_io import refuse_moved
from scan_core.location import parse_location, relocate
from scan_core.split import FileIOConfig


class PathIndex:
    """Indices of data files by the path that a delete states."""

    def __init__(self, paths: Iterable[str], io: FileIOConfig) -> None:
        self._io = io
        self._exact: dict[str, list[int]] = {}
        self._by_path: dict[str, list[tuple[str, int]]] = {}
        for index, path in enumerate(paths):
            self._exact.setdefault(path, []).append(index)
            self._by_path.setdefault(relocate(path, io).path, []).append((path, index))
        self._sorted: list[str] | None = None
        self._by_name: dict[str, list[str]] | None = None

    def find(self, path: str) -> tuple[list[int], bool]:
        """Indices of the data files at `path`, and whether only relocation or leniency found them."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact, False
        wanted = relocate(path, self._io)
        named = self._by_path.get(wanted.path, ())
        return [index for other, index in named if wanted.may_equal(relocate(other, self._io))], True

    def refuse_moved(self, path: str, delete_path: str) -> None:
        """Refuse a path that is no live file's, but was one before the table was moved, see `file_io.refuse_moved`.

        Raises:
            MalformedTableError: it was.
        """
        if self._by_name is None:
            self._by_name = {}
            for live in self._exact:
                self._by_name.setdefault(_name(live), []).append(live)
        for live in self._by_name.get(_name(path), ()):
            refuse_moved(path, live, self._io, delete_path)

    def starts_some_path(self, prefix: str) -> bool:
        """Whether some live path begins with `prefix`, which may be a path cut off by a writer of bounds."""
        if self._sorted is None:
            self._sorted = sorted(set(self._by_path) | {parse_location(path).path for path in self._exact})
        for wanted in {parse_location(prefix).path, relocate(prefix, self._io).path}:
            at = bisect_left(self._sorted, wanted)
            if at < len(self._sorted) and self._sorted[at].startswith(wanted):
                return True
        return False


def _name(path: str) -> str:
    return path.rpartition("/")[2]
