"""One delete index per host: the Python workers of a host map what one of them has built.

Spark's workers are processes of one user; they meet in a folder of that user alone. Its size is bounded by
`deletes/index_file.py`.
"""

from dataclasses import replace

from scan_core.private_files import user_folder
from scan_core.split import ScanContext


def with_shared_indexes(context: ScanContext) -> ScanContext:
    """The context of a task, which shares indexes with the other workers of its host unless the scan says otherwise."""
    options = context.options
    if not options.share_indexes or options.index_folder is not None:
        return context
    return replace(context, options=replace(options, index_folder=str(user_folder("indexes").path)))
