"""Timestamps of a stripe that the decoder refuses, because it knows only nanoseconds: years before 1678 or after 2261.

Read from the streams of the column, in microseconds, as the decoder would: seconds since 2015 and, apart, nanoseconds.
(ORC v1 specification, Timestamp Columns; for times before 1970 what all implementations do.)
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from scan_core.read.orc_runs import decode_booleans, decode_integers
from scan_core.read.orc_tail import OrcTail, Stripe, decompress_section, fields_of, first_of_each

_EPOCH_SECONDS = 1_420_070_400
"""2015-01-01, from which ORC counts."""
_PRESENT, _DATA, _SECONDARY = 0, 1, 5
_VERSION_OF_ENCODING = {0: 1, 2: 2}
_MOST_SECONDS = 2**63 // 10**6 - 1
_UTC = frozenset({"", "UTC", "GMT", "Etc/UTC", "Etc/GMT", "Z"})


def read_timestamps(source: pa.NativeFile, tail: OrcTail, stripe_index: int, column_id: int) -> pa.Array:
    """One top-level timestamp column of a stripe, as `timestamp[us]` without zone.

    Args:
        source: the file.
        tail: of the file.
        stripe_index: which stripe.
        column_id: as ORC numbers the types of the schema.

    Raises:
        ValueError: streams that end early or contradict each other.
        pa.ArrowNotImplementedError: a codec, encoding or time zone that is not supported.
    """
    stripe = tail.stripes[stripe_index]
    footer_at = stripe.offset + stripe.num_bytes - stripe.footer_bytes
    footer = _plain(source.read_at(stripe.footer_bytes, footer_at), tail)
    zone = bytes(first_of_each(footer).get(3, b"")).decode("ascii", "replace")
    if zone not in _UTC:
        raise pa.ArrowNotImplementedError(f"timestamps beyond 1678 to 2261 written in the time zone {zone!r:.40}")
    encodings = [first_of_each(value).get(1, 0) for number, value in fields_of(footer) if number == 2]
    version = _VERSION_OF_ENCODING.get(encodings[column_id]) if column_id < len(encodings) else None
    if version is None:
        raise pa.ArrowNotImplementedError("an encoding of timestamps that is not known")
    streams = _streams(footer, stripe, column_id)
    data = {kind: _plain(source.read_at(length, at), tail) for kind, (at, length) in streams.items()}
    present = decode_booleans(data[_PRESENT], stripe.num_rows) if _PRESENT in data else None
    num_values = stripe.num_rows if present is None else int(present.sum())
    seconds = decode_integers(data.get(_DATA, b""), num_values, version=version, signed=True)
    nanos = _nanoseconds(decode_integers(data.get(_SECONDARY, b""), num_values, version=version, signed=False))
    return _with_nulls(_microseconds(seconds, nanos), present)


def _streams(footer: bytes, stripe: Stripe, column_id: int) -> dict[int, tuple[int, int]]:
    """Where the streams of a column lie, by kind."""
    found: dict[int, tuple[int, int]] = {}
    offset, end = stripe.offset, stripe.offset + stripe.num_bytes
    for number, value in fields_of(footer):
        if number != 1:
            continue
        stream = first_of_each(value)
        kind, column, length = (int(stream.get(i, 0)) for i in (1, 2, 3))
        if offset + length > end:
            raise ValueError(f"a stream of {length} bytes at {offset} ends outside of its stripe")
        if column == column_id and kind in {_PRESENT, _DATA, _SECONDARY}:
            found[kind] = (offset, length)
        offset += length
    return found


def _plain(data: bytes, tail: OrcTail) -> bytes:
    plain = decompress_section(data, tail.compression)
    if plain is None:
        raise pa.ArrowNotImplementedError(f"compression {tail.compression} of timestamps beyond 1678 to 2261")
    return plain


def _nanoseconds(encoded: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The last three bits tell how many zeros, less one, were cut off."""
    zeros = encoded & 7
    return (encoded >> 3) * np.where(zeros, 10 ** (zeros + 1), 1)


def _microseconds(seconds: npt.NDArray[np.int64], nanos: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if (np.abs(nanos) >= 10**9).any() or (np.abs(seconds) > _MOST_SECONDS - _EPOCH_SECONDS).any():
        raise ValueError("a timestamp that 64 bits of microseconds cannot hold")
    seconds = seconds + _EPOCH_SECONDS
    # Java and C++ count seconds before 1970 toward it and nanoseconds away from it; Arrow writes these as negative
    seconds -= (seconds < 0) & (nanos > 999_999)
    micros: npt.NDArray[np.int64] = seconds * 1_000_000 + nanos // 1000
    return micros


def _with_nulls(values: npt.NDArray[np.int64], present: npt.NDArray[np.bool_] | None) -> pa.Array:
    kind: Any = pa.timestamp("us")
    if present is None:
        return pa.array(values).view(kind)
    all_rows = np.zeros(len(present), np.int64)
    all_rows[present] = values
    return pa.array(all_rows, mask=~present).view(kind)
