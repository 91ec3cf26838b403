"""Which work the compiled kernels do: all of it where their machine code exists, else NumPy does the same work.

A scan never compiles: that takes seconds, and saves a first query less. The code comes with the package, or an ingest
or `python -m nevermore.pipelines.cli.compile_kernels` leaves it for the processes after it. Results do not depend on it.
"""

import os
import threading

from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.native.machine_code import Kernels, is_available, is_compiled, load_kernels

_LIMIT_BYTES = 256 * 1024**2
"""LLVM's loader takes about 50 MB: below this memory limit NumPy does the work."""


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernels: Kernels | None = None


_STATE = _State()


def _unlock() -> None:
    """In a forked process the thread that held the lock does not exist, and would never release it."""
    _STATE.lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def may_use_numba(options: ScanOptions) -> bool:
    """Whether compiled kernels are allowed, fit into memory, and are available in this environment."""
    return options.switches.use_numba and options.memory_limit_bytes >= _LIMIT_BYTES and is_available()


def is_missed(options: ScanOptions) -> bool:
    """Whether NumPy does all the work because there are no compiled kernels: a fallback to be counted."""
    return options.switches.use_numba and not (is_available() and is_compiled())


def load() -> Kernels:
    """The kernels, loaded now if they are not yet, and compiled if their machine code does not exist."""
    with _STATE.lock:
        if _STATE.kernels is None:
            _STATE.kernels = load_kernels()
        return _STATE.kernels


def stored_kernels(*, use_numba: bool) -> Kernels | None:
    """The kernels if they are allowed and have been compiled before; else None."""
    if not use_numba:
        return None
    return load() if _STATE.kernels is not None or is_compiled() else None
