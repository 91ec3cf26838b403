"""Paths and bytes: locations, files, object stores, the catalog library, private files, caches of a process."""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.scan_core.io.cache import BoundedCache as BoundedCache
    from nevermore.scan_core.io.catalog import filesystem as filesystem
    from nevermore.scan_core.io.catalog import load_catalog as load_catalog
    from nevermore.scan_core.io.catalog import load_table as load_table
    from nevermore.scan_core.io.catalog import table_facts as table_facts
    from nevermore.scan_core.io.catalog import with_file_io as with_file_io
    from nevermore.scan_core.io.files import exists as exists
    from nevermore.scan_core.io.files import file_size as file_size
    from nevermore.scan_core.io.files import read_bytes as read_bytes
    from nevermore.scan_core.io.location import FileIOConfig as FileIOConfig
    from nevermore.scan_core.io.location import is_within as is_within
    from nevermore.scan_core.io.location import parse_location as parse_location
    from nevermore.scan_core.io.location import relocate as relocate
    from nevermore.scan_core.io.object_store import clear_caches as clear_caches
    from nevermore.scan_core.io.private_files import remove_leftovers as remove_leftovers
    from nevermore.scan_core.io.private_files import spill_folder as spill_folder
    from nevermore.scan_core.io.private_files import temporary_folder as temporary_folder
    from nevermore.scan_core.io.private_files import user_folder as user_folder
    from nevermore.scan_core.io.private_files import whole_file as whole_file
    from nevermore.scan_core.io.remote import ByteRanges as ByteRanges
    from nevermore.scan_core.model.cached_property import cached_property as cached_property
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.scan_core.io.cache": "BoundedCache",
            "nevermore.scan_core.io.catalog": "filesystem load_catalog load_table table_facts with_file_io",
            "nevermore.scan_core.io.object_store": "clear_caches",
            "nevermore.scan_core.io.files": "exists file_size read_bytes",
            "nevermore.scan_core.io.location": "FileIOConfig is_within parse_location relocate",
            "nevermore.scan_core.io.private_files": "remove_leftovers spill_folder temporary_folder user_folder whole_file",
            "nevermore.scan_core.io.remote": "ByteRanges",
            "nevermore.scan_core.model.cached_property": "cached_property",
        },
    )
