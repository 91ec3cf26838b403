"""Named places at which tests end a run, chosen with NEVERMORE_CRASH_AT."""

import os
from collections import Counter
from typing import Literal

CrashPoint = Literal["after-files", "after-manifests", "after-commit", "before-acknowledgement"]
VARIABLE = "NEVERMORE_CRASH_AT"
EXIT_CODE = 137

_reached: Counter[str] = Counter()


def reached(point: CrashPoint) -> None:
    """Tell that the run is at `point`."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, _, time = wanted.partition(":")
    _reached[point] += 1
    if name == point and _reached[point] == int(time or 1):
        os._exit(EXIT_CODE)
