"""Where the pages of a Parquet file lie, for tests that damage them."""

from nevermore.scan_core.files.parquet.file_layout import PageLocations, parse_offset_indexes
from nevermore.scan_core.files.parquet.footer import Chunk


def page_places(chunk: Chunk, locations: PageLocations) -> list[tuple[int, int]]:
    """Offset and length of every page of a chunk, the dictionary page first, if it has one."""
    pages = list(zip(locations.offsets.tolist(), locations.lengths.tolist(), strict=True))
    before = pages[0][0] - chunk.start
    return [(chunk.start, before), *pages] if before else pages


def parse_offset_index(data: bytes, chunk: Chunk, num_rows: int) -> PageLocations | None:
    """Page locations from the bytes of one offset index."""
    return parse_offset_indexes([data], [chunk], num_rows)[0]
