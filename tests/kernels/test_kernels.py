"""Compiled kernels touch nothing outside of their arrays, whatever they are given.

The machine code that is shipped runs on arrays between protected pages, and the same cases run with a check of every
index; both must come to the same, which is a result or a refusal.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nevermore.pipelines.cli.compile_kernels import MODULES
from nevermore.scan_core.native.machine_code import ArrayKernel
from tests.kernels import array_cases, pointer_cases
from tests.kernels.found import REPOSITORY, declared, entries, importers, reached


def run(first: int, last: int, **environment: str) -> list[str]:
    command = [sys.executable, "-m", "tests.kernels.worker", str(first), str(last)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"died of {lines[-1:]} with {done.returncode}: {done.stderr[-2000:]}"
    wrong = [line for line in lines if line.partition(": ")[2].isupper()]
    assert not wrong, wrong[:20]
    return lines


def test_every_kernel_has_cases() -> None:
    known = set(array_cases.CASES) | set(pointer_cases.CASES)
    assert entries() == known
    assert reached(known) >= set(declared())


def test_all_modules_with_kernels_are_compiled_with_an_environment() -> None:
    own = {name.rpartition(".")[0] for name, found in declared().items() if isinstance(found, ArrayKernel)}
    assert sorted(own) == sorted(MODULES)


def test_nothing_else_reaches_memory_by_address() -> None:
    # the dataset reads the metadata of a schema, of which pyarrow keeps only one value of a repeated key
    own = {
        "nevermore.scan_core.native.machine_code",
        "nevermore.pipelines.jsonscan.value_kernels",
        "nevermore.scan_core.foreign.dataset",
    }
    own.add("nevermore.scan_core.rows.buffers")  # asks the C library to give freed memory back
    assert importers("ctypes", "cffi", "llvmlite", "numba", "cython", "pybind11") == own


@pytest.mark.slow
def test_shipped_kernels_stay_within_their_arrays() -> None:
    lines = run(0, 1)
    assert {line.split()[0] for line in lines} == set(array_cases.CASES) | set(pointer_cases.CASES)
    assert any(line.endswith(": refused") for line in lines)


@pytest.mark.parametrize("place", [-1, 3])
def test_an_access_beside_an_array_ends_the_process(place: int) -> None:
    code = (
        "import sys, ctypes, numpy as np\n"
        "from tests.kernels.guarded import guarded\n"
        "array = guarded(np.arange(3, dtype=np.uint8), at_end=int(sys.argv[1]) > 0)\n"
        "assert array.tolist() == [0, 1, 2]\n"
        "print(ctypes.string_at(array.ctypes.data + int(sys.argv[1]), 1))\n"
    )
    command = [sys.executable, "-c", code, str(place)]
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False).returncode < 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kernels_that_check_every_index_find_nothing_and_agree_with_the_shipped_ones(tmp_path: Path) -> None:
    shipped = run(0, 50)
    checked = run(0, 50, NEVERMORE_KERNEL_CHECKS="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert len(checked) > 10_000
    assert set(checked) <= set(shipped)
