"""The same work by compiled kernels and by NumPy, for tests that compare them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from nevermore.scan_core.native.compiled import SWITCH


@contextmanager
def kernels_used(*, are_on: bool) -> Iterator[None]:
    """Within the block, compiled kernels do their part of the work, or NumPy does all of it."""
    with patch.dict(os.environ, {SWITCH: "on" if are_on else "off"}):
        yield
