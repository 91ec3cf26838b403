"""Machine code is kept for the next process, and believed only if it is whole, of this machine and one's own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nevermore.pipelines.jsonscan.object_kernels import split_frames
from nevermore.pipelines.jsonscan.value_kernels import skip_value
from nevermore.scan_core.model.errors import MissingPackageError, ScanError
from nevermore.scan_core.native import compiled, machine_code
from tests.kernels.found import REPOSITORY
from tests.support.kernels_used import kernels_used

Code = tuple[bytes, dict[str, list[str]]]


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
    monkeypatch.setattr(machine_code, "_compiled", lambda _unit: code)
    return tmp_path / "new" / "folder"


def works(kernels: machine_code.Kernels) -> bool:
    counts = np.zeros(2, np.uint32)
    end = kernels["count_bits"](np.array([5, 7], np.uint64), 2, 1, counts)
    return (end, counts.tolist()) == (6, [1, 3])


def test_code_compiled_once_is_found_by_the_next_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not machine_code.is_compiled()
    assert works(machine_code.load_kernels())
    assert machine_code.is_compiled()
    assert len(list(folder.glob("*.bin"))) == 1
    monkeypatch.setattr(machine_code, "_compiled", lambda _unit: pytest.fail("compiled again"))
    assert works(machine_code.load_kernels())


def test_a_damaged_file_is_replaced(folder: Path) -> None:
    machine_code.load_kernels()
    (path,) = folder.glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert machine_code._unpacked(path.read_bytes()) is None
    assert works(machine_code.load_kernels())
    assert machine_code._unpacked(path.read_bytes()) is not None


def test_a_file_that_others_may_write_to_is_not_believed(folder: Path) -> None:
    machine_code.load_kernels()
    (path,) = folder.glob("*.bin")
    path.chmod(0o666)
    assert not machine_code.is_compiled()


def test_code_for_another_processor_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_code.load_kernels()
    (path,) = folder.glob("*.bin")
    monkeypatch.setattr(machine_code, "_features", lambda: "+another")
    assert machine_code._unpacked(path.read_bytes()) is None


def test_kernels_work_where_no_folder_takes_the_file(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([Path("/proc/none")]))
    monkeypatch.setattr(machine_code, "_compiled", lambda _unit: code)
    assert works(machine_code.load_kernels())


def test_user_without_a_home_has_no_folder_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(path: Path) -> Path:
        raise RuntimeError(f"no home for {path}")

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", nowhere)
    assert list(machine_code._folders()) == [Path(machine_code.__file__).parent / "__pycache__"]


def test_values_of_another_type_or_with_gaps_are_refused() -> None:
    kernels, counts = compiled.load(), np.zeros(4, np.uint32)
    with pytest.raises(TypeError, match="contiguous uint64 values, not int64"):
        kernels["count_bits"](np.zeros(4, np.int64), 4, 1, counts)
    with pytest.raises(TypeError, match="contiguous"):
        kernels["count_bits"](np.zeros(8, np.uint64)[::2], 4, 1, counts)


def test_code_shipped_with_the_package_is_found_without_a_folder(
    tmp_path: Path, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content = machine_code.machine_code_file()
    shutil.copytree(
        Path(machine_code.__file__).parents[1], tmp_path / "nevermore" / "scan_core", ignore=lambda *_: {"__pycache__"}
    )
    (tmp_path / name).parent.mkdir()
    (tmp_path / "nevermore" / "__init__.py").touch()
    (tmp_path / name).write_bytes(content)
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path, "nevermore")
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "from nevermore.scan_core.native import machine_code\n"
        "machine_code._folders = lambda: iter([])\n"
        "machine_code.load_kernels()['count_bits']; print(machine_code.__file__)"
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
    monkeypatch.setattr(machine_code, "_kept", lambda _unit="": None)
    assert compiled.stored_kernels() is None
    assert compiled.is_missed()
    with kernels_used(are_on=False):
        assert not compiled.is_missed()
    machine_code.is_available.cache_clear()


def test_where_code_is_needed_but_cannot_be_loaded_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.raises(MissingPackageError, match=re.escape("pip install 'nevermore-iceberg[fast]'")):
        machine_code.is_compiled()


_CALLEE = """
import numpy as np
from constants import ADDED
from nevermore.scan_core.native.machine_code import inlined
SUM = np.arange({first}, {first} + 3)

@inlined
def changed(value):
    return value * {factor} + ADDED + SUM[np.uint64(0)]
"""
_KERNEL = """
from changing import changed
from nevermore.scan_core.native.machine_code import kernel

@kernel("i64 u8[] i64[]=")
def compute(value, data, out):
    if len(out) < 1:
        raise IndexError("none")
    out[0] = changed(value)
    return out[0], len(data) == 2
"""


def run_changed(tmp_path: Path, factor: int, added: int, first: int) -> list[str]:
    """What the kernel computes with this code beside it, and whether it was compiled."""
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "calling.py").write_text(_KERNEL)
    (code / "changing.py").write_text(_CALLEE.format(factor=factor, first=first))
    (code / "constants.py").write_text(f"ADDED = {added}\n")
    for path in code.glob("*.py"):  # same size and same time of change: neither may decide what is run
        os.utime(path, (1_700_000_000, 1_700_000_000))
    script = (
        "import numpy as np; from calling import compute; import sys\n"
        "out = np.zeros(1, np.int64)\n"
        "print(*compute(7, np.zeros(2, np.uint8), out), out[0], 'numba' in sys.modules)"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(code)}
    command = [sys.executable, "-B", "-c", script]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stderr.count("Compiling code for this machine, once") == ("True" in done.stdout.split()[-1])
    return done.stdout.split()


@pytest.mark.slow
def test_a_change_of_what_a_kernel_calls_in_another_module_is_run(tmp_path: Path) -> None:
    assert run_changed(tmp_path, 2, 1, 0) == ["15", "True", "15", "True"]
    assert run_changed(tmp_path, 3, 1, 0) == ["22", "True", "22", "True"]


@pytest.mark.slow
def test_a_change_of_a_value_that_a_kernel_reads_is_run(tmp_path: Path) -> None:
    assert run_changed(tmp_path, 3, 1, 0) == ["22", "True", "22", "True"]
    assert run_changed(tmp_path, 3, 5, 0) == ["26", "True", "26", "True"]
    assert run_changed(tmp_path, 3, 5, 4) == ["30", "True", "30", "True"]
    assert run_changed(tmp_path, 3, 5, 4) == ["30", "True", "30", "False"]


def test_an_array_kernel_takes_only_what_its_signature_says() -> None:
    data, out = np.zeros(3, np.uint8), np.zeros((1, 2), np.int64)
    assert split_frames(data, out) == (0, 0, True)
    with pytest.raises(TypeError, match="data of the kernel split_frames are contiguous uint8 values in 1 dim"):
        split_frames(data.astype(np.int8), out)
    with pytest.raises(TypeError, match="contiguous"):
        split_frames(np.zeros(6, np.uint8)[::2], out)
    with pytest.raises(TypeError, match="2 dimensions, not int64 in 1"):
        split_frames(data, out[0])
    out.flags.writeable = False
    with pytest.raises(TypeError, match="spans of the kernel split_frames is written to"):
        split_frames(data, out)
    with pytest.raises(TypeError, match="takes 2 arguments, not 1"):
        split_frames(data)
    with pytest.raises(IndexError, match="too short or points outside"):
        split_frames(data, np.zeros((1, 1), np.int64))


def test_functions_that_kernels_call_are_not_for_python() -> None:
    with pytest.raises(TypeError, match=r"value_kernels\.skip_value is called by compiled kernels alone"):
        skip_value()


def test_without_numba_and_without_a_file_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "find_spec", lambda _name: None)
    monkeypatch.setattr(machine_code, "_kept", lambda _unit="": None)
    monkeypatch.setattr(machine_code, "_folders", lambda: iter([]))
    with pytest.raises(ScanError, match="object_kernels must be made here, but Numba is not installed"):
        machine_code.load_kernels("nevermore.pipelines.jsonscan.object_kernels")


def test_kernels_declare_themselves_and_machine_code_imports_none() -> None:
    assert "native import kernels" not in Path(machine_code.__file__).read_text(encoding="utf-8")
    program = "from nevermore.scan_core.native import machine_code\nprint(*machine_code.signatures())"
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split()
    assert {"hash_bytes32", "find", "read_values"} <= set(found)
