"""Readers of data and delete files in Parquet, ORC and Avro."""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.scan_core.columns.file_reader import DecodingLimits as DecodingLimits
    from nevermore.scan_core.columns.file_reader import FileReader as FileReader
    from nevermore.scan_core.columns.file_reader import field_id_of as field_id_of
    from nevermore.scan_core.files.avro import record_bytes as record_bytes
    from nevermore.scan_core.files.formats import decode_column as decode_column
    from nevermore.scan_core.files.formats import open_file as open_file
    from nevermore.scan_core.files.parquet.decoded_size import DecodedSizes as DecodedSizes
    from nevermore.scan_core.files.parquet.file_layout import has_wide_differences as has_wide_differences
    from nevermore.scan_core.files.parquet.file_layout import read_layout as read_layout
    from nevermore.scan_core.files.parquet.file_layout import read_wide_differences as read_wide_differences
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.scan_core.columns.file_reader": "DecodingLimits FileReader field_id_of",
            "nevermore.scan_core.files.avro": "record_bytes",
            "nevermore.scan_core.files.formats": "decode_column open_file",
            "nevermore.scan_core.files.parquet.decoded_size": "DecodedSizes",
            "nevermore.scan_core.files.parquet.file_layout": "has_wide_differences read_layout read_wide_differences",
        },
    )
