"""A row image of many events as typed columns: what `before`, `after` and message keys become.

An image knows, per column, where the feed left the value out (missing), where it says that it did not send it
(placeholder), and where the value does not fit the column's type (wrong).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.errors import ConfigError
from pipelines.formats import arrow_columns
from pipelines.formats import json_kernels as kernels
from pipelines.formats.fine_times import count_cut
from pipelines.formats.fitting import fitted
from pipelines.formats.json_columns import decode
from pipelines.formats.json_spans import Members, SpanColumn
from pipelines.formats.placeholders import columns_with, find_placeholders
from pipelines.formats.reasons import Reasons, of_values
from pipelines.formats.row_parsing import decoded_by_rows
from pipelines.formats.value_type import ValueType

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Image:
    """Typed columns of one row image per event.

    Attributes:
        present: events that have this image at all.
        columns: by name, in feed order; NULL where missing, not sent or wrong.
        missing: by column, events whose image lacks it; no entry means none does.
        unavailable: by column, events that say the value was not sent; no entry means none.
        wrong: by column, events whose value does not fit, with the reason; no entry means none.
        num_cut: times that were finer than their column.
        repeated: events whose image gives a member twice, and so is none; None if no event's does.
    """

    present: Mask
    columns: Mapping[str, pa.Array]
    missing: Mapping[str, Mask] = field(default_factory=dict)
    unavailable: Mapping[str, Mask] = field(default_factory=dict)
    wrong: Mapping[str, tuple[Mask, Reasons]] = field(default_factory=dict)
    num_cut: int = 0
    repeated: Mask | None = None

    def __len__(self) -> int:
        return len(self.present)

    def renamed(self, names: Mapping[str, str]) -> "Image":
        """The image with other column names.

        Raises:
            ConfigError: two columns would have one name, and one of them would be lost.
        """
        if not names:
            return self
        seen: dict[str, str] = {}
        for name in self.columns:
            new = names.get(name, name)
            if new in seen:
                raise ConfigError(f"rename: the columns {seen[new]} and {name} of the feed would both be {new}")
            seen[new] = name
        return Image(
            self.present,
            {names.get(name, name): value for name, value in self.columns.items()},
            {names.get(name, name): value for name, value in self.missing.items()},
            {names.get(name, name): value for name, value in self.unavailable.items()},
            {names.get(name, name): value for name, value in self.wrong.items()},
            self.num_cut,
            self.repeated,
        )

    def has(self, name: str) -> Mask:
        """Events whose image gives this column a usable value, NULL included."""
        if name not in self.columns:
            return np.zeros(len(self.present), np.bool_)
        given = self.present
        if name in self.missing:
            given = given & ~self.missing[name]
        if name in self.unavailable:
            given = given & ~self.unavailable[name]
        return given & ~self.wrong[name][0] if name in self.wrong else given


@dataclass(frozen=True)
class ArrowMembers:
    """Row images that come as columns already (Parquet, CSV, Avro), with the interface of `json_spans.Members`.

    Attributes:
        columns: by name, one value per event.
        is_object: events that have the image.
    """

    columns: Mapping[str, pa.Array]
    is_object: Mask

    def __len__(self) -> int:
        return len(self.is_object)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.columns)

    def column(self, name: str) -> pa.Array:
        """The column `name`."""
        return self.columns[name]

    def take(self, rows: NDArray[np.int64]) -> "ArrowMembers":
        """The images of these events."""
        places = pa.array(rows)
        return ArrowMembers({name: array.take(places) for name, array in self.columns.items()}, self.is_object[rows])


Columns = Members | ArrowMembers


def typed(
    columns: Columns, types: Mapping[str, ValueType], placeholders: tuple[bytes, ...] = (), *, by_rows: bool = True
) -> Image:
    """The image with each of its columns that `types` names decoded as that type.

    `by_rows` decodes what is usual in one pass over the rows, which is faster and changes nothing.
    """
    arrays: dict[str, pa.Array] = {}
    missing: dict[str, Mask] = {}
    unavailable: dict[str, Mask] = {}
    wrong: dict[str, tuple[Mask, Reasons]] = {}
    present = columns.is_object
    num_cut = 0
    ready = decoded_by_rows(columns, types) if by_rows and isinstance(columns, Members) else {}
    hiding = columns_with(columns, placeholders) if isinstance(columns, Members) else frozenset()
    for name in columns.names:
        if name not in types:
            continue
        column = ready[name] if name in ready else columns.column(name)
        if isinstance(column, SpanColumn):
            lacking = present & (column.kind == kernels.MISSING)
            if lacking.any():
                missing[name] = lacking
            hidden = find_placeholders(column, placeholders) if name in hiding else None
            if hidden is not None:
                unavailable[name] = hidden
                column = column.without(hidden)
            arrays[name], bad = decode(column, types[name])
        else:
            hidden = arrow_columns.find_placeholders(column, placeholders[0]) if placeholders else None
            if hidden is not None:
                unavailable[name] = hidden
                column = pc.if_else(pa.array(hidden), pa.scalar(None, column.type), column)
            arrays[name], bad = arrow_columns.decode(column, types[name])
        into = types[name].into
        if into is not None:
            arrays[name], unfit = fitted(arrays[name], into)
            bad = bad | unfit
        if bad.any():
            wrong[name] = (bad, of_values(name, column, bad, types[name]))
        num_cut += count_cut(column, types[name])
    twice = columns.status == kernels.REPEATED if isinstance(columns, Members) else np.zeros(0, np.bool_)
    return Image(present, arrays, missing, unavailable, wrong, num_cut, twice if twice.any() else None)
