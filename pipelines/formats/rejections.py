"""Which changes of a table are refused, each for the first reason found."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.formats.image import Image
from pipelines.formats.json_events import TWICE

Mask = NDArray[np.bool_]


class Rejections:
    """Changes that are refused, each for the first reason found."""

    def __init__(self, count: int) -> None:
        self.mask: Mask = np.zeros(count, np.bool_)
        self._reason_of = np.zeros(count, np.int32)
        self._reasons: list[str] = []

    def add(self, mask: Mask, reason: str) -> None:
        """Refuse the changes of `mask` that are not refused yet."""
        fresh = mask & ~self.mask
        if fresh.any():
            self._reason_of[fresh] = len(self._reasons)
            self._reasons.append(reason)
            self.mask = self.mask | fresh

    def any(self) -> bool:
        """Whether any change is refused."""
        return bool(self._reasons)

    def reasons(self) -> pa.StringArray:
        """One reason per refused change, in order."""
        return pa.array(self._reasons, pa.string()).take(pa.array(self._reason_of[self.mask]))


def reject_images(rejections: Rejections, after: Image, others: Iterable[Image], written: Mask) -> None:
    """Refuse changes whose images are none, and those that write a row with a value that does not fit."""
    for image in (after, *others):
        if image.repeated is not None:
            rejections.add(image.repeated, TWICE)
    rejections.add(written & ~after.present, "event without a row: no after")
    for mask, reason in after.wrong.values():
        rejections.add(written & mask, reason)
