"""Table metadata from files: metadata.json, manifest lists and manifests."""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.scan_core.metadata.avro_container import DAMAGE as DAMAGE
    from nevermore.scan_core.metadata.avro_container import MAX_EXPANSION as MAX_EXPANSION
    from nevermore.scan_core.metadata.avro_container import AvroError as AvroError
    from nevermore.scan_core.metadata.avro_container import Block as Block
    from nevermore.scan_core.metadata.avro_container import BlockTooLargeError as BlockTooLargeError
    from nevermore.scan_core.metadata.avro_container import decompress as decompress
    from nevermore.scan_core.metadata.avro_container import find_blocks as find_blocks
    from nevermore.scan_core.metadata.avro_container import malformed_avro as malformed_avro
    from nevermore.scan_core.metadata.avro_container import parse_avro_schema as parse_avro_schema
    from nevermore.scan_core.metadata.avro_container import read_blocks as read_blocks
    from nevermore.scan_core.metadata.avro_container import read_file_header as read_file_header
    from nevermore.scan_core.metadata.avro_container import read_header as read_header
    from nevermore.scan_core.metadata.avro_values import AvroReader as AvroReader
    from nevermore.scan_core.metadata.avro_values import Wanted as Wanted
    from nevermore.scan_core.metadata.avro_values import WideValuesError as WideValuesError
    from nevermore.scan_core.metadata.avro_values import parse_record as parse_record
    from nevermore.scan_core.metadata.avro_values import read_metadata_rows as read_metadata_rows
    from nevermore.scan_core.metadata.avro_values import union_members as union_members
    from nevermore.scan_core.metadata.manifest_list import DATA_MANIFEST as DATA_MANIFEST
    from nevermore.scan_core.metadata.manifest_list import ManifestFile as ManifestFile
    from nevermore.scan_core.metadata.manifest_list import snapshot_manifests as snapshot_manifests
    from nevermore.scan_core.metadata.manifests import read_data_manifests as read_data_manifests
    from nevermore.scan_core.metadata.manifests import read_delete_manifests as read_delete_manifests
    from nevermore.scan_core.metadata.table_json import decompress_document as decompress_document
    from nevermore.scan_core.metadata.table_json import load_document as load_document
    from nevermore.scan_core.metadata.table_json import parse_metadata as parse_metadata
    from nevermore.scan_core.metadata.table_json import read_document as read_document
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.scan_core.metadata.avro_container": (
                "AvroError Block BlockTooLargeError DAMAGE MAX_EXPANSION decompress find_blocks malformed_avro "
                "parse_avro_schema read_blocks read_file_header read_header"
            ),
            "nevermore.scan_core.metadata.avro_values": (
                "AvroReader Wanted WideValuesError parse_record read_metadata_rows union_members"
            ),
            "nevermore.scan_core.metadata.manifest_list": "DATA_MANIFEST ManifestFile snapshot_manifests",
            "nevermore.scan_core.metadata.manifests": "read_data_manifests read_delete_manifests",
            "nevermore.scan_core.metadata.table_json": "decompress_document load_document parse_metadata read_document",
        },
    )
