"""Which manifests and data files can hold a row that fulfils the scan's filter.

Only narrows: unknown means keep. What a partition value or bound says about an expression is the business of
`prune/`; here the facts of files are brought to it.
"""

from scan_core.manifests import ManifestFile
from scan_core.metadata import TableMetadata
from scan_core.snapshot import DataFile
from scan_core.split import ScanContext


class FilePruner:
    """The scan's filter against partitions and bounds; verdicts on partitions are remembered."""

    def __init__(self, metadata: TableMetadata, context: ScanContext) -> None:
        self._metadata = metadata
        self._context = context

    @property
    def is_active(self) -> bool:
        """False if there is nothing to prune by."""
        return False

    def may_hold_rows(self, manifest: ManifestFile) -> bool:
        """False if no file of the manifest can hold a row of the result."""
        return True

    def reason_to_skip(self, file: DataFile) -> str | None:
        """Why the file holds no row of the result; None if it may hold one."""
        return None
