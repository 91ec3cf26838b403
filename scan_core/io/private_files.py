"""Every file and folder that is read, written or swept outside of tables and of what a user names: opened here.

A folder is held by a descriptor that was opened without following a symbolic link and whose owner and mode were verified
on that descriptor; all names below are resolved from it. So no matter what other users do with a path, in a temporary directory
above all, nothing of theirs is read, waited for, written over or removed. docs/files.md lists what lies where.
"""

import atexit
import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Self

from nevermore.scan_core.model.errors import OptionError

LOCK = "lock"
"""In the folder of a process: held while it lives."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Without `O_NONBLOCK`, opening a FIFO waits for its other end."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NAME = "nevermore"

_log = logging.getLogger(__name__)


class UnsafeFileError(OptionError):
    """A file or folder that belongs to another user, that others may write to, or that is not a plain file or folder."""


class PrivateFolder:
    """A folder that belongs to this user and that nobody else may write to, held open.

    Attributes:
        path: its path, for messages.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over a descriptor that was verified; use `private_folder`."""
        self.path = path
        self._descriptor = descriptor

    @property
    def is_gone(self) -> bool:
        """Whether it was removed after it was opened."""
        return os.fstat(self._descriptor).st_nlink == 0

    def names(self) -> list[str]:
        """Names of its entries, read through a descriptor of its own: one descriptor has one position, also for threads and forks."""
        listed = os.open(".", _FOLDER_FLAGS, dir_fd=self._descriptor)
        try:
            return os.listdir(listed)  # noqa: PTH208 - by descriptor
        finally:
            os.close(listed)

    def folder(self, name: str) -> "PrivateFolder":
        """A folder below, made if needed.

        Raises:
            UnsafeFileError: something else has the name.
            OSError: it cannot be made.
        """
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self._descriptor)
        return self.existing_folder(name)

    def existing_folder(self, name: str) -> "PrivateFolder":
        """A folder below.

        Raises:
            UnsafeFileError: something else has the name.
            OSError: there is none.
        """
        path = self.path / name
        return PrivateFolder(path, _verified(path, name, _FOLDER_FLAGS, self._descriptor))

    def read(self, name: str) -> BinaryIO:
        """A file below, to be read.

        Raises:
            FileNotFoundError: there is none.
            UnsafeFileError: no plain file of this user's.
        """
        return os.fdopen(_verified(self.path / name, name, _FILE_FLAGS, self._descriptor), "rb")

    def create(self, name: str) -> BinaryIO:
        """A new file below, to be written.

        Raises:
            FileExistsError: something has the name.
            OSError: it cannot be made.
        """
        return _new_file(name, self._descriptor)

    def unnamed(self) -> BinaryIO:
        """A new file without a name, to be written and read, without a buffer: it goes when it is closed, or the process ends.

        Raises:
            OSError: it cannot be made.
        """
        name, flags = secrets.token_hex(16), _FILE_FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL
        file = os.fdopen(os.open(name, flags, 0o600, dir_fd=self._descriptor), "r+b", buffering=0)
        self.remove(name)
        return file

    @contextmanager
    def replace(self, name: str, mode: int = 0o600) -> Iterator[BinaryIO]:
        """A file below that appears at once and whole, in place of another of that name."""
        unfinished = f".{name}.{secrets.token_hex(8)}"
        try:
            with self.create(unfinished) as file:
                yield file
                os.fchmod(file.fileno(), mode)
            os.replace(unfinished, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(unfinished)
            raise

    def remove(self, name: str) -> None:
        """Remove a file below if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def keep_latest(self, number: int) -> None:
        """Remove the files that were changed first, until only this number remains."""
        changed = []
        for name in self.names():
            with suppress(FileNotFoundError):
                changed.append((self.status(name).st_mtime_ns, name))
        for _, name in sorted(changed, reverse=True)[number:]:
            self.remove(name)

    def remove_folder(self, name: str) -> None:
        """Remove a folder below with its content; symbolic links are removed, not followed."""
        shutil.rmtree(name, ignore_errors=True, dir_fd=self._descriptor)

    def touch(self, name: str) -> None:
        """Mark a file below as just used."""
        os.utime(name, dir_fd=self._descriptor, follow_symlinks=False)

    def status(self, name: str) -> os.stat_result:
        """Size and times of a file below."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of a file below, which is created if needed; waits until it is free."""
        with self._lock_file(name) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def try_lock(self, name: str, *, make: bool = False) -> BinaryIO | None:
        """The lock of a file below, held until it is closed; None if another has it, or there is none and none is made.

        Raises:
            OSError: it cannot be made.
        """
        if make:
            file = self._lock_file(name)
        else:
            try:
                file = self.read(name)
            except (OSError, UnsafeFileError):
                return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; this also happens when the object is no longer referenced."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    __del__ = close

    def _lock_file(self, name: str) -> BinaryIO:
        flags = _FILE_FLAGS | os.O_RDWR | os.O_CREAT
        return os.fdopen(_verified(self.path / name, name, flags, self._descriptor), "r+b")


_HELD: dict[Path, PrivateFolder] = {}
"""Folders that stay open: what was verified once is never looked up by its path again."""


def private_folder(path: Path) -> PrivateFolder:
    """A folder by its path, made with its parents if needed, readable by this user alone; to be closed.

    Raises:
        UnsafeFileError: it is a link, another user's, or others may write to it.
        OSError: it cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    return PrivateFolder(path, _verified(path, path, _FOLDER_FLAGS, None))


def held_folder(path: Path) -> PrivateFolder:
    """The same, held open until this process ends.

    Raises:
        UnsafeFileError: as `private_folder`.
        OSError: as `private_folder`.
    """
    held = _HELD.get(path)
    if held is None or held.is_gone:
        held = _HELD[path] = private_folder(path)
    return held


def user_folder(purpose: str) -> PrivateFolder:
    """The folder that all processes of this user on this host share for one purpose.

    Below `TMPDIR` where that is set, else below the user's cache folder. (Not in `XDG_RUNTIME_DIR`, which is memory.) Where
    neither can be used, a folder of this process alone, with a warning.
    """
    found, refused = _shared_folder(purpose)
    if refused:
        _warn(refused, found)
    return found or held_folder(temporary_folder() / purpose)


def _shared_folder(purpose: str) -> tuple[PrivateFolder | None, str]:
    """The folder, and why those that would be preferred to it cannot be used."""
    refused = []
    for root in _user_roots():
        path = root / purpose
        try:
            held = _HELD.get(path)
            if held is None or held.is_gone:
                held = _HELD[path] = held_folder(root).folder(purpose)
        except (OSError, UnsafeFileError) as error:
            refused.append(str(error))
        else:
            return held, "; ".join(refused)
    return None, "; ".join(refused) or "this user has neither a home directory nor TMPDIR"


@cache
def _warn(refused: str, found: PrivateFolder | None) -> None:
    place = temporary_folder() if found is None else found.path
    alone = " for this process alone (set TMPDIR to a folder of your own)" if found is None else ""
    _log.warning("temporary files go to %s%s: %s", place, alone, refused)


def _user_roots() -> Iterator[Path]:
    chosen = os.environ.get("TMPDIR")
    if chosen and Path(chosen).is_absolute():
        yield Path(chosen) / f"{_NAME}-{os.geteuid()}"
    if (cached := cache_folder()) is not None:
        yield cached


def cache_folder() -> Path | None:
    """The folder of this user's caches; None for a user without a home directory, or with that of another user."""
    named = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # containers run under numbers that belong to no user, and have no home
        home = Path(named) if named and Path(named).is_absolute() else Path("~/.cache").expanduser()
        nearest = next((p for p in (home, *home.parents) if p.exists()), None)
        if nearest is not None and nearest.stat().st_uid == os.geteuid():
            return home / _NAME
    return None


@cache
def temporary_folder() -> Path:
    """A folder of this process with an unpredictable name, removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="nevermore-")
    atexit.register(_remove_own, Path(folder), os.getpid())
    return Path(folder)


def _remove_own(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of it
        shutil.rmtree(folder, ignore_errors=True)


def spill_folder() -> PrivateFolder:
    """This process's folder for what does not fit into memory; it goes when the process ends in an orderly way.

    What killed processes left behind goes when the folder is made.
    """
    root = user_folder("spill")
    held = _SPILL.get(root.path)
    if held is None or held.is_gone:
        remove_leftovers()
        held = _SPILL[root.path] = _locked_folder(root)
    return held


_SPILL: dict[Path, PrivateFolder] = {}
os.register_at_fork(after_in_child=_SPILL.clear)  # the folder of the other process goes when that ends


def remove_leftovers() -> int:
    """Remove the spill files of killed processes; returns their number."""
    root, _ = _shared_folder("spill")
    if root is None:
        return 0
    removed = 0
    for name in root.names():
        try:
            folder = root.existing_folder(name)
        except (OSError, UnsafeFileError):  # not a folder of ours
            continue
        with folder:
            held = folder.try_lock(LOCK)
        if held is not None:
            root.remove_folder(name)
            held.close()
            removed += 1
    return removed


def _locked_folder(root: PrivateFolder) -> PrivateFolder:
    while True:
        name = secrets.token_hex(16)
        folder = root.folder(name)
        try:
            held = folder.try_lock(LOCK, make=True)
        except FileNotFoundError:
            held = None
        if held is not None and not folder.is_gone:
            atexit.register(_give_up, root, name, held, os.getpid())
            return folder
        folder.close()  # another process has taken a folder without its lock for a leftover


def _give_up(root: PrivateFolder, name: str, held: BinaryIO, owner: int) -> None:
    if os.getpid() == owner:
        root.remove_folder(name)
    held.close()


def trusted_content(path: Path) -> bytes | None:
    """A file of code that runs if it is believed: None unless it and its folder are this user's or the system's own.

    Nobody else may write to either. A link, a FIFO or a device is no such file.
    """
    with suppress(OSError, UnsafeFileError):
        folder = _verified(path.parent, path.parent, _FOLDER_FLAGS, None, or_root=True)
        try:
            descriptor = _verified(path, path.name, _FILE_FLAGS, folder, or_root=True)
        finally:
            os.close(folder)
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    return None


@contextmanager
def whole_file(path: Path, mode: int | None = 0o600) -> Iterator[BinaryIO]:
    """A file at a path that a user named, which appears at once and whole.

    Args:
        path: of the file; a symbolic link is replaced, not followed.
        mode: as the umask allows; None keeps the mode of a file that is replaced, and gives 0o666 to a new one.

    Raises:
        OSError: it cannot be written; names the path.
    """
    unfinished = f"{path.parent}/.{path.name}.{secrets.token_hex(4)}"
    try:
        with _new_file(unfinished, None) as file:
            yield file
            is_kept = mode is None and path.exists()
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode) if is_kept else (mode or 0o666) & ~_umask())
        Path(unfinished).replace(path)
    except OSError as error:
        # the system names the unfinished file, or none for a write to a full or broken disk; no library says just this
        if error.filename in {None, unfinished} and error.strerror == os.strerror(error.errno or 0):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        with suppress(OSError):  # it has its name, or was never made
            Path(unfinished).unlink()


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file that appears at once and whole, with the mode of the one that it replaces; see `whole_file`.

    Raises:
        OSError: it cannot be written; names the path.
    """
    with whole_file(path.resolve(), None) as file:  # what a link points to
        file.write(content.encode() if isinstance(content, str) else content)


def _new_file(name: str, folder: int | None) -> BinaryIO:
    flags = _FILE_FLAGS | os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb")


@cache
def _umask() -> int:
    """The umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _verified(path: Path, name: str | Path, flags: int, parent: int | None, *, or_root: bool = False) -> int:
    is_folder = flags & os.O_DIRECTORY
    refusal = f"{path} is no plain file: remove it"
    if is_folder:
        refusal = f"{path} is no folder, or a symbolic link: remove it, or name another one"
    try:
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR if is_folder else errno.ENXIO, errno.EISDIR}:
            raise UnsafeFileError(refusal) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not is_folder and not stat.S_ISREG(status.st_mode):
            raise UnsafeFileError(refusal)  # noqa: TRY301  the descriptor is closed below
        _require_own(path, status, or_root=or_root)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_own(path: Path, status: os.stat_result, *, or_root: bool) -> None:
    owners = {os.geteuid(), 0} if or_root else {os.geteuid()}
    if status.st_uid not in owners or status.st_mode & _OTHERS_WRITE:
        raise UnsafeFileError(
            f"{path} must belong to you, and be writable by nobody else (owner {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):o}): change that, or name another one"
        )
