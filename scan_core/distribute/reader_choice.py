"""Which reader a DataFrame was asked for, which it got, and why."""

from dataclasses import dataclass
from typing import Literal

Reader = Literal["auto", "python", "native"]
"""What may be asked: a strategy, or that one be chosen."""


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """What was resolved.

    Attributes:
        asked: "auto", "python" or "native".
        strategy: "native" reads through Spark's own Parquet reader, "python" through our tasks.
        why_not_native: why Spark's reader would not give the scan's rows, or not asked for; None if it is used.
        bits_found_by: who found the rows that the native reader leaves out: "driver", "job", or "cache" where all of them
            were known; None for the python reader.
    """

    asked: Reader
    strategy: Literal["native", "python"]
    why_not_native: str | None = None
    bits_found_by: str | None = None

    def __str__(self) -> str:
        if self.strategy == "native":
            return f"native reader (asked: {self.asked}), dead rows found by {self.bits_found_by}"
        return f"python reader (asked: {self.asked}): {self.why_not_native}"
