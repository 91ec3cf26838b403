"""Byte ranges of one file, read with few requests: near ones as one, on object stores several at a time.

A request to an object store costs as much time as a megabyte of its answer, one to a local disk as much as a few
kilobytes: what lies between two ranges is read over or around accordingly.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

Range = tuple[int, int]
"""Offset and length."""

_LOCAL_BRIDGE = 16 * 1024
_REMOTE_BRIDGE = 1024 * 1024
_REMOTE_REQUEST = 8 * 1024 * 1024
"""Ranges are joined up to this size; larger answers gain nothing from being one."""
_REQUESTS_AT_A_TIME = 8


class ByteRanges:
    """Reads ranges of an open file."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._is_remote = not isinstance(source, pa.OSFile | pa.MemoryMappedFile | pa.BufferReader)

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """The bytes of each range, in the order given; shorter where the file ends."""
        order = sorted(range(len(ranges)), key=lambda i: ranges[i])
        groups = self._grouped([ranges[i] for i in order])
        spans = [(group[0][0], max(sum(r) for r in group) - group[0][0]) for group in groups]
        found: list[memoryview] = [memoryview(b"")] * len(ranges)
        following = 0
        for group, (start, _), data in zip(groups, spans, self._fetch(spans), strict=True):
            for offset, length in group:
                found[order[following]] = data[offset - start : offset - start + length]
                following += 1
        return found

    def _grouped(self, ranges: Sequence[Range]) -> list[list[Range]]:
        bridge = _REMOTE_BRIDGE if self._is_remote else _LOCAL_BRIDGE
        groups: list[list[Range]] = []
        for offset, length in ranges:
            if groups:
                start, end = groups[-1][0][0], max(sum(r) for r in groups[-1][-1:])
                is_small = not self._is_remote or offset + length - start <= _REMOTE_REQUEST
                if offset <= end + bridge and is_small:
                    groups[-1].append((offset, length))
                    continue
            groups.append([(offset, length)])
        return groups

    def _fetch(self, spans: Sequence[Range]) -> list[memoryview]:
        if not self._is_remote or len(spans) <= 1:
            return [self._one(span) for span in spans]
        with ThreadPoolExecutor(min(len(spans), _REQUESTS_AT_A_TIME), "scan-range") as pool:
            return list(pool.map(self._one, spans))

    def _one(self, span: Range) -> memoryview:
        return memoryview(self._source.read_at(span[1], span[0]))
