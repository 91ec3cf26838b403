"""What pyarrow does not expose of ORC files: the tail, statistics and footers of stripes, run-length encoded streams.

Everything here is bytes and NumPy arrays; Arrow types and the reader are in `orc.py`.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nevermore.scan_core.io.remote import ByteSource

Integers = npt.NDArray[np.int64]
_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
"""Bits a value, by their five-bit code."""
PRESENT, DATA, LENGTH, DICTIONARY, SECONDARY, ROW_INDEX, BLOOM_FILTER = 0, 1, 2, 3, 5, 6, 8
"""Kinds of streams. Bloom filters of kind 7, of old writers, hash text in whatever character set these had."""
_INDEXES = frozenset({ROW_INDEX, 7, BLOOM_FILTER})
_MAX_SECTION_BYTES = 64 * 1024**2
"""Of a section or stream that is decompressed here: statistics, lengths, codes."""
_USUAL_BLOCK_BYTES = 1 << 18
"""Block size of files that do not state one."""
_MAX_BLOCK_BYTES = 64 * 1024**2
"""Of a block out of compression; writers use 256 kB, and three bytes state its size when compressed."""
_BOUNDED_CODECS = frozenset({1, 2, 4, 5})
"""Zlib, Snappy, LZ4, zstd."""
_MAX_LZ4_GROWTH = 255
"""What a block of LZ4 becomes, at most, of its size."""
_MAX_VARINT_BYTES = 10
MAX_FIELDS = 1 << 20
"""Most fields of a Protobuf message, such as the stripes of a file or the streams and row groups of a stripe."""
_LONGEST_RUN = 2_048
"""More values than any run has; and the most runs that are held as an array each."""
_MAX_RUN_BYTES = 8_192
"""More than any run takes."""
_PIECE_BYTES = 1 << 14
"""A stream without compression is read in pieces of so many bytes."""
_MAX_POSITION_BYTES = 100
"""Most bytes of the positions at which a row group begins in the streams of a column."""
Form: TypeAlias = tuple[int, ...]
BYTES, INTEGERS, BITS = (), (512,), (130, 8)
"""What locates a value in a run: numbers below these, the last of them counted in single values. Bytes have no runs."""
Position: TypeAlias = tuple[int, int, int | None]
"""Where a block begins in its stream, bytes out of compression in it, and values of the run that begins there, which may go
on in the runs after it; None: all values until the stream ends."""


class StreamPart:
    """Values of a stream from a position on; blocks are read when values in them are asked for.

    Args:
        blocks: out of compression, each with where the next one begins.
        begin: position of the first value, in the first of the blocks.
        end: position behind the values that will be asked for; None if it is not known.

    `place` is what may be fetched before: offset and length in the file.
    """

    place: tuple[int, int]

    def __init__(
        self, blocks: Iterator[tuple[int, bytes]], begin: Position = (0, 0, 0), end: Position | None = None
    ) -> None:
        self._blocks = blocks
        self._end = end
        block, self._inside, self._skipped = begin
        self._passed = {block: 0}
        self.data, self._dropped, self.position = b"", 0, 0

    def fill(self, count: int) -> None:
        """Have the next `count` bytes ready, or all that there are."""
        if (size := len(self.data) - self.position) >= count:
            return
        parts = [self.data[self.position :]]
        self._dropped += self.position
        for stop, block in self._blocks:
            parts.append(block)
            size += len(block)
            self._passed[stop] = self._dropped + size
            if size >= count:
                break
        self.data, self.position = b"".join(parts), 0

    def booleans(self, count: int) -> npt.NDArray[np.bool_]:
        """The next `count` booleans, most significant bit first; raises as `integers`."""
        return self._values(count, self._byte_run, 8).astype(np.bool_)

    def raw(self, count: int) -> npt.NDArray[np.uint8]:
        """The next `count` bytes; raises as `integers`."""
        return self._values(count, lambda: np.frombuffer(self.take(count), np.uint8)).astype(np.uint8, copy=False)

    def integers(self, count: int, version: int, *, signed: bool) -> Integers:
        """The next `count` integers in run-length encoding 1 or 2; unsigned ones from 2**63 on are negative.

        Raises:
            LookupError: the stream ends before, or its values do not end where the end of the part is stated to be.
            ValueError: a run or block contradicts itself, or as LookupError.
        """
        return self._values(count, lambda: self.run(version, signed=signed))

    def _values(self, count: int, run: Callable[[], npt.NDArray[Any]], unit: int = 1) -> npt.NDArray[Any]:
        """Runs whose values begin and end at the positions stated; at the end of a stream, values come in units."""
        wanted, found, runs = (self._skipped or 0) + count, 0, list[npt.NDArray[Any]]()
        self.fill(1)
        if (begin := self._inside) > len(self.data):
            raise ValueError(f"values begin {begin} bytes behind the beginning of a block of {len(self.data)}")
        self.position, passed = begin, {begin: 0}
        while found < wanted:
            runs.append(run())
            found += len(runs[-1])
            if wanted - found < _LONGEST_RUN:  # the next row group begins in one of the last
                passed[self._dropped + self.position] = found
            if len(runs) > _LONGEST_RUN:
                runs = [np.concatenate(runs)]
        if self._end is not None:
            block, inside, over = self._end
            if passed[self._passed[block] + inside] != wanted - (-(-wanted % unit) if over is None else over):
                raise ValueError("values do not end where the next row group begins")
        return np.concatenate(runs or [np.zeros(0, np.int64)])[wanted - count : wanted]

    def run(self, version: int, *, signed: bool) -> Integers:
        """The integers of the next run; raises IndexError at the end of the stream."""
        self.fill(_MAX_RUN_BYTES)
        return _run_v1(self, signed) if version == 1 else _run_v2(self, signed)

    def _byte_run(self) -> npt.NDArray[np.uint8]:
        self.fill(_MAX_RUN_BYTES)
        control = self.byte()
        part = self.take(1) * (control + 3) if control < 0x80 else self.take(256 - control)
        return np.unpackbits(np.frombuffer(part, np.uint8))

    def byte(self) -> int:
        """The next byte of a run."""
        self.position += 1
        return self.data[self.position - 1]

    def take(self, count: int) -> bytes:
        """The next bytes of a run."""
        self.fill(count)
        taken = self.data[self.position : self.position + count]
        if len(taken) < count:
            raise IndexError("a stream ends inside a run")
        self.position += count
        return taken

    def varint(self, *, signed: bool) -> int:
        """The next number of a run in base 128."""
        value, self.position = _varint(self.data, self.position)
        return (value >> 1) ^ -(value & 1) if signed else value

    def packed(self, count: int, width: int) -> npt.NDArray[np.uint64]:
        """`count` values of `width` bits each, padded to whole bytes."""
        bits = np.unpackbits(np.frombuffer(self.take((count * width + 7) // 8), np.uint8))
        wide = np.zeros((count, 64), np.uint8)
        wide[:, 64 - width :] = bits[: count * width].reshape(count, width)
        return np.packbits(wide, axis=1).view(">u8").ravel().astype(np.uint64)


def bound_sum(part: StreamPart, count: int, version: int) -> float:
    """At least the sum of the next `count` unsigned integers of a stream, most of it by the headers of the runs alone.

    A stream may end before: values that are NULL are not in it.
    """
    if version == 1:
        return exact_sum(part, count, version)
    total = 0.0
    while count > 0:
        part.fill(_MAX_RUN_BYTES)
        length, largest, part.position = _bound_run(part.data, part.position)
        if part.position > len(part.data):
            break
        total += float(min(length, count) * largest)
        count -= length
    return total


def exact_sum(part: StreamPart, count: int, version: int, values: Integers | None = None) -> float:
    """The sum of the next unsigned integers of a stream, or of the `values` that they stand for; of fewer where it ends before.

    Raises:
        ValueError: an integer of 64 bits, or one that stands for nothing.
    """
    total, most = 0.0, 2**63 if values is None else len(values)
    while count > 0:
        try:
            run = part.run(version, signed=False)[:count]
        except IndexError:
            break
        count -= len(run)
        if len(run) and not 0 <= int(run.min()) <= int(run.max()) < most:
            raise ValueError(f"a length or code that is not below {most}")
        total += float((run if values is None else values[run]).sum(dtype=np.float64))
    return total


def _run_v1(cursor: StreamPart, signed: bool) -> Integers:  # noqa: FBT001  private
    control = cursor.byte()
    if control >= 0x80:
        return _array([cursor.varint(signed=signed) for _ in range(256 - control)])
    step = int.from_bytes(cursor.take(1), signed=True)
    return _array([cursor.varint(signed=signed)]) + step * np.arange(control + 3, dtype=np.int64)


def _run_v2(cursor: StreamPart, signed: bool) -> Integers:  # noqa: FBT001  private
    first = cursor.byte()
    if first >> 6 == 0:
        value = int.from_bytes(cursor.take(((first >> 3) & 7) + 1), "big")
        return np.repeat(_array([(value >> 1) ^ -(value & 1) if signed else value]), (first & 7) + 3)
    code = (first >> 1) & 31
    length = ((first & 1) << 8 | cursor.byte()) + 1
    match first >> 6:
        case 1:
            values = cursor.packed(length, _WIDTHS[code])
            return _unzigzag(values) if signed else values.astype(np.int64)
        case 2:
            return _patched_base(cursor, length, _WIDTHS[code])
        case _:
            return _delta(cursor, length, _WIDTHS[code] if code else 0, signed=signed)


def _patched_base(cursor: StreamPart, length: int, width: int) -> Integers:
    third, fourth = cursor.byte(), cursor.byte()
    base_bytes, patch_width = (third >> 5) + 1, _WIDTHS[third & 31]
    num_patches = fourth & 31
    if not num_patches or (fourth >> 5) + 1 + patch_width > 64:
        raise ValueError("a run with patches that has none, or of more than 64 bits")
    base = int.from_bytes(cursor.take(base_bytes), "big")
    sign = 1 << (8 * base_bytes - 1)
    base = -(base & ~sign) if base & sign else base
    values = cursor.packed(length, width)
    patches = cursor.packed(num_patches, _patch_bits(patch_width, fourth))
    at = 0
    for patch in patches.tolist():
        at += patch >> patch_width
        if at >= length or width >= 64:
            raise ValueError("a patch lies outside of its run")
        values[at] |= np.uint64(((patch & ((1 << patch_width) - 1)) << width) & (2**64 - 1))
    return values.astype(np.int64) + _array([base])


def _patch_bits(patch_width: int, fourth: int) -> int:
    """Bits of a patch and the gap in front of it, by the fourth byte of the header of its run."""
    width: int = next(w for w in _WIDTHS if w >= min((fourth >> 5) + 1 + patch_width, 64))
    return width


def _delta(cursor: StreamPart, length: int, width: int, *, signed: bool) -> Integers:
    base, step = cursor.varint(signed=signed), cursor.varint(signed=True)
    steps = np.full(max(length - 1, 0), _array([step])[0])
    if width and length > 2:
        packed = cursor.packed(length - 2, width).astype(np.int64)
        steps[1:] = packed if step >= 0 else -packed
    values: Integers = _array([base]) + np.concatenate([np.zeros(1, np.int64), np.cumsum(steps)])
    return values


def _unzigzag(values: npt.NDArray[np.uint64]) -> Integers:
    halves: Integers = (values >> np.uint64(1)).astype(np.int64)
    return halves ^ -(values & np.uint64(1)).astype(np.int64)


def _array(values: list[int]) -> Integers:
    """Integers of 64 bits, which Arrow also writes as unsigned where they are negative."""
    return np.array([value & _64_BITS for value in values], np.uint64).astype(np.int64)


def _bound_run(data: bytes, position: int) -> tuple[int, int, int]:
    """How many unsigned integers a run of encoding 2 holds, a bound of the largest, and its end; behind that of the data if it is cut."""
    try:
        first = data[position]
        if first < 0x40:
            end = position + (first >> 3) + 2
            return (first & 7) + 3, int.from_bytes(data[position + 1 : end], "big"), end
        width, length = _WIDTHS[first >> 1 & 31], ((first & 1) << 8 | data[position + 1]) + 1
        position += 2
        if first < 0x80:
            return length, (1 << width) - 1, position + (length * width + 7) // 8
        if first < 0xC0:
            third, fourth = data[position], data[position + 1]
            end, patch_width = position + 3 + (third >> 5), _WIDTHS[third & 31]
            largest = int.from_bytes(data[position + 2 : end], "big") + (1 << (width + patch_width))
            patch_bits = (fourth & 31) * _patch_bits(patch_width, fourth)
            return length, largest, end + (length * width + 7) // 8 + (patch_bits + 7) // 8
        base, position = _varint(data, position)
        step, position = _varint(data, position)
    except IndexError:
        return 0, 0, len(data) + 1
    rise = 0 if step & 1 else step >> 1
    if not first >> 1 & 31:  # every step is the same
        return length, base + rise * length, position
    return length, base + rise + (0 if step & 1 else length << width), position + (max(length - 2, 0) * width + 7) // 8


class Stripe(NamedTuple):
    """Location and number of rows of a stripe; its last bytes are its footer."""

    offset: int
    num_bytes: int
    num_rows: int
    footer_bytes: int


class Encoding(NamedTuple):
    """Encoding of a column: the version of its run-length encoding, and the number of values in its dictionary, if it has one."""

    version: int
    dictionary_size: int | None


class StripeFooter(NamedTuple):
    """Offset and length of each stream by column and kind, encodings by column, and the writer's time zone."""

    streams: Mapping[tuple[int, int], tuple[int, int]]
    encodings: Sequence[dict[int, Any]]
    zone: str

    def data_ranges(self, columns: range) -> list[tuple[int, int]]:
        """The ranges of the streams with values of these columns."""
        return [place for (column, kind), place in self.streams.items() if column in columns and kind not in _INDEXES]

    def encoding(self, column: int) -> Encoding:
        """The encoding of a column.

        Raises:
            ValueError: it is missing, or not one of ORC's.
        """
        stated = self.encodings[column] if column < len(self.encodings) else {1: -1}
        if (kind := stated.get(1, 0)) not in {0, 1, 2, 3}:
            raise ValueError(f"encoding {kind} of type {column}")
        return Encoding(1 + kind // 2, stated.get(2, 0) if kind % 2 else None)


class OrcTail(NamedTuple):
    """The stripes, and the location of the metadata section with their statistics."""

    stripes: tuple[Stripe, ...]
    num_rows: int
    compression: int
    block_bytes: int
    metadata_offset: int
    metadata_length: int
    index_stride: int = 0


def parse_tail(tail: bytes, file_size: int) -> OrcTail:
    """Parse the message `FileTail`.

    Raises:
        ValueError: broken protobuf, stripes outside of the file, row counts that contradict each other.
    """
    message = first_of_each(tail)
    postscript, footer = message_of(message, 1), bytes(message.get(2, b""))
    stripes = []
    num_rows = stride = 0
    for number, value in fields_of(footer):
        if number == 3:
            stripes.append(_stripe(first_of_each(value), file_size))
        elif number == 6:
            num_rows = int(value)
        elif number == 8:
            stride = int(value)
    if sum(s.num_rows for s in stripes) != num_rows:
        raise ValueError(f"footer states {num_rows} rows, its stripes {sum(s.num_rows for s in stripes)}")
    metadata_length = int(postscript.get(5, 0))
    end = file_size - 1 - int(message.get(4, 0)) - int(postscript.get(1, 0))
    block_bytes = min(int(postscript.get(3, _USUAL_BLOCK_BYTES)), _MAX_BLOCK_BYTES)
    return OrcTail(
        tuple(stripes),
        num_rows,
        int(postscript.get(2, 0)),
        block_bytes,
        max(end - metadata_length, 0),
        metadata_length,
        stride,
    )


def require_small_footer(source: ByteSource) -> None:
    """Decompress the footer within bounds, as pyarrow would do without.

    Raises:
        pa.ArrowNotImplementedError: a very large footer.
        ValueError: a postscript or footer that is broken.
    """
    size = source.size()
    end = source.read_at(min(size, 256), max(size - 256, 0))
    postscript = first_of_each(end[-1 - end[-1] : -1]) if end else {}
    length, compression = int(postscript.get(1, 0)), int(postscript.get(2, 0))
    if not 0 < length < size or compression not in _BOUNDED_CODECS:
        return
    block_bytes = min(int(postscript.get(3, _USUAL_BLOCK_BYTES)), _MAX_BLOCK_BYTES)
    footer = source.read_at(length, max(size - 1 - end[-1] - length, 0))
    decompress(footer, OrcTail((), 0, compression, block_bytes, 0, 0))


def parse_stripe_statistics(section: bytes, tail: OrcTail) -> list[memoryview] | None:
    """For each stripe the message with the statistics of every column; None if they cannot be decompressed here."""
    try:
        return items_of(decompress(section, tail))
    except pa.ArrowNotImplementedError:
        return None


def parse_stripe_footer(footer: bytes, stripe: Stripe) -> StripeFooter:
    """Parse the message `StripeFooter`.

    Raises:
        ValueError: broken protobuf, or a stream outside of the stripe.
    """
    streams: dict[tuple[int, int], tuple[int, int]] = {}
    encodings, zone = [], ""
    offset, end = stripe.offset, stripe.offset + stripe.num_bytes
    for number, value in fields_of(footer):
        if number == 1:
            stream = first_of_each(value)
            kind, column, length = (int(stream.get(i, 0)) for i in (1, 2, 3))
            if offset + length > end:
                raise ValueError(f"a stream of {length} bytes at {offset} ends outside of its stripe")
            streams.setdefault((column, kind), (offset, length))  # as the decoder takes them
            offset += length
        elif number == 2:
            encodings.append(first_of_each(value))
        elif number == 3:
            zone = bytes(value).decode("ascii", "replace")
    return StripeFooter(streams, encodings, zone)


def items_of(message: bytes | memoryview) -> list[Any]:
    """The messages in field 1: the entries of a row index or of Bloom filters, statistics of stripes, or of columns.

    Raises:
        ValueError: broken protobuf.
    """
    return [value for number, value in fields_of(message) if number == 1]


def positions_of(entry: memoryview, forms: Iterable[Form], tail: OrcTail) -> list[Position]:
    """Where the values of a row group begin in streams of these forms.

    Raises:
        LookupError: positions of fewer streams.
        ValueError: positions of more streams, or none that a writer states.
    """
    stored, numbers = first_of_each(entry).get(1, b"")[:_MAX_POSITION_BYTES], list[int]()
    at, found = 0, list[Position]()
    while at < len(stored):
        number, at = _varint(stored, at)
        numbers.insert(0, number)
    for form in forms:
        block, inside, values = *position_at(numbers.pop(), tail), 0
        if tail.compression:
            inside = numbers.pop()
        for limit in form:
            if (number := numbers.pop()) >= limit:
                raise ValueError(f"a row group begins {number} values behind the beginning of a run")
            values = values * limit + number
        found.append((block, inside, values))
    if numbers:
        raise ValueError(f"{len(numbers)} positions more than there are streams for")
    return found


def position_at(offset: int, tail: OrcTail) -> tuple[int, int]:
    """The block of a stream that begins at an offset, or without compression the piece that it lies in, and the place in it."""
    inside = 0 if tail.compression else offset % _PIECE_BYTES
    return offset - inside, inside


class OrcBloomFilter(NamedTuple):
    """The values that a row group of a column may have.

    Writers in Java and C++ have differed in whether the hash of a number is shifted with its sign, and in the step between
    the bits: a value counts as present if any variant finds it.
    """

    num_hashes: int
    bits: bytes

    def excludes(self, value: Any) -> bool:
        """Whether a number or text is certainly absent from the row group."""
        if isinstance(value, str):
            hashes = {_murmur(value.encode())}
        elif isinstance(value, int):
            hashes = {_mixed(value, is_signed=True), _mixed(value, is_signed=False)}
        else:
            return False
        return not any(self._has(number, first) for number in hashes for first in (1, 2))

    def _has(self, number: int, first: int) -> bool:
        low, high = _signed(number & 0xFFFFFFFF, 32), _signed(number >> 32, 32)
        for step in range(first, first + self.num_hashes):
            combined = _signed((low + step * high) & 0xFFFFFFFF, 32)
            place = (~combined if combined < 0 else combined) % (8 * len(self.bits))
            if not self.bits[place >> 3] >> (place & 7) & 1:
                return False
        return True


def parse_bloom_filters(stream: bytes) -> list[OrcBloomFilter | None]:
    """The filters of the row groups of a column, from the message `BloomFilterIndex`; None where one has no bits.

    Raises:
        ValueError: broken protobuf.
    """
    found: list[OrcBloomFilter | None] = []
    for message in map(first_of_each, items_of(stream)):
        bits, num_hashes = bytes(message.get(3, b"")), int(message.get(1, 0))
        is_usable = bits and 0 < num_hashes <= _MAX_HASHES
        found.append(OrcBloomFilter(num_hashes, bits) if is_usable else None)
    return found


_MAX_HASHES = 64
_64_BITS = 2**64 - 1


def _signed(number: int, width: int) -> int:
    return number - (1 << width) if number >> (width - 1) else number


def _mixed(value: int, *, is_signed: bool) -> int:
    """Thomas Wang's hash of 64 bits."""

    def right(number: int, count: int) -> int:
        return (_signed(number, 64) >> count) & _64_BITS if is_signed else number >> count

    key = value & _64_BITS
    key = (~key + (key << 21)) & _64_BITS
    key ^= right(key, 24)
    key = (key + (key << 3) + (key << 8)) & _64_BITS
    key ^= right(key, 14)
    key = (key + (key << 2) + (key << 4)) & _64_BITS
    key ^= right(key, 28)
    return (key + (key << 31)) & _64_BITS


def _murmur(data: bytes) -> int:
    """Murmur3 of 64 bits with the seed that ORC gives it."""

    def spread(number: int) -> int:
        number = (number * 0x87C37B91114253D5) & _64_BITS
        return ((((number << 31) | (number >> 33)) & _64_BITS) * 0x4CF5AD432745937F) & _64_BITS

    found, whole = 104_729, len(data) & ~7
    for at in range(0, whole, 8):
        found ^= spread(int.from_bytes(data[at : at + 8], "little"))
        found = ((((found << 27) | (found >> 37)) & _64_BITS) * 5 + 0x52DCE729) & _64_BITS
    if whole < len(data):
        found ^= spread(int.from_bytes(data[whole:], "little"))
    found ^= len(data)
    found = ((found ^ found >> 33) * 0xFF51AFD7ED558CCD) & _64_BITS
    found = ((found ^ found >> 33) * 0xC4CEB9FE1A85EC53) & _64_BITS
    return found ^ found >> 33


def fields_of(message: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values: int for varints, bytes for everything else."""
    view = memoryview(message)
    position = 0
    try:
        for _ in range(MAX_FIELDS):
            if position >= len(view):
                return
            tag, position = _varint(view, position)
            match tag & 7:
                case 0:
                    value, position = _varint(view, position)
                    yield tag >> 3, value
                case 1 | 5 as wire:
                    width = 8 if wire == 1 else 4
                    yield tag >> 3, view[position : position + width]
                    position += width
                case 2:
                    length, position = _varint(view, position)
                    if position + length > len(view):
                        raise ValueError(f"protobuf field of {length} bytes in {len(view)}")
                    yield tag >> 3, view[position : position + length]
                    position += length
                case wire:
                    raise ValueError(f"protobuf wire type {wire}")
    except IndexError as error:
        raise ValueError("protobuf message ends early") from error
    if position < len(view):
        raise ValueError(f"protobuf message of more than {MAX_FIELDS} fields")


def first_of_each(message: bytes | memoryview) -> dict[int, Any]:
    """The first value of each field number in a Protobuf message."""
    found: dict[int, Any] = {}
    for number, value in fields_of(message):
        found.setdefault(number, value)
    return found


def blocks_of(
    read: Callable[[int, int], bytes], offset: int, end: int, tail: OrcTail, *, are_full: bool = False
) -> Iterator[tuple[int, bytes]]:
    """The blocks of a section or stream out of compression, or pieces of one without, each with where the next one begins.

    Args:
        read: gives so many bytes at an offset.
        offset: of the first block.
        end: of the section or stream.
        tail: of the file.
        are_full: refuse blocks before the last that hold less than the file states.

    Raises:
        pa.ArrowNotImplementedError: a codec that is not supported here (LZO, Brotli).
        ValueError: a block that is broken, or longer than the file states.
    """
    while offset < end:
        if tail.compression == 0:
            stop = min(offset + _PIECE_BYTES, end)
            yield stop, read(stop - offset, offset)
        else:
            header = int.from_bytes(read(3, offset), "little")
            stop = offset + 3 + (header >> 1)
            if stop > end:
                raise ValueError("a compressed block ends early")
            block = read(stop - offset - 3, offset + 3)
            found = block if header & 1 else _decompress_block(block, tail.compression, tail.block_bytes)
            if are_full and stop < end and len(found) != tail.block_bytes:
                raise ValueError(f"a block of {len(found)} bytes before others, which hold {tail.block_bytes}")
            yield stop, found
        offset = stop


def decompress(section: bytes, tail: OrcTail) -> bytes:
    """The bytes of a section or stream, which is stored in blocks.

    Raises:
        pa.ArrowNotImplementedError: as `blocks_of`, or a very large section.
        ValueError: as `blocks_of`.
    """
    parts, size = list[bytes](), 0
    for _, block in blocks_of(lambda length, at: section[at : at + length], 0, len(section), tail):
        parts.append(block)
        if (size := size + len(block)) > _MAX_SECTION_BYTES:
            raise pa.ArrowNotImplementedError(f"a section or stream of more than {_MAX_SECTION_BYTES} bytes")
    return b"".join(parts)


def _decompress_block(block: bytes, compression: int, max_bytes: int) -> bytes:
    """The codec is numbered as in the postscript: zlib, Snappy, LZO, LZ4, zstd, Brotli from 1 on."""
    try:
        match compression:
            case 1:
                decoder = zlib.decompressobj(-15)
                found = decoder.decompress(block, max_bytes + 1)
                if not decoder.eof:
                    raise ValueError(f"a compressed block does not end within {max_bytes} bytes")
            case 2:
                length, _ = _varint(block, 0)
                found = pa.Codec("snappy").decompress(block, min(length, max_bytes), asbytes=True)
            case 4:
                most = bytearray(min(max_bytes, _MAX_LZ4_GROWTH * len(block)))
                found = bytes(most[: cramjam.lz4.decompress_block_into(block, most, len(most))])
            case 5:
                with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
                    found = bytes(stream.read(max_bytes + 1))
            case 3 | 6:
                raise pa.ArrowNotImplementedError("what columns compressed by LZO or Brotli become cannot be bounded")
            case _:
                raise ValueError(f"it is compressed by codec {compression}")
    except (cramjam.DecompressionError, zlib.error, OSError, RuntimeError) as error:
        raise ValueError(f"a compressed block is broken: {error}") from error
    if len(found) > max_bytes:
        raise ValueError(f"a compressed block holds more than {max_bytes} bytes")
    return found


def _stripe(fields: dict[int, Any], file_size: int) -> Stripe:
    offset, num_rows = int(fields.get(1, 0)), int(fields.get(5, 0))
    num_bytes = sum(int(fields.get(n, 0)) for n in (2, 3, 4))
    if offset + num_bytes > file_size:
        raise ValueError(f"stripe at {offset}, {num_bytes} bytes, lies outside of the file of {file_size} bytes")
    return Stripe(offset, num_bytes, num_rows, int(fields.get(4, 0)))


def _varint(view: bytes | memoryview, position: int) -> tuple[int, int]:
    result = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = view[position + index]
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position + index + 1
    raise ValueError("protobuf varint of more than ten bytes")


def message_of(fields: dict[int, Any], number: int) -> dict[int, Any]:
    """The message in a field; empty if it is missing."""
    value = fields.get(number, b"")
    if isinstance(value, int):
        raise TypeError(f"protobuf field {number} is a number, not a message")
    return first_of_each(value)


def zigzag(value: Any) -> int | None:
    """A signed integer in protobuf's form; None for other values."""
    return (value >> 1) ^ -(value & 1) if isinstance(value, int) else None
