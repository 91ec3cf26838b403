"""Compiles all kernels of the product in a new environment: `python -m nevermore.pipelines.cli.compile_kernels`.

Otherwise each kernel is compiled by the first command that needs it, which then takes seconds longer.
"""

import importlib
import logging
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from nevermore.scan_core.native import KEYS, load_kernels, uncompiled

MODULES = (
    "nevermore.pipelines.jsonscan.object_kernels",
    "nevermore.pipelines.jsonscan.text_kernels",
    "nevermore.pipelines.formats.mysql_json_kernels",
    "nevermore.pipelines.formats.mysql_kernels",
    "nevermore.pipelines.formats.pgoutput_kernels",
    "nevermore.pipelines.sources.csv_file",
)
"""Packages that declare kernels."""
_PROCESSES = 2
"""Maximum processes; each imports Numba and compiles the functions that all kernels share."""


def compile_all() -> int:
    """Compile what is not yet compiled for this machine; return the number of modules.

    Raises:
        ScanError: Numba is not installed.
    """
    for module in MODULES:
        importlib.import_module(module)
    missing = uncompiled((KEYS, *MODULES))
    if missing:
        with ProcessPoolExecutor(_PROCESSES, get_context("spawn"), logging.disable) as pool:
            list(pool.map(_compile, missing))
    return len(missing)


def _compile(module: str) -> None:
    importlib.import_module(module)
    load_kernels(module)


if __name__ == "__main__":
    compile_all()
