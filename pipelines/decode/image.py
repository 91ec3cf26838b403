"""Row images: the `before` and `after` rows and the message keys of events, as typed columns.

Images stay undecoded until it is known which changes belong to one table. Also recognizes the placeholders of values
that a feed did not send.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nevermore.pipelines.decode import arrow_columns
from nevermore.pipelines.decode.arrow_columns import count_cut, fitted
from nevermore.pipelines.decode.batches import Reasons, of_values
from nevermore.pipelines.decode.json_columns import decode, text, true_mask
from nevermore.pipelines.decode.value_types import Encoding, ValueType
from nevermore.pipelines.errors import ConfigError
from nevermore.pipelines.jsonscan import value_kernels as kernels
from nevermore.pipelines.jsonscan.members import scan_arrays, scan_objects, scan_pairs
from nevermore.pipelines.jsonscan.spans import Documents, Members, SpanColumn, is_whole, no_documents
from nevermore.scan_core import Mask, Rows


def without_unsent(column: SpanColumn | pa.Array, placeholder: bytes) -> tuple[SpanColumn | pa.Array, Mask | None]:
    """(the column with NULL in place of values that were not sent, which they are; None if none are)."""
    hidden = _placeholders(column, placeholder) if placeholder else None
    if hidden is None or not hidden.any():
        return column, None
    if isinstance(column, SpanColumn):
        return column.without(hidden), hidden
    return pc.if_else(pa.array(hidden), pa.scalar(None, column.type), column), hidden


_SPELLED = (
    ValueType(pa.float64()),
    ValueType(pa.decimal128(38, 0), Encoding.BASE64),
    ValueType(pa.decimal128(38, 10), Encoding.SCALED),
)
"""How the numbers of a list are read that spell the placeholder: as numbers, unscaled bytes, or objects with a scale."""
_MAX_ELEMENT = 64
"""Characters of a number, or of an object with a scale, in such a list."""
_ESCAPE, _MAX_ESCAPE = ord("\\"), 6
"""What an escape in JSON begins with, and how many bytes it has for one of the text."""


@lru_cache(maxsize=16)
def _texts(placeholder: bytes) -> tuple[str, ...]:
    """The placeholder as text, as bytes in text, as a map in text; and last the UUID that arrays of UUIDs contain."""
    from base64 import b64encode, urlsafe_b64encode
    from hashlib import md5
    from uuid import UUID

    text = placeholder.decode("utf-8", "replace")
    in_text = (b64encode(placeholder).decode(), urlsafe_b64encode(placeholder).decode(), placeholder.hex())
    named = UUID(bytes=md5(placeholder, usedforsecurity=False).digest(), version=3)
    quoted = orjson.dumps(text).decode()
    return (text, *in_text, f"{{{quoted}:{quoted}}}", f"{{{quoted}: {quoted}}}", str(named))


def _placeholders(column: SpanColumn | pa.Array, placeholder: bytes, *, in_list: bool = False) -> Mask:
    """Values that Debezium writes in place of one that was not sent, by the type and the modes of its connector.

    Text, bytes and maps hold the placeholder; arrays hold it once, or its UUID, or one number for each of its bytes.
    """
    texts = _texts(placeholder)[: None if in_list else -1]
    if isinstance(column, SpanColumn):
        return is_one_of(column, *texts) if in_list else is_one_of(column, *texts) | _in_nested(column, placeholder)
    column = arrow_columns.plain(column)
    held = column.type
    if pa.types.is_string(held):
        return true_mask(pc.is_in(column, pa.array(texts)))
    if pa.types.is_binary(held):
        return true_mask(pc.equal(column, pa.scalar(placeholder, held)))
    if in_list:
        of_uuids = pa.scalar(bytes.fromhex(texts[-1].replace("-", "")), pa.binary(16))
        return true_mask(pc.equal(column, of_uuids)) if held == of_uuids.type else np.zeros(len(column), np.bool_)
    if pa.types.is_map(held) and pa.types.is_string(held.key_type):
        keys, items = (_in_lists(c, np.asarray(column.offsets), placeholder) for c in (column.keys, column.items))
        found: Mask = keys & items & np.asarray(column.is_valid())
    elif pa.types.is_list(held) or pa.types.is_large_list(held):
        found = _in_lists(column.values, np.asarray(column.offsets), placeholder) & np.asarray(column.is_valid())
    else:
        found = np.zeros(len(column), np.bool_)
    return found


def is_one_of(column: SpanColumn, *texts: str) -> Mask:
    """Values that are one of the texts. Most are too long or too short, which is seen without reading them."""
    found = np.zeros(len(column), np.bool_)
    if not column.kinds[[kernels.STRING, kernels.ESCAPED]].any():
        return found
    size = column.end - column.start
    written = [text.encode() for text in texts]
    longest = max(map(len, written))
    fits = np.isin(np.arange(longest + 2), [*map(len, written)])  # tables, as there are many values
    begins = np.isin(np.arange(256), [_ESCAPE, *(text[0] for text in written)])
    likely = (
        column.of_kind(kernels.STRING) & fits[np.clip(size, 0, longest + 1)]
    )  # spans of missing values are any numbers
    likely |= column.of_kind(kernels.ESCAPED) & (size <= _MAX_ESCAPE * longest)
    rows = np.flatnonzero(likely)
    rows = rows[begins[column.data[column.start[rows]]]]
    if len(rows):
        words, _ = text(column.take(rows), np.ones(len(rows), np.bool_))
        found[rows] = true_mask(pc.is_in(words, pa.array(texts)))
    return found


def _in_nested(column: SpanColumn, placeholder: bytes) -> Mask:
    """Arrays and objects that mean the placeholder."""
    found = np.zeros(len(column), np.bool_)
    if not column.kinds[[kernels.ARRAY, kernels.OBJECT]].any():
        return found
    short = column.end - column.start <= _MAX_ELEMENT * len(placeholder)
    if len(rows := np.flatnonzero(column.of_kind(kernels.ARRAY) & short)):
        lists = scan_arrays(column.take(rows).documents())
        found[rows] = _in_lists(lists.values, lists.offsets, placeholder)
    if len(rows := np.flatnonzero(column.of_kind(kernels.OBJECT) & short)):
        pairs = scan_pairs(column.take(rows).documents())
        single = np.flatnonzero(np.diff(pairs.offsets) == 2)
        first = pairs.offsets[single].astype(np.int64)
        key, value = (is_one_of(pairs.values.take(first + part), _texts(placeholder)[0]) for part in (0, 1))
        found[rows[single]] = key & value
    return found


def _in_lists(elements: SpanColumn | pa.Array, offsets: NDArray[np.int32], placeholder: bytes) -> Mask:
    """Lists of only the placeholder, or of one number for each of its bytes."""
    found = np.zeros(len(offsets) - 1, np.bool_)
    number = len(placeholder)
    for length, find in ((1, partial(_placeholders, in_list=True)), (number, _spells)):
        lists = np.flatnonzero(np.diff(offsets) == length)
        if len(lists):
            places = (offsets[lists][:, None] + np.arange(length)).ravel()
            chosen = elements.take(places if isinstance(elements, SpanColumn) else pa.array(places))
            found[lists] |= find(chosen, placeholder)
    return found


def _spells(elements: SpanColumn | pa.Array, placeholder: bytes) -> Mask:
    """For each list of as many elements as the placeholder has bytes, whether its numbers are these bytes.

    Bytes are signed, as in Java. Decimals have them as unscaled values, so that one power of ten is a factor of all.
    Where they are truth values, all are true.
    """
    wanted = np.frombuffer(placeholder, np.int8).astype(np.float64)
    most = int(np.argmax(np.abs(wanted)))
    if isinstance(elements, SpanColumn):
        is_true, read = elements.kind == kernels.TRUE, [decode(elements, kind) for kind in _SPELLED]
    elif pa.types.is_boolean(elements.type):
        is_true, read = true_mask(elements), []
    else:
        if pa.types.is_temporal(elements.type):
            elements = elements.view(pa.int32() if elements.type.bit_width == 32 else pa.int64())
        is_true, read = np.zeros(len(elements), np.bool_), [arrow_columns.decode(elements, kind) for kind in _SPELLED]
    found: Mask = is_true.reshape(-1, len(wanted)).all(axis=1)
    for values, _ in read:
        numbers = np.asarray(values.cast(pa.float64()).fill_null(np.nan)).reshape(-1, len(wanted))
        factor = numbers[:, [most]] / wanted[most]
        power = np.log10(factor, where=factor > 0, out=np.full_like(factor, np.nan))
        same = np.isclose(numbers, factor * wanted, rtol=1e-9, atol=0).all(axis=1)
        found |= same & np.isclose(power, np.rint(power), rtol=0, atol=1e-9)[:, 0]
    return found


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
        repeated: events whose image is invalid because it has a member twice; None if there are none.
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
                raise ConfigError(f"rename: columns {seen[new]} and {name} of the feed would both become {new}")
            seen[new] = name
        by_column = ("columns", "missing", "unavailable", "wrong")
        renamed: dict[str, Any] = {
            of: {names.get(n, n): value for n, value in getattr(self, of).items()} for of in by_column
        }
        return replace(self, **renamed)

    def take(self, rows: Rows) -> "Image":
        """The images of these events."""
        places = pa.array(rows)
        missing, unavailable = ({n: m[rows] for n, m in masks.items()} for masks in (self.missing, self.unavailable))
        columns = {name: array.take(places) for name, array in self.columns.items()}
        wrong = {
            name: (mask[rows], reasons if isinstance(reasons, str) else reasons.take(places))
            for name, (mask, reasons) in self.wrong.items()
        }
        repeated = None if self.repeated is None else self.repeated[rows]
        return Image(self.present[rows], columns, missing, unavailable, wrong, self.num_cut, repeated)

    def lacks(self, name: str) -> Mask:
        """Events whose image does not have this column."""
        return self.present & self.missing.get(name, np.False_) if name in self.columns else self.present

    def has(self, name: str) -> Mask:
        """Events whose image has a usable value of this column, including NULL."""
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
    """Row images that are columns already (Parquet, CSV, Avro), with the interface of `spans.Members`.

    Attributes:
        columns: columns by name, one value per event.
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
        if is_whole(rows, len(self)):
            return self
        places = pa.array(rows)
        return ArrowMembers({name: array.take(places) for name, array in self.columns.items()}, self.is_object[rows])


Columns = Members | ArrowMembers


def typed(columns: Columns, types: Mapping[str, ValueType], placeholder: bytes = b"") -> Image:
    """Decode the columns of the image that `types` names."""
    arrays: dict[str, pa.Array] = {}
    missing: dict[str, Mask] = {}
    unavailable: dict[str, Mask] = {}
    wrong: dict[str, tuple[Mask, Reasons]] = {}
    present = columns.is_object
    num_cut = 0
    absent = absent_columns(columns) if isinstance(columns, Members) else frozenset()
    for name in columns.names:
        if name not in types:
            continue
        if name in absent:
            arrays[name] = pa.nulls(len(columns), _type_of_nothing(types[name]))
            if present.any():
                missing[name] = present
            continue
        column = columns.column(name)
        if isinstance(column, SpanColumn) and (lacking := present & (column.kind == kernels.MISSING)).any():
            missing[name] = lacking
        column, hidden = without_unsent(column, placeholder)
        if hidden is not None:
            unavailable[name] = hidden
        is_text = isinstance(column, SpanColumn)
        arrays[name], bad = (decode if is_text else arrow_columns.decode)(column, types[name])
        into = types[name].into
        if into is not None:
            arrays[name], unfit = fitted(arrays[name], into)
            bad = bad | unfit
        if bad.any():
            wrong[name] = (bad, of_values(name, column, bad, types[name]))
        num_cut += count_cut(column, types[name])
    twice = columns.status == kernels.REPEATED if isinstance(columns, Members) else np.zeros(0, np.bool_)
    return Image(present, arrays, missing, unavailable, wrong, num_cut, twice if twice.any() else None)


def absent_columns(members: Members) -> frozenset[str]:
    """Columns that no event has, such as all of the old rows of a database that does not log them."""
    absent = members.kinds[:, kernels.MISSING] == len(members)
    return frozenset(name for name, is_absent in zip(members.names, absent.tolist(), strict=True) if is_absent)


@lru_cache(maxsize=4096)
def _type_of_nothing(wanted: ValueType) -> pa.DataType:
    """The type of a decoded column without values."""
    spans = np.zeros(0, np.int32)
    array, _ = decode(SpanColumn(np.zeros(0, np.uint8), spans, spans, np.zeros(0, np.int8)), wanted)
    return array.type if wanted.into is None else fitted(array, wanted.into)[0].type


class ImageSource(Protocol):
    """Row images of the changes of a batch."""

    def take(self, rows: Rows) -> Columns:
        """The images of these changes, with the columns that occur in any of them."""
        ...


@dataclass(frozen=True)
class ObjectImages:
    """JSON objects; members in `without` are not part of the row."""

    documents: Documents
    without: frozenset[str] = frozenset()

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        return scan_objects(self.documents.take(rows)).without_names(self.without)


@dataclass(frozen=True)
class OverlaidImages:
    """Old rows as the new rows overlaid with the former values of changed columns (Canal, Maxwell).

    Attributes:
        rows: whole rows.
        changed: objects of former values; a change without one is the whole row itself.
    """

    rows: Documents
    changed: Documents

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        base = scan_objects(self.rows.take(rows))
        over = scan_objects(self.changed.take(rows), base.names)
        status = np.where(over.status == kernels.REPEATED, over.status, base.status)
        return _combined(over, base, lambda column: column.kind != kernels.MISSING, status)


@dataclass(frozen=True)
class CellImages:
    """Rows as cells: one entry per column and change, in the order of the changes (wal2json).

    Attributes:
        offsets: offset of the first cell of each change.
        names: column name of each cell.
        values: value of each cell.
        present: changes that have the image.
    """

    offsets: NDArray[np.int64]
    names: pa.StringArray
    values: SpanColumn
    present: Mask

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        offsets, cells = taken_cells(self.offsets, rows)
        change = np.repeat(np.arange(len(rows)), np.diff(offsets))
        encoded = self.names.take(pa.array(cells)).dictionary_encode()
        code = np.asarray(encoded.indices)
        shape = (len(encoded.dictionary), len(rows))
        start, end, kind = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.int8)
        start[code, change] = self.values.start[cells]
        end[code, change] = self.values.end[cells]
        kind[code, change] = self.values.kind[cells]
        status = np.where(self.present[rows], kernels.OK, kernels.ABSENT).astype(np.int8)
        given = change[self.values.kind[cells] != kernels.MISSING]
        repeated = np.bincount(given, minlength=len(rows)) > (kind != kernels.MISSING).sum(axis=0)
        status[repeated & self.present[rows]] = kernels.REPEATED
        return Members(self.values.data, tuple(encoded.dictionary.to_pylist()), start, end, kind, status)


@dataclass(frozen=True)
class PrefixedImages:
    """Object members whose names begin with a prefix, stripped of it, or (`inside` false) all other members.

    A member counts as prefixed only if the object also has one with the bare name: `BI_id` next to `id`.
    """

    documents: Documents
    prefix: str
    inside: bool

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        members = scan_objects(self.documents.take(rows))
        names = set(members.names)
        prefixed = [n for n in members.names if n.startswith(self.prefix) and n.removeprefix(self.prefix) in names]
        if not prefixed:
            return members if not self.inside else members.without_names(names).where(np.zeros(len(members), np.bool_))
        kind = members.kind.copy()
        for name in prefixed:
            bare, own = members.column(name.removeprefix(self.prefix)), members.names.index(name)
            # Each object is judged by itself, regardless of others.
            kind[own, (bare.kind != kernels.MISSING) != self.inside] = kernels.MISSING
        image = replace(members, kind=kind)
        if not self.inside:
            return image.without_names(
                [n for n in prefixed if not (kind[members.names.index(n)] != kernels.MISSING).any()]
            )
        image = image.without_names(names - set(prefixed))
        has_any = (image.kind != kernels.MISSING).any(axis=0)
        image = replace(image, names=tuple(name.removeprefix(self.prefix) for name in image.names))
        return image.where(members.is_object & has_any)


@dataclass(frozen=True)
class EitherImages:
    """The first of two images that a change has. Both are spans of the same bytes."""

    first: ImageSource
    second: ImageSource

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        first, second = self.first.take(rows), self.second.take(rows)
        if not isinstance(first, Members) or not isinstance(second, Members):
            raise TypeError("images of either kind must both be spans")
        # An ambiguous first image is still the one meant: the second does not replace it.
        which = first.is_object | (first.status == kernels.REPEATED)
        if not (second.is_object | (second.status == kernels.REPEATED)).any():
            return first
        if not which.any():
            return second
        return _combined(first, second, lambda _: which, np.where(which, first.status, second.status))


def _combined(
    first: Members, second: Members, takes_first: Callable[[SpanColumn], Mask], status: NDArray[np.int8]
) -> Members:
    """Objects with the members of two, which are spans of the same bytes; says for each column which objects take the first."""
    names = tuple(dict.fromkeys([*first.names, *second.names]))
    columns = [(takes_first(a), a, b) for a, b in ((first.column(name), second.column(name)) for name in names)]

    def parts(of: str) -> NDArray[Any]:
        found = [np.where(mask, getattr(a, of), getattr(b, of)) for mask, a, b in columns]
        return np.stack(found) if found else getattr(second, of)

    return Members(second.data, names, parts("start"), parts("end"), parts("kind"), status)


@dataclass(frozen=True)
class StackedImages:
    """Rows of several layouts or schemas; changes that are taken together share one.

    Attributes:
        parts: rows of each.
        part_of: part of each change.
        place_of: row of each change in its part.
    """

    parts: tuple[ImageSource, ...]
    part_of: NDArray[np.int32]
    place_of: Rows

    def take(self, rows: Rows) -> Columns:
        """See `ImageSource`."""
        if not len(rows):
            return ArrowMembers({}, np.zeros(0, np.bool_))
        (part,) = np.unique(self.part_of[rows])
        return self.parts[int(part)].take(self.place_of[rows])


@dataclass(frozen=True)
class Nothing:
    """An image that no change has."""

    def take(self, rows: Rows) -> Members:
        """See `ImageSource`."""
        return scan_objects(no_documents(len(rows)))


def taken_cells(offsets: Rows, rows: Rows) -> tuple[Rows, Rows]:
    """(offsets of the cells of these rows among the selected cells, indices of the selected cells)."""
    lengths = np.diff(offsets)[rows]
    begins = np.r_[0, np.cumsum(lengths)]
    return begins, np.repeat(offsets[:-1][rows] - begins[:-1], lengths) + np.arange(int(begins[-1]))
