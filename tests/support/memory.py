"""How much memory a process of a test had at most."""

import inspect
from pathlib import Path


def peak_bytes() -> int:
    """The most memory that this program had so far.

    `ru_maxrss` is not it: the kernel keeps it through `exec`, so that of a child begins with what its parent had.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


PEAK_BYTES = f"from pathlib import Path\n\n{inspect.getsource(peak_bytes)}"
"""The function as text, for programs that a test starts."""
