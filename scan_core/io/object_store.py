"""Objects of S3 through obstore, the asynchronous client of Rust's object_store, where it understands the properties of the FileIO.

It opens an object without asking for its size, takes half of the CPU time that pyarrow's client takes for a request, and repeats
requests that fail with growing pauses (`benchmarks/NOTES.md`). PyIceberg's FileIO opens everything else: other stores, properties
that are not known here, credentials that only the AWS SDK finds, and processes forked from one that used obstore, whose threads
a fork does not copy.

All parts of an object that is opened once are of one version: if it is replaced meanwhile, the next request fails. (What a FileIO opens
has no versions.)

Parts of objects are cached on the local disk, shared by the user's processes. A part is named by object, version and range: an
object that is replaced has other names. The end of an object, with its footer and page indexes, is kept when it is first read,
any other range when it is read a second time, so that one scan of much data does not evict what is read often.
"""

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa
import xxhash

from nevermore.scan_core.io.location import Location
from nevermore.scan_core.io.private_files import PrivateFolder, UnsafeFileError, remove_leftovers, user_folder
from nevermore.scan_core.model.running import ProcessLock

_KNOWN = frozenset({
    "s3.endpoint",
    "s3.access-key-id",
    "s3.secret-access-key",
    "s3.session-token",
    "s3.region",
    "s3.connect-timeout",
    "s3.request-timeout",
    "s3.force-virtual-addressing",
})  # fmt: skip
_HARMLESS = frozenset({
    "AWS_ACCESS_KEY_ID",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_MAX_ATTEMPTS",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SHARED_CREDENTIALS_FILE",
})  # fmt: skip
"""Environment variables of AWS that properties override in both clients, or that both ignore. obstore adds all others to the properties, such as
AWS_SESSION_TOKEN; the FileIO does not."""
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})
_RETRIES = 8
_RETRY_SECONDS = 60
"""A store that answers no request for so long is reported to be out of reach."""

_state = {"is_used": False, "is_forked": False}
_lock = Lock()

_FOLDER = "objects"
INDEXES = "indexes"
"""Of delete keys, which Spark's workers share."""
_SWEEPING = "lock"
MAX_RANGE_BYTES = 1024**2
"""Longer ranges are limited by bandwidth rather than latency, and are not kept."""
_MAX_AGE_SECONDS = 7 * 24 * 3600
_SWEPT_SHARE = 16
"""The folder is swept whenever a process has added one part in so many of the limit."""
_LEFT_SHARE = 0.9

_log = logging.getLogger(__name__)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  its holder may be a thread of the other process
    _lock = Lock()
    _state["is_forked"] = _state["is_forked"] or _state["is_used"]
    _store.cache_clear()


class StoredObject(Protocol):
    """One object of a store. Safe for several threads; errors are OSErrors.

    `may_repeat`: a request may be sent a second time, and the object closed while the first still waits.
    """

    may_repeat: bool

    @property
    def version(self) -> str | None:
        """What tells this object from one that replaces it; None before the first answer, or if the store does not say."""
        ...

    def expect(self, version: str) -> None:
        """Refuse any other version from now on, because parts of this one are already known."""
        ...

    def tail(self, length: int) -> tuple[memoryview, int]:
        """The last bytes, all of a shorter object, and its size."""
        ...

    def size(self) -> int:
        """Size of the object in bytes."""
        ...

    def read_at(self, length: int, offset: int) -> memoryview:
        """The bytes of one range; shorter where the object ends."""
        ...

    def kept(self, length: int, offset: int) -> memoryview | None:
        """A range, if it is in the local disk cache."""
        ...

    def keep(self, offset: int, data: memoryview) -> None:
        """Keep a range that was read, if that is allowed."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


class ArrowObject:
    """An object as pyarrow or a FileIO opens it.

    Its size is asked for once, before threads share it: of a file that is implemented in Python, such as those of fsspec, pyarrow
    finds the size by moving the position, without the lock under which it reads.
    """

    may_repeat = False
    version = None

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self._size = int(file.size())

    def expect(self, version: str) -> None:
        """Its version is not known."""

    def tail(self, length: int) -> tuple[memoryview, int]:
        """See `StoredObject`."""
        start = max(self._size - length, 0)
        return self.read_at(self._size - start, start), self._size

    def size(self) -> int:
        """See `StoredObject`."""
        return self._size

    def read_at(self, length: int, offset: int) -> memoryview:
        """See `StoredObject`."""
        return memoryview(self._file.read_at(length, offset))

    def kept(self, length: int, offset: int) -> memoryview | None:  # noqa: ARG002  its version is not known
        """Nothing is kept."""
        return None

    def keep(self, offset: int, data: memoryview) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """See `StoredObject`."""
        self._file.close()


class DiskCache:
    """A folder of entries under names of the caller. Safe for several threads and processes.

    Args:
        folder: private to the user; holds nothing else.
        limit_bytes: beyond it, entries that were not used for longest are removed, in any case those not used for 7 days.
    """

    def __init__(self, folder: PrivateFolder, limit_bytes: int) -> None:
        self._folder = folder
        self._limit = limit_bytes
        self._added = limit_bytes // _SWEPT_SHARE  # look once at what others left
        self._lock = ProcessLock()

    def get(self, name: str) -> bytes | None:
        """The entry, if it is there and whole."""
        try:
            with self._folder.read(name) as file:
                stored = file.read()
            if len(stored) <= 8 or xxhash.xxh64_digest(stored[8:]) != stored[:8]:
                return None
            self._folder.touch(name)
        except (OSError, UnsafeFileError):
            return None
        return stored[8:]

    def put(self, name: str, data: memoryview, *, is_first: bool) -> None:
        """Keep an entry; with `is_first` only if it was put before, otherwise only note the attempt.

        A disk that is full or broken is reported once per process; nothing fails for it.
        """
        if not data or len(data) > self._limit // 2:
            return
        try:
            if is_first and not self._is_noted(name):
                with suppress(FileExistsError):
                    self._folder.create(name).close()
                return
            with self._folder.replace(name) as file:
                file.write(xxhash.xxh64_digest(data))
                file.write(data)
            with self._lock:
                self._added += len(data) + 8
                is_due = self._added >= self._limit // _SWEPT_SHARE
                self._added = 0 if is_due else self._added
            if is_due:
                self._sweep()
        except (OSError, UnsafeFileError) as error:
            if self._limit:
                _log.warning("objects of object stores are not kept in %s: %s", self._folder.path, error)
            self._limit = 0

    def clear(self, prefix: str = "") -> int:
        """Remove all entries whose names begin like this; returns their number."""
        names = [name for name in self._folder.names() if name.startswith(prefix)]
        for name in names:
            self._folder.remove(name)
        return len(names)

    def _is_noted(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return self._folder.status(name).st_size == 0
        return False

    def _sweep(self) -> None:
        """Remove entries that are too old, and those that were not used for longest beyond the limit."""
        held = self._folder.try_lock(_SWEEPING, make=True)
        if held is None:  # another process is at it
            return
        with held:
            found = []
            for name in self._folder.names():
                with suppress(FileNotFoundError):
                    status = self._folder.status(name)
                    found.append((status.st_mtime, status.st_size, name))
            left = sum(size for _, size, _ in found)
            wanted = self._limit if left <= self._limit else int(self._limit * _LEFT_SHARE)
            oldest = time.time() - _MAX_AGE_SECONDS
            for used, size, name in sorted(found):
                if name == _SWEEPING or (used >= oldest and left <= wanted):
                    continue
                self._folder.remove(name)
                left -= size


_caches: dict[int, DiskCache] = {}


def disk_cache(limit_bytes: int) -> DiskCache | None:
    """The cache of this user; None if nothing may be kept."""
    if limit_bytes <= 0:
        return None
    if (found := _caches.get(limit_bytes)) is None:
        found = _caches[limit_bytes] = DiskCache(user_folder(_FOLDER), limit_bytes)
    return found


def clear_caches() -> int:
    """Remove what caches of this user on this machine hold of tables, and what killed processes spilled; returns their number."""
    return remove_leftovers() + sum(DiskCache(user_folder(purpose), 0).clear() for purpose in (_FOLDER, INDEXES))


def entry_name(*parts: str) -> str:
    """The name of an entry: a digest of the parts that identify it."""
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


class ReplacedObjectError(OSError):
    """An object was replaced after a part of it had been read."""


class S3Object:
    """An object as obstore reads it. The first request finds out whether there is one, and which version all others must have.

    Args:
        store: of obstore.
        key: in the store.
        identity: of the object among those of all stores.
        cache: keeps what was read, once the version of the object is known.
    """

    may_repeat = True

    def __init__(self, store: Any, key: str, identity: str, cache: DiskCache | None) -> None:
        self._store = store
        self._key = key
        self._identity = identity
        self._cache = cache
        self._size: int | None = None
        self._version: str | None = None
        self._lock = Lock()

    @property
    def version(self) -> str | None:
        """See `StoredObject`."""
        return self._version

    def expect(self, version: str) -> None:
        """See `StoredObject`.

        Raises:
            ReplacedObjectError: another one was read.
        """
        with self._lock:
            if self._version not in {None, version}:
                raise ReplacedObjectError(f"the object {self._key} was replaced while it was read")
            self._version = version

    def tail(self, length: int) -> tuple[memoryview, int]:
        """See `StoredObject`. If it is cached, the store is only asked whether the object has changed."""
        import obstore

        name = self._name(str(length))
        kept = self._cache.get(name) if self._cache is not None else None
        version, size, data = _parse_end(kept)
        options: Any = {"range": {"suffix": length}}
        if version is not None:
            options["if_none_match"] = version
        try:
            found = obstore.get(self._store, self._key, options=options)
            data = memoryview(found.bytes())
        except obstore.exceptions.NotModifiedError:
            assert version is not None  # noqa: S101  it was asked for
            self.expect(version)
            self._size = size
            return data, size
        except (obstore.exceptions.BaseError, OSError):  # an empty object, a store without such ranges, or no object
            start = max(self.size() - length, 0)
            return self.read_at(self.size() - start, start), self.size()
        self._learn(found.meta)
        self._size = int(found.meta["size"])
        if self._cache is not None and self._version is not None:
            head = f"{self._version}\n{self._size}\n".encode()
            self._cache.put(name, memoryview(head + data), is_first=False)
        return data, self._size

    def size(self) -> int:
        """See `StoredObject`."""
        import obstore

        if self._size is None:
            try:
                found = obstore.head(self._store, self._key)
            except (obstore.exceptions.BaseError, OSError) as error:
                raise _os_error(error) from error
            self._learn(found)
            self._size = int(found["size"])
        return self._size

    def read_at(self, length: int, offset: int) -> memoryview:
        """See `StoredObject`."""
        import obstore

        if length <= 0:
            return memoryview(b"")
        try:
            found = obstore.get(self._store, self._key, options={"range": (offset, offset + length)})
            data = memoryview(found.bytes())
        except (obstore.exceptions.BaseError, OSError) as error:
            if offset >= self.size():
                return memoryview(b"")
            raise _os_error(error) from error
        self._learn(found.meta)
        return data

    def kept(self, length: int, offset: int) -> memoryview | None:
        """A range, if it is kept."""
        if self._cache is None or self._version is None or not 0 < length <= MAX_RANGE_BYTES:
            return None
        found = self._cache.get(self._name(str(self._version), str(offset), str(length)))
        return None if found is None else memoryview(found)

    def keep(self, offset: int, data: memoryview) -> None:
        """Keep a range that was read, from the second time on."""
        if self._cache is not None and self._version is not None and len(data) <= MAX_RANGE_BYTES:
            self._cache.put(self._name(str(self._version), str(offset), str(len(data))), data, is_first=True)

    def close(self) -> None:
        """Nothing to do: the store keeps its connections."""

    def _learn(self, meta: Any) -> None:
        """Compare the version of an answer with that of earlier ones.

        This is done here rather than by a condition of the request: weak tags match no condition, and some stores ignore it.
        """
        if (version := meta["e_tag"]) is not None:
            self.expect(version)

    def forget(self) -> None:
        """Remove what is kept of the object: its bytes were damaged when they were read."""
        if self._cache is not None:
            self._cache.clear(entry_name(self._identity))

    def _name(self, *parts: str) -> str:
        return f"{entry_name(self._identity)}-{entry_name(*parts)}"


def _parse_end(kept: bytes | None) -> tuple[str | None, int, memoryview]:
    """Version and size of an object, and its last bytes, as they were kept."""
    if kept is None:
        return None, 0, memoryview(b"")
    version, size, _ = kept.split(b"\n", 2)
    return version.decode(), int(size), memoryview(kept)[len(version) + len(size) + 2 :]


def open_s3(location: Location, properties: Mapping[str, str], cache_bytes: int = 0) -> S3Object | None:
    """The object of a location; None if obstore is not installed, or may mean something else than PyIceberg's FileIO by it.

    Up to `cache_bytes` of objects are kept on the disk of this machine.
    """
    if location.scheme != "s3" or _state["is_forked"]:
        return None
    given = {name: value for name, value in properties.items() if name.startswith(("s3.", "client."))}
    key = location.path.removeprefix("/")
    is_plain = bool(key) and all(part not in {"", ".", ".."} for part in key.split("/"))  # obstore refuses other keys
    if not is_plain or given.keys() - _KNOWN or "py-io-impl" in properties or any(map(_is_foreign, os.environ)):
        return None
    if not {"s3.access-key-id", "s3.secret-access-key", "s3.region"} <= given.keys():
        return None
    with _lock:
        store = _store(location.authority, tuple(sorted(given.items())))
    if store is None:
        return None
    identity = f"{given.get('s3.endpoint', given['s3.region'])} {location}"
    return S3Object(store, key, identity, disk_cache(cache_bytes))


def _is_foreign(variable: str) -> bool:
    """Whether an environment variable may mean one thing to obstore and another to the FileIO."""
    return (variable.startswith("AWS_") and variable not in _HARMLESS) or variable.upper() in _PROXIES


@lru_cache(maxsize=64)
def _store(bucket: str, given: tuple[tuple[str, str], ...]) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError:
        return None
    properties = dict(given)
    settings: dict[str, Any] = {
        "access_key_id": properties["s3.access-key-id"],
        "secret_access_key": properties["s3.secret-access-key"],
        "region": properties["s3.region"],
        "virtual_hosted_style_request": properties.get("s3.force-virtual-addressing", "").lower() == "true",
    }
    if (token := properties.get("s3.session-token")) is not None:
        settings["session_token"] = token
    if (endpoint := properties.get("s3.endpoint")) is not None:
        settings["endpoint"] = endpoint if "://" in endpoint else f"https://{endpoint}"
    client: Any = {"allow_http": True}
    try:
        for name, option in (("s3.connect-timeout", "connect_timeout"), ("s3.request-timeout", "timeout")):
            if name in properties:
                client[option] = timedelta(seconds=float(properties[name]))
        retries: Any = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
        store = S3Store(bucket, client_options=client, retry_config=retries, **settings)
    except (BaseError, ValueError, OverflowError):  # a setting that only the FileIO understands
        return None
    _state["is_used"] = True
    return store


def _os_error(error: Exception) -> OSError:
    import obstore

    reason = str(error).strip().partition("\n")[0][:300]
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(reason)
    is_refused = isinstance(error, obstore.exceptions.PermissionDeniedError | obstore.exceptions.UnauthenticatedError)
    return PermissionError(reason) if is_refused else OSError(reason)


os.register_at_fork(after_in_child=_after_fork)
