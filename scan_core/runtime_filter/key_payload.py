"""Key tables as bytes and text: how they reach other processes."""

import base64

import pyarrow as pa

from scan_core.errors import OptionError

_CODEC = "zstd"


def to_bytes(table: pa.Table) -> bytes:
    """An Arrow stream, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=_CODEC)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    """The inverse.

    Raises:
        OptionError: not such bytes.
    """
    try:
        return pa.ipc.open_stream(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise OptionError(f"keys of a runtime filter cannot be read: {error}") from error


def to_text(table: pa.Table) -> str:
    """The bytes in characters that every option can hold."""
    return base64.b85encode(to_bytes(table)).decode("ascii")


def from_text(text: str) -> pa.Table:
    """The inverse.

    Raises:
        OptionError: not such text.
    """
    try:
        return from_bytes(base64.b85decode(text))
    except ValueError as error:
        raise OptionError(f"keys of a runtime filter cannot be read: {error}") from error
