"""Bitmap indexes of data files in Puffin files."""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.scan_core.bitmaps.column_index import BLOB_TYPE as BLOB_TYPE
    from nevermore.scan_core.bitmaps.column_index import COLUMN_TYPE as COLUMN_TYPE
    from nevermore.scan_core.bitmaps.column_index import DATA_FILE as DATA_FILE
    from nevermore.scan_core.bitmaps.column_index import DIRECTORY_BYTES as DIRECTORY_BYTES
    from nevermore.scan_core.bitmaps.column_index import FILE_BYTES as FILE_BYTES
    from nevermore.scan_core.bitmaps.column_index import IS_LIST as IS_LIST
    from nevermore.scan_core.bitmaps.column_index import RECORD_COUNT as RECORD_COUNT
    from nevermore.scan_core.bitmaps.column_index import encode_directory as encode_directory
    from nevermore.scan_core.bitmaps.column_index import is_indexable as is_indexable
    from nevermore.scan_core.bitmaps.find import FILE_SUFFIX as FILE_SUFFIX
    from nevermore.scan_core.bitmaps.find import cached_footer as cached_footer
    from nevermore.scan_core.bitmaps.find import describes as describes
    from nevermore.scan_core.bitmaps.find import statistics_paths as statistics_paths
    from nevermore.scan_core.bitmaps.puffin import MAGIC as MAGIC
    from nevermore.scan_core.bitmaps.puffin import PuffinBlob as PuffinBlob
    from nevermore.scan_core.bitmaps.puffin import footer_bytes as footer_bytes
    from nevermore.scan_core.bitmaps.puffin import read_footer as read_footer
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.scan_core.bitmaps.column_index": (
                "BLOB_TYPE COLUMN_TYPE DATA_FILE DIRECTORY_BYTES FILE_BYTES IS_LIST RECORD_COUNT "
                "encode_directory is_indexable"
            ),
            "nevermore.scan_core.bitmaps.find": "FILE_SUFFIX cached_footer describes statistics_paths",
            "nevermore.scan_core.bitmaps.puffin": "MAGIC PuffinBlob footer_bytes read_footer",
        },
    )
