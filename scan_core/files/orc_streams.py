"""What pyarrow does not expose of ORC files: the tail, statistics and footers of stripes, run-length encoded streams.

Everything here is bytes and NumPy arrays; Arrow types and the reader are in `orc.py`.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.orc as po

from nevermore.scan_core.io.remote import ByteSource

Integers = npt.NDArray[np.int64]
_WIDTHS = (*range(1, 25), 26, 28, 30, 32, 40, 48, 56, 64)
"""Bits a value, by their five-bit code."""
PRESENT, DATA, LENGTH, DICTIONARY, SECONDARY, ROW_INDEX, BLOOM_FILTER = 0, 1, 2, 3, 5, 6, 8
"""Kinds of streams. Bloom filters of kind 7, of old writers, hash text in whatever character set these had."""
_INDEXES = frozenset({ROW_INDEX, 7, BLOOM_FILTER})
_MAX_SECTION_BYTES = 64 * 1024**2
"""Of a section or stream that is decompressed here: statistics, lengths, codes."""
_MAX_BLOCK_BYTES = 64 * 1024**2
"""Of a block out of compression; writers use 256 kB, and three bytes state its size when compressed."""
_BOUNDED_CODECS = frozenset({1, 2, 4, 5})
"""Zlib, Snappy, LZ4, zstd."""
_MAX_VARINT_BYTES = 10
_WINDOW = 65_536
"""Integers decoded at a time, at least: a stream may hold very many."""
_BLOCK_HEADER_BYTES = 3
_MAX_RUN_BYTES = 2 * (512 * 8 + 512)
"""More than what the values take that a writer holds back until it knows their run."""


def integers(data: bytes, count: int, *, version: int, signed: bool) -> Iterator[Integers]:
    """The first `count` integers of a stream in run-length encoding 1 or 2, or all where it ends before, some at a time.

    Unsigned ones of 64 bits are negative.

    Raises:
        ValueError: a run that is cut.
        OSError: a run that contradicts itself.
    """
    begin, found, ends = 0, 0, list[Any]()
    for length, stop, base in _runs(data, version):
        found += length
        ends.append((found, base))
        if found and (found >= min(count, _WINDOW) or stop == len(data)):
            values = decode_signed({DATA: data[begin:stop]}, min(found, count), version).to_numpy()
            yield values if signed else _as_unsigned(values, ends)
            if (count := count - found) <= 0:
                return
            begin, found, ends = stop, 0, []


def decode_integers(data: bytes, count: int, *, version: int, signed: bool) -> Integers:
    """The first `count` integers of a stream at once.

    Raises:
        ValueError: the stream ends before, or as `integers`.
        OSError: as `integers`.
    """
    found = np.concatenate([np.zeros(0, np.int64), *integers(data, count, version=version, signed=signed)])
    if len(found) < count:
        raise ValueError(f"a stream of integers ends after {len(found)} of {count}")
    return found


def _runs(data: bytes, version: int) -> Iterator[tuple[int, int, int | None]]:  # noqa: C901  one case per encoding
    """Of each run its number of integers, its end, and the number that its integers are relative to, as it is stored.

    A last run of encoding 2 that is cut has no integers, as the decoder refuses all of it.
    """
    position = 0
    while position < len(data):
        base = None
        try:
            first = data[position]
            position += 1
            if version == 1 and first < 0x80:
                length = first + 3
                base, position = _varint(data, position + 1)
            elif version == 1:
                length = 256 - first
                for _ in range(length):
                    _, position = _varint(data, position)
            elif first < 0x40:
                length = (first & 7) + 3
                position += (first >> 3) + 1
            else:
                code, length = (first >> 1) & 31, ((first & 1) << 8 | data[position]) + 1
                position += 1
                num_bits = length * _WIDTHS[code]
                if first >= 0xC0:
                    base, position = _varint(data, position)
                    _, position = _varint(data, position)
                    num_bits = max(length - 2, 0) * _WIDTHS[code] if code else 0
                elif first >= 0x80:
                    base, third, fourth = 0, data[position], data[position + 1]
                    width = min((fourth >> 5) + 1 + _WIDTHS[third & 31], 64)
                    patch_bits = (fourth & 31) * min(w for w in _WIDTHS if w >= width)
                    position += 2 + (third >> 5) + 1 + (patch_bits + 7) // 8
                position += (num_bits + 7) // 8
        except IndexError:
            position = len(data) + 1
        if position > len(data):
            if version == 1:
                raise ValueError("a stream of integers ends inside a run")
            length, position, base = 0, len(data), None
        yield length, position, base


def _as_unsigned(values: Integers, ends: Sequence[tuple[int, int | None]]) -> Integers:
    """The integers of runs with these ends, which were decoded as signed ones."""
    found, begin = (values << 1) ^ (values >> 63), 0
    for end, base in ends:
        if base is not None:
            more = base - ((base >> 1) ^ -(base & 1))
            found[begin:end] = values[begin:end] + ((more + 2**63) % 2**64 - 2**63)
        begin = end
    return found


def decode_signed(streams: Mapping[int, bytes], count: int, version: int) -> pa.Array:
    """So many rows of a column of 64 bits with these streams."""
    encodings = _message([(2, b""), (2, _message([(1, 2 * version - 2)]))])
    file = write_file(_ONE_NUMBER, encodings, [(count, [(1, kind, data) for kind, data in streams.items()])])
    return po.ORCFile(pa.BufferReader(file)).reader.read_stripe(0).column(0)


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
    message = last_of_each(tail)
    postscript, footer = message_of(message, 1), message_of(message, 2)
    parts = fields_of(message.get(2, b""))
    stripes = [_stripe(last_of_each(value), file_size) for number, value in parts if number == 3]
    num_rows = int(footer.get(6, 0))
    if sum(s.num_rows for s in stripes) != num_rows:
        raise ValueError(f"footer states {num_rows} rows, its stripes {sum(s.num_rows for s in stripes)}")
    metadata_length = int(postscript.get(5, 0))
    end = file_size - 1 - int(message.get(4, 0)) - int(postscript.get(1, 0))
    block_bytes = min(int(postscript.get(3, 0)), _MAX_BLOCK_BYTES)
    return OrcTail(
        tuple(stripes),
        num_rows,
        int(postscript.get(2, 0)),
        block_bytes,
        max(end - metadata_length, 0),
        metadata_length,
        int(footer.get(8, 0)),
    )


def require_small_footer(source: ByteSource) -> None:
    """Decompress the footer within bounds, as pyarrow would do without.

    Raises:
        pa.ArrowNotImplementedError: a very large footer.
        ValueError: a postscript or footer that is broken.
    """
    size = source.size()
    end = source.read_at(min(size, 256), max(size - 256, 0))
    postscript = last_of_each(end[-1 - end[-1] : -1]) if end else {}
    length, compression = int(postscript.get(1, 0)), int(postscript.get(2, 0))
    if not 0 < length < size or compression not in _BOUNDED_CODECS:
        return
    block_bytes = min(int(postscript.get(3, 0)), _MAX_BLOCK_BYTES)
    footer = source.read_at(length, max(size - 1 - end[-1] - length, 0))
    decompress(footer, OrcTail((), 0, compression, block_bytes, 0, 0))


def parse_stripe_statistics(section: bytes, tail: OrcTail) -> list[list[bytes]] | None:
    """For each stripe the serialised statistics of every column; None if they cannot be decompressed here."""
    try:
        plain = decompress(section, tail)
    except pa.ArrowNotImplementedError:
        return None
    return [[bytes(v) for n, v in fields_of(stripe) if n == 1] for number, stripe in fields_of(plain) if number == 1]


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
            stream = last_of_each(value)
            kind, column, length = (int(stream.get(i, 0)) for i in (1, 2, 3))
            if offset + length > end:
                raise ValueError(f"a stream of {length} bytes at {offset} ends outside of its stripe")
            streams.setdefault((column, kind), (offset, length))  # as the decoder takes them
            offset += length
        elif number == 2:
            encodings.append(last_of_each(value))
        elif number == 3:
            zone = bytes(value).decode("ascii", "replace")
    return StripeFooter(streams, encodings, zone)


def parse_row_index(stream: bytes) -> list[tuple[list[int], bytes]]:
    """The positions and serialised statistics of each row group of a column, from the message `RowIndex`.

    Raises:
        ValueError: broken protobuf.
    """
    entries = [last_of_each(value) for number, value in fields_of(stream) if number == 1]
    return [(_varints(entry.get(1, b"")), bytes(entry.get(2, b""))) for entry in entries]


def _varints(data: bytes | memoryview) -> list[int]:
    values, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        values.append(value)
    return values


WHOLE, BYTES, UNSIGNED, SIGNED, BITS = (0, False), (1, False), (2, False), (2, True), (3, False)
"""How a stream stores values: number of positions that locate one inside a block, and whether numbers are signed; as a whole."""


class StreamPart(NamedTuple):
    """The bytes of a stream that hold the values of some successive row groups.

    `position` locates the first value in them: bytes out of compression, then values of the run that begins there,
    then bits.
    """

    column: int
    kind: int
    form: tuple[int, bool]
    offset: int
    num_bytes: int
    position: Sequence[int]

    def values(self, stored: bytes, tail: OrcTail) -> bytes:
        """The stream from the first value on, out of compression; other values may follow.

        Raises:
            pa.ArrowNotImplementedError: as `decompress`.
            ValueError: it ends before.
        """
        skipped, *in_run = self.position
        data = decompress(stored, tail, is_cut=True)[skipped:]
        if not any(in_run):
            return data
        if self.form is not BITS:
            return _drop_integers(data, in_run[0], signed=self.form is SIGNED)
        bits = np.unpackbits(_decode_bytes(data))
        plain = np.packbits(bits[8 * in_run[0] + in_run[1] :]).tobytes()
        groups = (plain[at : at + 128] for at in range(0, len(plain), 128))
        return b"".join(bytes([256 - len(group)]) + group for group in groups)


def locate_part(
    stream: tuple[int, int, tuple[int, bool]],
    place: tuple[int, int],
    positions: Integers,
    count: int,
    tail: OrcTail,
) -> StreamPart:
    """The part of a stream that holds `count` row groups, and perhaps more.

    Args:
        stream: its column and kind, and how it stores values.
        place: its offset and length.
        positions: of the first of these row groups and of all after it: where a block begins, then the position in it.
        count: number of row groups.
        tail: of the file.

    Raises:
        ValueError: positions outside of the stream, or not ascending.
    """
    offset, length = place
    if stream[2] is WHOLE:
        return StreamPart(*stream, offset, length, [0])
    first, *position = positions[0].tolist()
    stop = length
    if count < len(positions):
        later, inside = np.unique(positions[count:, 0]), positions[count, 1:]
        # the next row group may begin inside a block, and behind some values that may reach into another block
        blocks = int(inside.any()) + int(inside[1:].any())
        block_bytes = tail.block_bytes if tail.compression else 0
        stop = min(later[0] + blocks * max(_BLOCK_HEADER_BYTES + block_bytes, _MAX_RUN_BYTES), length)
        if block_bytes > _MAX_RUN_BYTES and blocks < len(later):
            stop = min(stop, later[blocks])
    if not 0 <= first <= stop:
        raise ValueError(f"row groups begin at byte {first} and end at byte {stop} of a stream of {length} bytes")
    position = position if tail.compression else [0, *position]
    return StreamPart(*stream, offset + first, int(stop) - first, position)


def _drop_integers(data: bytes, count: int, *, signed: bool) -> bytes:
    """A stream of encoding 2 without the first `count` integers: the rest of the run in which they end is encoded again.

    Raises:
        ValueError: the stream ends before.
    """
    end = found = 0
    for length, stop, _ in _runs(data, 2):
        if found >= count:
            break
        end, found = stop, found + length
    if found < count:
        raise ValueError("a stream of integers ends before a row group begins")
    values = decode_integers(data[:end], found, version=2, signed=signed)[count:]
    if not len(values):
        return data[end:]
    stored, last = (values << 1) ^ (values >> 63) if signed else values, len(values) - 1
    return bytes([0x7E | last >> 8, last & 255]) + stored.astype(">i8").tobytes() + data[end:]


def _decode_bytes(data: bytes) -> npt.NDArray[np.uint8]:
    """The bytes of a run-length encoded stream."""
    parts, position = list[bytes](), 0
    while position < len(data):
        times, length = (data[position] + 3, 1) if data[position] < 0x80 else (1, 256 - data[position])
        parts.append(data[position + 1 : position + 1 + length] * times)
        position += 1 + length
    return np.frombuffer(b"".join(parts), np.uint8)


def write_file(
    file_tail: bytes, stripe_footer: bytes, stripes: Sequence[tuple[int, Sequence[tuple[int, int, bytes]]]]
) -> bytes:
    """An ORC file without compression and statistics.

    Args:
        file_tail: of another file, with its types and writer.
        stripe_footer: of a stripe of it, with its encodings and time zone.
        stripes: rows and streams (column, kind and bytes) of each; columns without streams cannot be read.
    """
    whole = last_of_each(file_tail)
    kept = [field for field in fields_of(stripe_footer) if field[0] in {2, 3}]
    parts, places, offset = [b"ORC"], [], 3
    for num_rows, streams in stripes:
        stated = [(1, _message([(1, kind), (2, column), (3, len(stream))])) for column, kind, stream in streams]
        footer, data = _message([*stated, *kept]), b"".join(stream for _, _, stream in streams)
        places.append((3, _message([(1, offset), (3, len(data)), (4, len(footer)), (5, num_rows)])))
        parts += [data, footer]
        offset += len(data) + len(footer)
    schema = [field for field in fields_of(whole[2]) if field[0] in {4, 9, 11, 12}]  # types, writer and calendar
    end = _message([(1, 3), (2, offset), *places, *schema, (6, sum(num_rows for num_rows, _ in stripes))])
    postscript = bytes(whole[1]) + _message([(1, len(end)), (2, 0), (5, 0)])  # of a number the last counts
    return b"".join([*parts, end, postscript, bytes([len(postscript)])])


def _message(fields: Sequence[tuple[int, Any]]) -> bytes:
    """A Protobuf message of numbers, and of bytes and messages."""
    return b"".join(
        _as_varint(number << 3) + _as_varint(value)
        if isinstance(value, int)
        else _as_varint(number << 3 | 2) + _as_varint(len(value)) + value
        for number, value in fields
    )


def _as_varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _as_varint(value >> 7)


_ONE_NUMBER = _message(
    [(1, b""), (2, _message([(4, _message([(1, 12), (2, b"\1"), (3, b"x")])), (4, _message([(1, 4)]))]))]
)
"""Tail of a file with a column of 64 bits."""


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
    for message in (last_of_each(value) for number, value in fields_of(stream) if number == 1):
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
        while position < len(view):
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


def last_of_each(message: bytes | memoryview) -> dict[int, Any]:
    """The last value of each field number in a Protobuf message: of numbers the one that counts."""
    return dict(fields_of(message))


def decompress(section: bytes, tail: OrcTail, *, is_cut: bool = False) -> bytes:
    """The bytes of a section or stream, which is stored in blocks; `is_cut` ignores a last block that is not complete.

    Raises:
        pa.ArrowNotImplementedError: a codec that is not supported here (LZO, Brotli), or a very large section.
        ValueError: a block that is broken.
    """
    if tail.compression == 0:
        return section
    parts: list[bytes] = []
    position = size = 0
    while position + 3 <= len(section):
        header = int.from_bytes(section[position : position + 3], "little")
        position += 3
        block = section[position : position + (header >> 1)]
        position += header >> 1
        if is_cut and position > len(section):
            break
        parts.append(block if header & 1 else _decompress_block(block, tail.compression, tail.block_bytes))
        if (size := size + len(parts[-1])) > _MAX_SECTION_BYTES:
            raise pa.ArrowNotImplementedError(f"a section or stream of more than {_MAX_SECTION_BYTES} bytes")
    return b"".join(parts)


def _decompress_block(block: bytes, compression: int, max_bytes: int) -> bytes:
    """The codec is numbered as in the postscript: zlib, Snappy, LZO, LZ4, zstd, Brotli from 1 on."""
    try:
        match compression:
            case 1:
                return zlib.decompressobj(-15).decompress(block, max_bytes)
            case 2:
                length, _ = _varint(memoryview(block), 0)
                return bytes(pa.Codec("snappy").decompress(block, min(length, max_bytes), asbytes=True))
            case 4:
                return _decompress_lz4(block, max_bytes)
            case 5:
                with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
                    return bytes(stream.read(max_bytes))
            case 3 | 6:
                raise pa.ArrowNotImplementedError("what columns compressed by LZO or Brotli become cannot be bounded")
            case _:
                raise ValueError(f"it is compressed by codec {compression}")
    except (zlib.error, OSError, RuntimeError) as error:
        raise ValueError(f"a compressed block is broken: {error}") from error


def _decompress_lz4(block: bytes, max_bytes: int) -> bytes:
    import cramjam

    found = bytearray(max_bytes)
    try:
        return bytes(memoryview(found)[: cramjam.lz4.decompress_block_into(block, found, max_bytes)])
    except cramjam.DecompressionError as error:
        raise ValueError(f"a compressed block is broken: {error}") from error


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
    return last_of_each(value)


def zigzag(value: Any) -> int | None:
    """A signed integer in protobuf's form; None for other values."""
    return (value >> 1) ^ -(value & 1) if isinstance(value, int) else None
