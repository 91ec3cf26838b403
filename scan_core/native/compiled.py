"""When to use the compiled kernels: loading them costs time that a short query never earns back.

NumPy does the work until it has spent as much time as loading would cost; from then on, and in every later query of
the process, the kernels do. Results do not depend on the choice. `load` is for workers that live long.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nevermore.scan_core.model.options import ScanOptions
from nevermore.scan_core.native.machine_code import Kernels, is_available, is_compiled, load_kernels

LOAD_SECONDS = 0.05
"""What loading machine code costs that an earlier process has left."""
COMPILE_SECONDS = 0.5
"""What may be spent before kernels are compiled, which takes eight times as long, once per machine."""


_LIMIT_BYTES = 256 * 1024**2
"""LLVM's loader takes about 50 MB, compiling 100 MB more: below this memory limit NumPy does the work."""


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernels: Kernels | None = None
        self.is_compiled: bool | None = None
        self.numpy_seconds = 0.0


_STATE = _State()


def _unlock() -> None:
    """In a forked process the thread that held the lock does not exist, and would never release it."""
    _STATE.lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def may_use_numba(options: ScanOptions) -> bool:
    """Whether compiled kernels are allowed, fit into memory, and are available in this environment."""
    return options.switches.use_numba and options.memory_limit_bytes >= _LIMIT_BYTES and is_available()


def is_missed(options: ScanOptions) -> bool:
    """Whether NumPy does all the work because this environment cannot load compiled kernels: a fallback to be counted."""
    return options.switches.use_numba and not is_available()


def load() -> Kernels:
    """The kernels, loaded now if they are not yet."""
    with _STATE.lock:
        if _STATE.kernels is None:
            _STATE.kernels = load_kernels()
        return _STATE.kernels


def kernels_if_worthwhile(*, use_numba: bool) -> Kernels | None:
    """The kernels if they are allowed and loaded, or if NumPy has spent the time that loading costs; else None."""
    if not use_numba:
        return None
    if _STATE.kernels is None:
        if _STATE.numpy_seconds < LOAD_SECONDS:
            return None
        if _STATE.is_compiled is None:
            _STATE.is_compiled = is_compiled()
        if not _STATE.is_compiled and _STATE.numpy_seconds < COMPILE_SECONDS:
            return None
    return load()


@contextmanager
def measured(kernels: Kernels | None) -> Iterator[None]:
    """Count the time of the body as spent by NumPy, unless kernels do the work."""
    if kernels is not None:
        yield
        return
    begin = time.thread_time()
    try:
        yield
    finally:
        _STATE.numpy_seconds += time.thread_time() - begin
