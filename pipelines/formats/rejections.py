"""Which changes of a table are refused, each for the first reason found."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.formats.image import Image
from pipelines.formats.json_events import TWICE
from pipelines.formats.reasons import Reasons

Mask = NDArray[np.bool_]


class Rejections:
    """Changes that are refused, each for the first reason found."""

    def __init__(self, count: int) -> None:
        self.mask: Mask = np.zeros(count, np.bool_)
        self._reason_of = np.zeros(count, np.int32)
        self._reasons: list[Reasons] = []

    def add(self, mask: Mask, reason: Reasons) -> None:
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
        found = pa.nulls(len(self.mask), pa.string())
        for number, reason in enumerate(self._reasons):
            found = pc.if_else(pa.array(self.mask & (self._reason_of == number)), reason, found)
        return found.filter(pa.array(self.mask))


def reject_images(rejections: Rejections, after: Image, others: Iterable[Image], written: Mask) -> None:
    """Refuse changes whose images are none, and those that write a row with a value that does not fit."""
    for image in (after, *others):
        if image.repeated is not None:
            rejections.add(image.repeated, TWICE)
    rejections.add(written & ~after.present, "event without a row: no after")
    for mask, reason in after.wrong.values():
        rejections.add(written & mask, reason)
