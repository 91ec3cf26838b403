"""Readers of data and delete files in Parquet, ORC and Avro."""

from typing import TYPE_CHECKING

from scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from scan_core.columns.file_reader import DecodingLimits as DecodingLimits
    from scan_core.columns.file_reader import FileReader as FileReader
    from scan_core.columns.file_reader import field_id_of as field_id_of
    from scan_core.files.avro import AvroField as AvroField
    from scan_core.files.avro import encode_long as encode_long
    from scan_core.files.avro import parse_record as parse_record
    from scan_core.files.avro import record_bytes as record_bytes
    from scan_core.files.avro import union_members as union_members
    from scan_core.files.formats import decode_column as decode_column
    from scan_core.files.formats import open_file as open_file
    from scan_core.files.parquet.checksums import BLOOM_FILTER as BLOOM_FILTER
    from scan_core.files.parquet.checksums import COLUMN_INDEX as COLUMN_INDEX
    from scan_core.files.parquet.checksums import HEADER_BYTES as HEADER_BYTES
    from scan_core.files.parquet.checksums import NUM_PARTS as NUM_PARTS
    from scan_core.files.parquet.checksums import OFFSET_INDEX as OFFSET_INDEX
    from scan_core.files.parquet.checksums import PAGE_HEADERS as PAGE_HEADERS
    from scan_core.files.parquet.checksums import blank_entries as blank_entries
    from scan_core.files.parquet.checksums import sealed as sealed
    from scan_core.files.parquet.decoded_size import DecodedSizes as DecodedSizes
    from scan_core.files.parquet.file_layout import has_wide_differences as has_wide_differences
    from scan_core.files.parquet.file_layout import read_layout as read_layout
    from scan_core.files.parquet.file_layout import read_wide_differences as read_wide_differences
    from scan_core.files.parquet.footer import parse_footer as parse_footer
    from scan_core.files.parquet.pages import page_places as page_places
    from scan_core.files.parquet.pages import parse_offset_index as parse_offset_index
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "scan_core.columns.file_reader": "DecodingLimits FileReader field_id_of",
            "scan_core.files.avro": "AvroField encode_long parse_record record_bytes union_members",
            "scan_core.files.formats": "decode_column open_file",
            "scan_core.files.parquet.checksums": (
                "BLOOM_FILTER COLUMN_INDEX HEADER_BYTES NUM_PARTS OFFSET_INDEX PAGE_HEADERS blank_entries sealed"
            ),
            "scan_core.files.parquet.decoded_size": "DecodedSizes",
            "scan_core.files.parquet.file_layout": "has_wide_differences read_layout read_wide_differences",
            "scan_core.files.parquet.footer": "parse_footer",
            "scan_core.files.parquet.pages": "page_places parse_offset_index",
        },
    )
