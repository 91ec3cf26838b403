"""Files outside of tables: whatever other users do to a shared temporary directory, nothing of theirs is used or waited for."""

import errno
import os
import pickle
import resource
import secrets
import stat
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from nevermore.scan_core.io import private_files
from nevermore.scan_core.io.private_files import (
    PrivateFolder,
    UnsafeFileError,
    cache_folder,
    held_folder,
    private_folder,
    remove_leftovers,
    spill_folder,
    trusted_content,
    user_folder,
    whole_file,
    write_whole,
)
from nevermore.scan_core.keys.equality_index import build_index, find_deleted, shared_index
from nevermore.scan_core.keys.lookup import DeleteKeys
from nevermore.scan_core.model.errors import OptionError
from nevermore.scan_core.model.options import ScanMetrics
from nevermore.scan_core.native import machine_code
from nevermore.scan_core.spark.reports import TaskReports
from tests.support.other_user import Machine, machine, needs_root

INDEX = build_index([DeleteKeys(1, (pa.array([1, 7]),))], [pa.int64()], 1 << 30)


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with machine() as made:
        monkeypatch.setenv("TMPDIR", str(made.shared))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(private_files, "_HELD", {})
        monkeypatch.setattr(private_files, "_SPILL", {})
        yield made
        made.check_unharmed()


def use_all() -> list[Path]:
    """Spill, sweep and share an index; where that went."""
    name = secrets.token_hex(8)
    with spill_folder().create(name) as file:
        file.write(b"rows")
    with spill_folder().read(name) as file:
        assert file.read() == b"rows"
    remove_leftovers()
    for _ in range(2):
        index = shared_index(str(user_folder("indexes").path), "key", lambda: INDEX)
        assert find_deleted(index, [pa.array([1, 2, 7])], 0).tolist() == [True, False, True]
    return [spill_folder().path, user_folder("indexes").path]


FIRST = {
    "another's folder": "mkdir -m 755 $base",
    "another's folder, open to all": "mkdir -m 777 $base; mkdir -m 777 $base/spill $base/indexes",
    "another's folder with links in it": "mkdir -m 755 $base; ln -s $precious $base/spill; ln -s $evil $base/indexes",
    "link to the victim's folder": "ln -s $precious $base",
    "link to the attacker's folder": "ln -s $evil $base",
    "link to nothing": "ln -s $evil/nothing $base",
    "link to itself": "ln -s $base $base",
    "fifo": "mkfifo $base",
    "file": "touch $base",
}


@pytest.mark.each(3)
@needs_root
@pytest.mark.parametrize("attack", FIRST.values(), ids=FIRST.keys())
def test_a_folder_that_another_user_made_first_is_not_used(
    attacked: Machine, attack: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    private_files._warn.cache_clear()
    attacked.attack(attack)
    assert {path.is_relative_to(tmp_path / "cache" / "nevermore") for path in use_all()} == {True}
    assert str(attacked.base) in caplog.text


@needs_root
def test_without_a_usable_folder_a_private_one_serves_this_process(
    attacked: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    private_files._warn.cache_clear()
    attacked.attack("ln -s $precious $base; mkdir -m 777 $shared/home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(attacked.shared / "home"))  # another's
    assert cache_folder() is None
    for path in use_all():
        own = path if path.parent == private_files.temporary_folder() else path.parent
        assert own.parent == private_files.temporary_folder()
        assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700
    assert "set TMPDIR to a folder of your own" in caplog.text


@needs_root
@pytest.mark.parametrize(
    "planted", ["ln -s $precious $base", "mkdir -m 777 $base; ln -s $precious $base/spill", "mkfifo $base"]
)
def test_a_folder_that_is_exchanged_while_it_is_used_gives_and_takes_nothing(attacked: Machine, planted: str) -> None:
    before = use_all()
    assert before[0].parent.parent == attacked.base
    attacked.attack(f"mv $base $shared/away; {planted}")  # the shared folder is not sticky: anybody may
    assert use_all() == before
    assert len(list((attacked.shared / "away" / "spill" / before[0].name).iterdir())) == 3  # with the lock


@needs_root
def test_own_folder_that_became_open_to_others_is_not_used(attacked: Machine, tmp_path: Path) -> None:
    attacked.base.mkdir()
    attacked.base.chmod(0o777)
    attacked.attack("ln -s $precious $base/spill; mkdir -m 777 $base/indexes")
    assert {path.is_relative_to(tmp_path / "cache") for path in use_all()} == {True}


def test_the_sweep_follows_no_link_and_waits_for_no_fifo(attacked: Machine) -> None:
    root = user_folder("spill").path
    (root / "link").symlink_to(attacked.precious)
    (root / "deep").symlink_to(attacked.precious / "run")
    os.mkfifo(root / "fifo")
    for name, make in (("1", os.mkfifo), ("2", lambda p: p.symlink_to(attacked.precious / "lock"))):
        (root / name).mkdir()
        make(root / name / "lock")
    dead = root / "dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "rows").symlink_to(attacked.precious)
    assert remove_leftovers() == 1
    assert not dead.exists()
    assert {p.name for p in root.iterdir()} == {"link", "deep", "fifo", "1", "2"}


class Payload:
    """Unpickled, it leaves a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_nothing_that_is_read_back_is_unpickled(attacked: Machine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = pickle.dumps(Payload(mark))
    folder = user_folder("indexes").path
    for name in ("key", "other"):
        shared_index(str(folder), name, lambda: INDEX)
    for path in folder.glob("*.index"):
        for magic in (b"NVRMIDX1", b"NVRMIDX2", b"NVRMIDX3"):
            path.write_bytes(struct.pack("<8sQQ", magic, 24 + len(code), len(code)) + code)
            use_all()
    assert not mark.exists()
    source = "\n".join(path.read_text() for path in (Path(private_files.__file__), *_readers_of_files()))
    assert "pickle" not in source.replace("unpickle", "")


def _readers_of_files() -> Iterator[Path]:
    root = Path(private_files.__file__).parents[1]
    for path in root.rglob("*.py"):
        if "private_files import" in path.read_text() and path != root / "spark" / "source.py":
            yield path


@pytest.mark.parametrize("flip", [0, 9, 24, 40, 200, -1], ids=str)
def test_an_index_file_with_a_flipped_bit_or_cut_is_built_anew(attacked: Machine, flip: int) -> None:
    folder = user_folder("indexes").path
    shared_index(str(folder), "key", lambda: INDEX)
    (path,) = folder.glob("*.index")
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[flip] ^= 0x10
    for damaged in (bytes(changed), whole[:flip]):
        path.write_bytes(damaged)
        built: list[int] = []
        again = shared_index(str(folder), "key", lambda: built.append(1) or INDEX)  # noqa: B023 - called at once
        assert built == [1]
        assert find_deleted(again, [pa.array([1, 2])], 0).tolist() == [True, False]
        assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_what_lies_in_place_of_an_index_is_neither_read_nor_waited_for(attacked: Machine, kind: str) -> None:
    folder = user_folder("indexes").path
    shared_index(str(folder), "key", lambda: INDEX)
    (path,) = folder.glob("*.index")
    (lock,) = folder.glob("*.lock")
    for place in (path, lock):
        path.unlink()
        lock.unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(place)
        elif kind == "link":
            place.symlink_to(attacked.precious / "diary")
        else:
            place.mkdir()
        if place == path and kind != "folder":
            use_all()
        else:
            with pytest.raises((UnsafeFileError, IsADirectoryError), match=place.name):
                use_all()
        if kind == "folder":
            place.rmdir()
            shared_index(str(folder), "key", lambda: INDEX)


@pytest.mark.parametrize("make", ["another's", "link", "open"])
@needs_root
def test_a_folder_of_the_users_choice_must_be_the_users_own(attacked: Machine, make: str) -> None:
    chosen = attacked.shared / "chosen"
    if make == "another's":
        attacked.attack("mkdir -m 755 $shared/chosen")
    elif make == "link":
        attacked.attack("ln -s $precious $shared/chosen")
    else:
        chosen.mkdir()
        chosen.chmod(0o777)
    with pytest.raises(OptionError, match="chosen"):
        shared_index(str(chosen), "key", lambda: INDEX)
    reports = TaskReports(chosen)
    with pytest.raises(OptionError, match="chosen"):
        reports.write_task(1, 1, ScanMetrics())
    with pytest.raises(OptionError, match="chosen"):
        reports.total()


def test_reports_that_are_no_plain_files_are_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "chosen"
    reports = TaskReports(folder)
    reports.write_task(1, 1, ScanMetrics(), 1)
    assert reports.stage_ids == (1,)
    os.mkfifo(folder / "stage-000002-split-000001.json")
    with pytest.raises(UnsafeFileError, match="stage-000002"):
        reports.total()


@pytest.mark.parametrize("kind", ["fifo", "link", "open folder", "open file", "device"])
def test_machine_code_is_believed_only_from_a_plain_file_of_a_private_folder(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir(mode=0o755)
    path = folder / "kernels.bin"
    path.write_bytes(b"code")
    path.chmod(0o644)
    assert trusted_content(path) == b"code"
    match kind:
        case "fifo":
            path.unlink()
            os.mkfifo(path)
        case "link":
            path.rename(tmp_path / "download")
            path.symlink_to(tmp_path / "download")
        case "open folder":
            folder.chmod(0o777)
        case "open file":
            path.chmod(0o666)
        case "device":
            path = Path("/dev/zero")
    assert trusted_content(path) is None


def test_kernels_are_kept_in_no_folder_that_others_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    folder.chmod(0o777)
    own = tmp_path / "own"
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([folder, own]))
    machine_code._keep(b"code", {})
    assert not list(folder.iterdir())
    assert [stat.S_IMODE(p.stat().st_mode) for p in own.iterdir()] == [0o644]


def write_csv(path: Path) -> None:
    with whole_file(path) as file:
        pyarrow.csv.write_csv(pa.table({"a": range(9999)}), file)


def test_a_file_that_a_user_named_replaces_a_link_and_is_whole(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "out"
    victim.write_text("own")
    path.symlink_to(victim)
    with pytest.raises(TypeError), whole_file(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert path.is_symlink()
    with whole_file(path) as file:
        file.write(b"all")
    assert (path.read_bytes(), victim.read_text()) == (b"all", "own")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "victim"]


@pytest.mark.parametrize(
    "write", [lambda path: write_whole(path, "new" * 9999), write_csv], ids=["at once", "as a stream"]
)
def test_a_full_disk_is_told_with_the_file_which_stays_as_it_was(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match=f"File too large: '{path}'"):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("function", ["open", "fchmod", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_file_that_cannot_be_made_is_told_by_the_name_that_the_user_gave(
    function: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"

    def fails(*paths: object, **_: object) -> None:
        raise OSError(code, os.strerror(code), *[os.fspath(one) for one in paths[:1] if not isinstance(one, int)])

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fails)
        with pytest.raises(OSError, match=f"{os.strerror(code)}: '{path}'$"):
            write_whole(path, "new")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("place", ["no folder/out", "file/out", "folder"])
def test_a_file_that_cannot_be_made_here_is_told_by_its_name(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    before = {*tmp_path.rglob("*")}
    with pytest.raises(OSError, match=rf"^\[Errno \d+\] [^/>]+: '{tmp_path / place}'$"):
        write_whole(tmp_path / place, "new")
    assert {*tmp_path.rglob("*")} == before


def test_an_error_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"/of a table'$"), whole_file(tmp_path / "out"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/of a table")


def test_a_folder_that_is_removed_while_it_is_used_is_made_again(attacked: Machine) -> None:
    first = spill_folder().path
    for path in sorted(attacked.base.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    attacked.base.rmdir()
    assert spill_folder().path != first
    use_all()


def test_folders_are_private_and_names_are_taken_once(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert isinstance(folder, PrivateFolder)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    with folder, folder.create("x"):
        assert stat.S_IMODE(folder.status("x").st_mode) == 0o600
        with pytest.raises(FileExistsError):
            folder.create("x")
        (tmp_path / "a" / "b" / "y").symlink_to(tmp_path / "a" / "b" / "x")
        with pytest.raises(UnsafeFileError, match="y is no plain file"):
            folder.read("y")
    assert held_folder(tmp_path / "a") is held_folder(tmp_path / "a")


@pytest.mark.parametrize("within", ["threads", "a fork"])
def test_names_are_whole_while_others_list_the_same_folder(tmp_path: Path, within: str) -> None:
    """A listing through one descriptor moves the position of all others."""
    expected = {f"{i:04d}" for i in range(2_000)}
    with private_folder(tmp_path / "listed") as folder:
        for name in expected:
            folder.create(name).close()
        if within == "threads":
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(lambda _: set(folder.names()), range(40)))
            assert all(names == expected for names in found)
        elif (child := os.fork()) == 0:
            with suppress(BaseException):
                for _ in range(40):
                    folder.names()
            os._exit(0)
        else:
            found = [set(folder.names()) for _ in range(40)]
            os.waitpid(child, 0)
            assert all(names == expected for names in found)


def test_a_chosen_folder_for_kernels_that_others_may_write_to_is_named_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chosen, own = tmp_path / "chosen", tmp_path / "own"
    chosen.mkdir()
    chosen.chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(chosen))
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([chosen, own]))
    machine_code._keep(b"code", {})
    assert f"{chosen} must belong to you, and be writable by nobody else" in caplog.text
    assert len(list(own.iterdir())) == 1


def test_a_file_behind_a_link_is_written_where_it_is(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
