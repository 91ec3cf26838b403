"""What stands in front of the bodies of pages, compared with what files of our writers state elsewhere.

A page's CRC covers its body only. A wrong number of values in the header of one page would move the rows of all that
follow, and no decoder would notice.
"""

from collections.abc import Sequence
from zlib import crc32

from scan_core.read.byte_ranges import ByteSource, Range
from scan_core.read.checksums import HEADER_BYTES, OFFSET_INDEX, PAGE_HEADERS, check_part
from scan_core.read.footer import DATA_PAGE, DATA_PAGE_V2, PLAIN_DICTIONARY, RLE_DICTIONARY, Chunk, Footer
from scan_core.read.page_index import page_places, parse_offset_index


class PageHeaders:
    """The headers of the pages of an open file; those of a chunk are compared once."""

    def __init__(self, source: ByteSource, footer: Footer) -> None:
        self._source = source
        self._footer = footer
        self._checked: set[tuple[int, int]] = set()

    def ranges(self, row_group: int, leaves: Sequence[int]) -> list[Range]:
        """What `check` reads beside the chunks themselves."""
        if self._footer.checksums is None:
            return []
        chunks = self._footer.row_groups[row_group].chunks
        return [place for leaf in leaves if (place := chunks[leaf].offset_index) is not None]

    def check(self, row_group: int, leaves: Sequence[int]) -> None:
        """Compare the first bytes of all pages of these chunks with their checksum, where the file has one.

        Raises:
            ValueError: it is wrong.
        """
        checksums, group = self._footer.checksums, self._footer.row_groups[row_group]
        if checksums is None:
            return
        wanted = [
            leaf
            for leaf in leaves
            if checksums[row_group, leaf, PAGE_HEADERS] and (row_group, leaf) not in self._checked
        ]
        for leaf, index in zip(wanted, self._source.read(self.ranges(row_group, wanted)), strict=True):
            check_part(checksums, row_group, leaf, OFFSET_INDEX, index)
            locations = parse_offset_index(bytes(index), group.chunks[leaf], group.num_rows)
            if locations is None:
                raise ValueError("the offset index contradicts the footer")
            places = page_places(group.chunks[leaf], locations)
            beginnings = self._source.read([(at, min(length, HEADER_BYTES)) for at, length in places])
            if crc32(b"".join(beginnings)) != checksums[row_group, leaf, PAGE_HEADERS]:
                raise ValueError("the checksum of the page headers is wrong: the bytes are damaged")
            self._checked.add((row_group, leaf))


def page_encodings(chunk: Chunk, num_pages: int) -> list[int] | None:
    """The encoding of each data page by the footer, for files of our writers; None if it does not tell.

    A chunk whose dictionary grows too large goes on without it: what the dictionary encodes comes first.
    """
    stated = chunk.metadata.get(13)
    if not isinstance(stated, list):
        return None
    pages = [s for s in stated if s.get(1) in {DATA_PAGE, DATA_PAGE_V2}]
    pages.sort(key=lambda s: s.get(2) not in {PLAIN_DICTIONARY, RLE_DICTIONARY})
    found = [s[2] for s in pages for _ in range(min(s[3], num_pages + 1))]
    return found if len(found) == num_pages else None
