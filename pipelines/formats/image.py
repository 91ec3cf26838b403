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
from pipelines.formats import arrow_columns, row_kernels, text_kernels
from pipelines.formats import json_kernels as kernels
from pipelines.formats.fine_times import count_cut
from pipelines.formats.fitting import fitted
from pipelines.formats.inference import InferenceOptions, infer
from pipelines.formats.json_columns import decode
from pipelines.formats.json_spans import Members, SpanColumn
from pipelines.formats.plain_types import plain_type
from pipelines.formats.reasons import Reasons, of_values
from pipelines.formats.row_parsing import decoded_by_rows
from pipelines.formats.value_type import ValueType, from_arrow

Mask = NDArray[np.bool_]

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"


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


def placeholder_patterns(placeholder: str) -> tuple[bytes, ...]:
    """The forms in which Debezium writes the placeholder of a value it did not send, by the column's type."""
    from base64 import b64encode

    encoded = b64encode(placeholder.encode()).decode()
    texts = (
        placeholder,
        encoded,
        f'["{placeholder}"]',
        f'["{encoded}"]',
        *(f'{{"{placeholder}":{space}"{placeholder}"}}' for space in ("", " ")),
        *("[" + comma.join(str(b) for b in placeholder.encode()) + "]" for comma in (",", ", ")),
    )
    return tuple(text.encode() for text in texts)


def without(column: SpanColumn, placeholders: tuple[bytes, ...]) -> SpanColumn:
    """The column with NULL in place of placeholders."""
    hidden = find_placeholders(column, placeholders)
    return column if hidden is None else column.without(hidden)


def _columns_with(members: Members, placeholders: tuple[bytes, ...]) -> frozenset[str]:
    """The columns in which any placeholder stands: usually none, so all are asked at once."""
    if not placeholders or not members.names:
        return frozenset()
    found = np.zeros(len(members.names), np.bool_)
    offsets = np.cumsum([0, *(len(p) for p in placeholders)], dtype=np.int32)
    kinds = np.array([_kind_of(p) for p in placeholders], np.int8)
    patterns = np.frombuffer(b"".join(placeholders), np.uint8)
    asked = members.kinds[:, kernels.STRING :].any(axis=1)
    spans = (members.start, members.end, members.kind)
    row_kernels.find_patterns(members.data, *spans, asked, patterns, offsets, kinds, found)
    return frozenset(name for name, has in zip(members.names, found.tolist(), strict=True) if has)


def _kind_of(pattern: bytes) -> int:
    return {0x7B: kernels.OBJECT, 0x5B: kernels.ARRAY}.get(pattern[0], kernels.STRING)


def find_placeholders(column: SpanColumn, placeholders: tuple[bytes, ...]) -> Mask | None:
    """Events whose value is one of the placeholders; None if none."""
    found = np.zeros(len(column), np.bool_)
    for pattern in placeholders:
        kind = _kind_of(pattern)
        if column.kinds[kind]:
            wanted = column.kind == kind
            text_kernels.match_bytes(
                column.data, column.start, column.end, wanted, np.frombuffer(pattern, np.uint8), found
            )
    return found if found.any() else None


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
    hiding = _columns_with(columns, placeholders) if isinstance(columns, Members) else frozenset()
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


def inferred(
    columns: "list[SpanColumn | pa.Array]", options: InferenceOptions, placeholders: tuple[bytes, ...]
) -> ValueType:
    """The type that one column has in several images of the same events."""
    spans = [without(column, placeholders) for column in columns if isinstance(column, SpanColumn)]
    if len(spans) < len(columns):
        return from_arrow(plain_type(next(c for c in columns if not isinstance(c, SpanColumn)).type))
    given = [column for column in spans if column.kinds[_GIVEN].any()]
    if len(given) > 1 and not any(column.kinds[_NESTED].any() for column in given):
        each = {infer(column, options) for column in given}
        if len(each) == 1:
            return each.pop()
    return infer(_joined(given or spans[:1]), options)


_GIVEN = slice(kernels.FALSE, None)
_NESTED = slice(kernels.OBJECT, None)


def _joined(columns: list[SpanColumn]) -> SpanColumn:
    if len(columns) == 1:
        return columns[0]
    if len({id(c.data) for c in columns}) > 1:
        raise ValueError("images of one event share their bytes")
    return SpanColumn(
        columns[0].data,
        np.concatenate([c.start for c in columns]),
        np.concatenate([c.end for c in columns]),
        np.concatenate([c.kind for c in columns]),
    )
