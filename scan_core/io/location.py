"""What a path in table metadata means: scheme, authority and path, relocated or not, and when two paths name one file."""

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from nevermore.scan_core.model.errors import MalformedTableError


@dataclass(frozen=True, slots=True)
class FileIOConfig:
    """How to open the paths that manifests name.

    Attributes:
        relocate: (old prefix, new prefix) pairs, longest first; applied by `relocate`.
        properties: FileIO properties of the catalog (s3.endpoint ...), empty for local files.
        moved: where the table lies by its metadata, and where the metadata was found; None if that is one place.
            Only for messages.
        places: folders that files of the table may lie in, after relocation; None where that is not restricted.
    """

    relocate: tuple[tuple[str, str], ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    moved: tuple[str, str] | None = field(default=None, compare=False)
    places: tuple[str, ...] | None = None


_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_ONE_SCHEME = {"s3a": "s3", "s3n": "s3"}
_BUCKET_SCHEMES = frozenset({"s3", "gs", "gcs", "oss", "abfs", "abfss", "wasb", "wasbs"})
"""The authority is a bucket: a path without scheme says nothing about it, unlike that of HDFS or a local disk."""


_ONE_STORE = {"gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs", "viewfs": "hdfs"}
"""Schemes of one store, as far as it matters which files are a table's."""


class PathMatch(Enum):
    """How two paths name the same file, if they do."""

    EXACT = "exact"
    RELOCATED = "relocated"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed path. `scheme` and `authority` are empty where the text does not state them."""

    scheme: str
    authority: str
    path: str

    def __str__(self) -> str:
        if not self.scheme:
            return self.path
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def is_local(self) -> bool:
        """Whether the location is on a local disk."""
        return self.scheme in {"", "file"}

    def may_equal(self, other: "Location") -> bool:
        """Whether the paths are equal and neither schemes nor authorities differ (SEMANTICS rule 7)."""
        return self.path == other.path and self._agrees(other)

    def _agrees(self, other: "Location") -> bool:
        if self.scheme and other.scheme and self.scheme != other.scheme:
            return False
        return not self.authority or not other.authority or self.authority == other.authority


def parse_location(text: str) -> Location:
    """Scheme (s3a and s3n read as s3), authority and path of a URI or plain path."""
    match = _URI.fullmatch(text)
    if match is None:
        return Location("", "", text)
    scheme = match[1].lower()
    scheme = _ONE_SCHEME.get(scheme, scheme)
    authority, path = match[2] or "", match[3]
    if scheme == "file":
        authority = "" if authority == "localhost" else authority
        path = "/" + path.lstrip("/") if path.startswith("//") else path
    return Location(scheme, authority, path)


def relocate(text: str, io: FileIOConfig) -> Location:
    """The location after the first relocation whose old prefix names a folder above it, if any.

    An old prefix without scheme or authority matches any; so does a path without them, except against a bucket.

    Raises:
        MalformedTableError: the path climbs out of the prefix with `..`, or holds a NUL byte.
    """
    return _relocate(text, io.relocate)


@lru_cache(maxsize=65_536)
def _relocate(text: str, pairs: tuple[tuple[str, str], ...]) -> Location:
    if "\0" in text:
        raise MalformedTableError(f"path {text!r} holds a NUL byte")
    location = parse_location(text)
    for exact in (True, False):
        for old, new in pairs:
            rest = _remainder(location, parse_location(old), exact=exact)
            if rest is None:
                continue
            if ".." in rest.split("/"):
                raise MalformedTableError(f"path {text!r} climbs out of the relocated prefix {old!r} with '..'")
            target = parse_location(new)
            return Location(target.scheme, target.authority, _join(target.path, rest))
    return location


def is_within(location: Location, folder: Location) -> bool:
    """Whether a file lies in a folder or below it: by its text, and on a local disk wherever links lead to as well."""
    one = {location.authority, folder.authority}
    if _store(location) != _store(folder) or (len(one) > 1 and not ("" in one and _store(folder) in {"file", "hdfs"})):
        return False
    folder_path = folder.path or ("/" if folder.authority else "")  # the root of a bucket
    if _is_below(posixpath.normpath(location.path), posixpath.normpath(folder_path)):
        return True
    return location.is_local and _is_below(os.path.realpath(location.path), _real_folder(folder_path))


@lru_cache(maxsize=256)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def _store(location: Location) -> str:
    return "file" if location.is_local else _ONE_STORE.get(location.scheme, location.scheme)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def same_file(left: str, right: str, io: FileIOConfig) -> PathMatch:
    """Whether two paths of a table name one file, after relocation on both sides (SEMANTICS rule 7)."""
    if left == right:
        return PathMatch.EXACT
    return PathMatch.RELOCATED if relocate(left, io).may_equal(relocate(right, io)) else PathMatch.NONE


def _remainder(location: Location, prefix: Location, *, exact: bool) -> str | None:
    folder = prefix.path.rstrip("/")
    if location.path != folder and not location.path.startswith(folder + "/"):
        return None
    if exact:
        same = (location.scheme, location.authority) == (prefix.scheme, prefix.authority)
        return location.path[len(folder) :] if same else None
    if prefix.scheme in _BUCKET_SCHEMES and not location.scheme:
        return None
    return location.path[len(folder) :] if location._agrees(prefix) else None  # noqa: SLF001 - own class


def _join(folder: str, rest: str) -> str:
    if not rest:
        return folder
    return folder.rstrip("/") + "/" + rest.lstrip("/")


def size_text(num_bytes: float) -> str:
    """`12 bytes`, `3.4 MiB`."""
    number = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} bytes" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
