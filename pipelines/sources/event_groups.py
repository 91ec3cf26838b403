"""What a source is told about events that belong together: transactions, and the rows before and after an update.

Which events these are is known to the formats; how batches are cut is the business of `raw_batching.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Complete:
    """How many of some events, from the first on, need none of those that follow.

    Attributes:
        num_events: so many; the others are the begin of a group.
        of_transactions: a group is a transaction, which is applied as a whole but may be decoded in parts. Others are
            decoded together.
    """

    num_events: int
    of_transactions: bool


CompleteEvents = Callable[[pa.BinaryArray | pa.Table], Complete | None]
"""How far some events, documents or rows, are complete; None where nothing says that any of them belong together."""
