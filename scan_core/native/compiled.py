"""Which work the compiled kernels do: all of it where their machine code exists, else NumPy does the same work.

A scan never compiles: that takes seconds, and saves a first query less. The code comes with the package, or an ingest
or `python -m nevermore.pipelines.cli.compile_kernels` leaves it for the processes after it. Results do not depend on it.
"""

import os

from nevermore.scan_core.native.machine_code import (
    KEYS,
    Kernel,
    Kernels,
    is_available,
    is_compiled,
    is_loaded,
    plain_kernel,
    unit_of,
)

SWITCH = "NEVERMORE_KERNELS"
"""With this environment variable set to `off`, NumPy does all the work: LLVM's loader takes about 50 MB of a process."""


def is_missed() -> bool:
    """Whether NumPy does all the work because there are no compiled kernels: a fallback to be counted."""
    return _is_on() and not (is_available() and is_compiled())


def load() -> Kernels:
    """The kernels, loaded now if they are not yet, and compiled if their machine code does not exist."""
    return unit_of(KEYS)


def stored_kernels() -> Kernels | None:
    """The kernels if they can be used and have been compiled before; else None."""
    is_ready = _is_on() and is_available() and (is_loaded(KEYS) or is_compiled())
    return load() if is_ready else None


_FEW_BYTES = 64 * 1024
"""Python reads them while LLVM's loader would start, which takes about 50 MB of a process."""


def kernel_or_plain(name: str, num_bytes: int) -> Kernel:
    """A kernel of `avro_kernels.py` for so many bytes: as machine code, or run by Python, whose plans take twice the time."""
    kernels = stored_kernels() if num_bytes > _FEW_BYTES or is_loaded(KEYS) else None
    return plain_kernel(name) if kernels is None else kernels[name]


def _is_on() -> bool:
    return os.environ.get(SWITCH) != "off"
