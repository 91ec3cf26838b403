"""Arrays that end, or begin, at a page that no one may touch: an access outside of them ends the process."""

import ctypes
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS = 0


def guarded(array: NDArray[Any], *, at_end: bool) -> NDArray[Any]:
    """A copy between two protected pages, as close to the last as may be (`at_end`) or to the first."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    last = (pages + 1) * mmap.PAGESIZE
    first = last - array.nbytes if at_end else mmap.PAGESIZE
    copy = np.ndarray(array.shape, array.dtype, memory, first)
    copy[...] = array
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, last):
        if _LIBC.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(mmap.PAGESIZE), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")
    copy.flags.writeable = array.flags.writeable
    return copy
