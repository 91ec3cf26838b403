"""Objects of S3 through obstore, the asynchronous client of Rust's object_store, where it understands the properties of the FileIO.

It opens an object without asking for its size, takes half of the CPU time that pyarrow's client takes for a request, and repeats
requests that fail with growing pauses (`benchmarks/NOTES.md`). PyIceberg's FileIO opens everything else: other stores, properties
that are not known here, credentials that only the AWS SDK finds, and processes forked from one that used obstore, whose threads
a fork does not copy.

All parts of an object that is opened once are of one version: if it is replaced meanwhile, the next request fails. (What a FileIO opens
has no versions.)
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa

from nevermore.scan_core.io.location import Location
from nevermore.scan_core.io.private_files import remove_leftovers, user_folder

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

INDEXES = "indexes"
"""Of delete keys, which Spark's workers share."""


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  its holder may be a thread of the other process
    _lock = Lock()
    _state["is_forked"] = _state["is_forked"] or _state["is_used"]
    _store.cache_clear()


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
        """The last bytes, all of a shorter object, and its size."""
        start = max(self._size - length, 0)
        return self.read_at(self._size - start, start), self._size

    def size(self) -> int:
        """Size of the object in bytes."""
        return self._size

    def read_at(self, length: int, offset: int) -> memoryview:
        """The bytes of one range; shorter where the object ends."""
        return memoryview(self._file.read_at(length, offset))

    def close(self) -> None:
        """Release it."""
        self._file.close()


def clear_caches() -> int:
    """Remove what caches of this user on this machine hold of tables, and what killed processes spilled; returns their number."""
    folder = user_folder(INDEXES)
    names = folder.names()
    for name in names:
        folder.remove(name)
    return remove_leftovers() + len(names)


class ReplacedObjectError(OSError):
    """An object was replaced after a part of it had been read."""


class S3Object:
    """An object as obstore reads it. The first request finds out whether there is one, and which version all others must have.

    Args:
        store: of obstore.
        key: in the store.
    """

    may_repeat = True

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key
        self._size: int | None = None
        self._version: str | None = None
        self._lock = Lock()

    @property
    def version(self) -> str | None:
        """The tag of the object, after the first answer."""
        return self._version

    def expect(self, version: str) -> None:
        """Refuse any other version from now on, because parts of this one are already known.

        Raises:
            ReplacedObjectError: another one was read.
        """
        with self._lock:
            if self._version not in {None, version}:
                raise ReplacedObjectError(f"the object {self._key} was replaced while it was read")
            self._version = version

    def tail(self, length: int) -> tuple[memoryview, int]:
        """The last bytes, all of a shorter object, and its size."""
        import obstore

        try:
            found = obstore.get(self._store, self._key, options={"range": {"suffix": length}})
            data = memoryview(found.bytes())
        except (obstore.exceptions.BaseError, OSError):  # an empty object, a store without such ranges, or no object
            start = max(self.size() - length, 0)
            return self.read_at(self.size() - start, start), self.size()
        self._learn(found.meta)
        self._size = int(found.meta["size"])
        return data, self._size

    def size(self) -> int:
        """Size of the object in bytes."""
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
        """The bytes of one range; shorter where the object ends."""
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

    def close(self) -> None:
        """Nothing to do: the store keeps its connections."""

    def _learn(self, meta: Any) -> None:
        """Compare the version of an answer with that of earlier ones.

        This is done here rather than by a condition of the request: weak tags match no condition, and some stores ignore it.
        """
        if (version := meta["e_tag"]) is not None:
            self.expect(version)


StoredObject: TypeAlias = ArrowObject | S3Object
"""One object of a store. Safe for several threads; errors are OSErrors.

`may_repeat`: a request may be sent a second time, and the object closed while the first still waits. `version` tells the object from
one that replaces it; None before the first answer, or if the store does not say.
"""


def open_s3(location: Location, properties: Mapping[str, str]) -> S3Object | None:
    """The object of a location; None if obstore is not installed, or may mean something else than PyIceberg's FileIO by it."""
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
    return None if store is None else S3Object(store, key)


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
