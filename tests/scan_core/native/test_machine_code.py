"""Machine code is kept for the next process, and believed only if it is whole, of this machine and one's own."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scan_core.native import compiled, machine_code
from scan_core.options import ScanOptions

Code = tuple[bytes, dict[str, str]]


@pytest.fixture(scope="module")
def code() -> Code:
    compiled.load()
    kept = machine_code._kept()
    assert kept is not None
    unpacked = machine_code._unpacked(kept)
    assert unpacked is not None
    return unpacked


@pytest.fixture
def folder(tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([tmp_path / "new" / "folder"]))
    monkeypatch.setattr(machine_code, "_compiled", lambda: code)
    return tmp_path / "new" / "folder"


def works(kernels: machine_code.Kernels) -> bool:
    total = np.zeros(3, np.uint64)
    kernels["hash_codes"](np.array([5, 7], np.uint64), np.array([0, 1, 1], np.int32), 3, total)
    return total.tolist() == [5, 7, 7]


def test_code_compiled_once_is_found_by_the_next_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not machine_code.is_compiled()
    assert works(machine_code.load_kernels())
    assert machine_code.is_compiled()
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setattr(machine_code, "_compiled", lambda: pytest.fail("compiled again"))
    assert works(machine_code.load_kernels())


def test_a_damaged_file_is_replaced(folder: Path) -> None:
    machine_code.load_kernels()
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert machine_code._unpacked(path.read_bytes()) is None
    assert works(machine_code.load_kernels())
    assert machine_code._unpacked(path.read_bytes()) is not None


def test_a_file_that_others_may_write_to_is_not_believed(folder: Path) -> None:
    machine_code.load_kernels()
    (path,) = folder.iterdir()
    path.chmod(0o666)
    assert not machine_code.is_compiled()


def test_code_for_another_processor_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code.load_kernels()
    (path,) = folder.iterdir()
    monkeypatch.setattr(machine_code, "_features", lambda: "+another")
    assert machine_code._unpacked(path.read_bytes()) is None


def test_kernels_work_where_no_folder_takes_the_file(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([Path("/proc/none")]))
    monkeypatch.setattr(machine_code, "_compiled", lambda: code)
    assert works(machine_code.load_kernels())


def test_user_without_a_home_has_no_folder_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(path: Path) -> Path:
        raise RuntimeError(f"no home for {path}")

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    assert list(machine_code._folders()) == [Path(machine_code.__file__).parent / "__pycache__"]


def test_values_of_another_type_or_with_gaps_are_refused() -> None:
    kernels = compiled.load()
    with pytest.raises(TypeError, match="contiguous uint64 values, not int64"):
        kernels["finish"](np.zeros(4, np.int64), 4, 1)
    with pytest.raises(TypeError, match="contiguous"):
        kernels["finish"](np.zeros(8, np.uint64)[::2], 4, 1)


def test_code_shipped_with_the_package_is_found_without_a_folder(
    tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content = machine_code.machine_code_file()
    shutil.copytree(Path(machine_code.__file__).parents[1], tmp_path / "scan_core", ignore=lambda *_: {"__pycache__"})
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(content)
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path, "scan_core")
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "from scan_core.native import machine_code\n"
        "machine_code._folders = lambda: iter([])\n"
        "machine_code.load_kernels()['hash_codes']; print(machine_code.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": archive},
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert archive in done.stdout


@pytest.mark.parametrize("missing", ["llvmlite", "numba"])
def test_without_a_way_to_load_code_numpy_does_the_work_and_that_is_counted(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_code.is_available.cache_clear()
    monkeypatch.setattr(machine_code, "find_spec", lambda name: None if name == missing else object())
    monkeypatch.setattr(machine_code, "_kept", lambda: None)
    options = ScanOptions()
    assert not compiled.may_use_numba(options)
    assert compiled.is_missed(options)
    assert not compiled.is_missed(ScanOptions(use_numba=False))
    machine_code.is_available.cache_clear()
