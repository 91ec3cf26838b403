"""When to use the compiled kernels: loading Numba costs about half a second, which a short query never earns back.

NumPy does the work until it has spent as much time as loading would cost; from then on, and in every later query of
the process, the kernels do. Results do not depend on the choice. `load` is for workers that live long.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

LOAD_SECONDS = 0.5
"""What importing Numba and cached kernels costs; without a cache it is two seconds more, once per machine."""


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernels: ModuleType | None = None
        self.numpy_seconds = 0.0


_STATE = _State()


def load() -> ModuleType:
    """The kernels, loaded now if they are not yet."""
    with _STATE.lock:
        if _STATE.kernels is None:
            _STATE.kernels = import_module("scan_core.index.kernels")
        return _STATE.kernels


def kernels_if_worthwhile(*, use_numba: bool) -> ModuleType | None:
    """The kernels if they are allowed and loaded, or if NumPy has spent the time that loading costs; else None."""
    if not use_numba:
        return None
    if _STATE.kernels is None and _STATE.numpy_seconds < LOAD_SECONDS:
        return None
    return load()


@contextmanager
def measured(kernels: ModuleType | None) -> Iterator[None]:
    """Count the time of the body as spent by NumPy, unless kernels do the work."""
    if kernels is not None:
        yield
        return
    begin = time.thread_time()
    try:
        yield
    finally:
        _STATE.numpy_seconds += time.thread_time() - begin
