"""Python's garbage collector in processes that commit again and again: full collections must not cost a commit its time.

A full collection walks every object that lives: what imports left, snapshots, cached manifests; up to 100 ms at a moment
of its choosing. Here that moment is between rounds.
"""

import atexit
import gc

RARELY = 1_000
"""Collections of the middle generation before a full one comes by itself: some millions of new objects."""


def settle() -> None:
    """Leave what is there now out of all collections to come; for the owner of a process, after its imports."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # extension modules look for leaks when the interpreter ends
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, RARELY)


def collect() -> None:
    """Collect everything now, when nobody waits."""
    gc.collect()
