"""Which metadata file a location means: the file itself, or the newest one of a table's folder; and its compression.

Knows names and codecs, and of the document only what tells it from others. A version hint is trusted as far as the
file it names exists, and newer files beside it win, as for the Hadoop catalog that writes it.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa

from scan_core.errors import MalformedTableError, ScanError, TableNotFoundError
from scan_core.file_io import exists, is_folder, list_folder, list_folders, read_bytes
from scan_core.location import parse_location
from scan_core.split import FileIOConfig

MAX_METADATA_BYTES = 1 << 30
"""Of a decompressed metadata file: far above any real one, far below what a crafted one could claim."""
_MOST_LOOKED_AT = 100
_MOST_LISTED = 12
"""Of the tables in a folder that is none itself."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_METADATA_NAME = re.compile(r".*\.metadata\.json(\.gz|\.zst)?|.*\.metadata\.(gz|zstd?)\.json", re.IGNORECASE)
_LOOSE_NAME = re.compile(r".*\.json(\.gz|\.zst)?", re.IGNORECASE)
_HINT_NAME = re.compile(r"version[-_]?hint.*", re.IGNORECASE)
_VERSION = re.compile(r"v?(\d+)(?![0-9a-f])", re.IGNORECASE)


def find_metadata_file(location: str, io: FileIOConfig) -> str:
    """The path of the metadata file.

    Raises:
        TableNotFoundError: there is nothing at the location, or a folder without metadata.
    """
    if not location.strip():
        raise TableNotFoundError("an empty location names no table")
    configs = (FileIOConfig(properties=io.properties), io)  # what a person types is usually a path of this machine
    for config in configs if parse_location(location).is_local else (io,):
        if is_folder(location, config):
            return _newest(location.rstrip("/"), config)
        if exists(location, config):
            return location
    raise TableNotFoundError(f"nothing at {location}: no metadata file, no table folder")


def decompress(data: bytes, file: str) -> bytes:
    """The document in a metadata file, whatever its name says about compression.

    Raises:
        MalformedTableError: damaged, or absurdly large when decompressed.
    """
    try:
        if data.startswith(_GZIP_MAGIC):
            result = zlib.decompressobj(wbits=31).decompress(data, MAX_METADATA_BYTES + 1)
        elif data.startswith(_ZSTD_MAGIC):
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                parts, total = [], 0
                while total <= MAX_METADATA_BYTES and (part := stream.read(1 << 20)):
                    parts.append(part)
                    total += len(part)
                result = b"".join(parts)
        else:
            return data
    except (zlib.error, OSError) as error:
        raise MalformedTableError(f"{file}: cannot be decompressed: {error}") from error
    if len(result) > MAX_METADATA_BYTES:
        raise MalformedTableError(f"{file}: larger than {MAX_METADATA_BYTES} bytes when decompressed")
    return result


def _newest(folder: str, io: FileIOConfig) -> str:
    for candidate in (f"{folder}/metadata", folder):
        names = list_folder(candidate, io)
        found = _hinted(candidate, names, io) or _highest(candidate, names, io)
        if found:
            return f"{candidate}/{found}"
    raise TableNotFoundError(
        f"{folder} holds no table: no *.metadata.json in {folder}/metadata{_tables_in(folder, io)}"
    )


def _tables_in(folder: str, io: FileIOConfig) -> str:
    """A hint for a folder of tables."""
    names = list_folders(folder, io)[:_MOST_LOOKED_AT]
    tables = [name for name in names if is_folder(f"{folder}/{name}/metadata", io)]
    if not tables:
        return ""
    more = f" and {len(tables) - _MOST_LISTED} more" if len(tables) > _MOST_LISTED else ""
    return f"; the tables in it are {', '.join(tables[:_MOST_LISTED])}{more}: name one of them"


def _hinted(folder: str, names: list[str], io: FileIOConfig) -> str | None:
    for hint in (n for n in names if _HINT_NAME.fullmatch(n)):
        text = read_bytes(f"{folder}/{hint}", io)[:1024].decode("utf-8", "replace").strip()
        named = next(
            (n for n in names if n == text or (_METADATA_NAME.fullmatch(n) and n.startswith(text + "."))), None
        )
        if text and named:
            return named
        match = re.fullmatch(r"v?(\d+)", text, re.IGNORECASE)
        if match is None:
            continue
        version = int(match[1])
        found = None
        while following := _with_version(names, version):
            found, version = following, version + 1
        if found:
            return found
    return None


def _with_version(names: list[str], version: int) -> str | None:
    return next((n for n in names if _METADATA_NAME.fullmatch(n) and _version(n) == version), None)


def _highest(folder: str, names: list[str], io: FileIOConfig) -> str | None:
    candidates = [n for n in names if _METADATA_NAME.fullmatch(n)]
    if not candidates:
        loose = [n for n in names if _LOOSE_NAME.fullmatch(n)]
        candidates = [n for n in loose if "format-version" in _content(f"{folder}/{n}", io)]
    if not candidates:
        return None
    top = max(_version(n) for n in candidates)
    best = [n for n in candidates if _version(n) == top]
    if len(best) == 1:
        return best[0]
    return max(best, key=lambda name: _last_updated(f"{folder}/{name}", io))


def _version(name: str) -> int:
    match = _VERSION.match(name)
    return int(match[1]) if match else -1


def _last_updated(path: str, io: FileIOConfig) -> int:
    """`last-updated-ms` of a metadata file; -1 for a file that is none."""
    try:
        return int(_content(path, io)["last-updated-ms"])
    except (ValueError, KeyError, TypeError):
        return -1


def _content(path: str, io: FileIOConfig) -> Mapping[str, Any]:
    """The JSON object in a file; empty for a file that holds none."""
    try:
        content = orjson.loads(decompress(read_bytes(path, io), path))
    except (ScanError, ValueError):
        return {}
    return content if isinstance(content, Mapping) else {}
