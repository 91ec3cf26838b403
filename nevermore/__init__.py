"""Change data capture into Apache Iceberg: the few names that most programs need, and the four packages below.

`open_table` reads any Iceberg table, `col` builds its filters, the errors say what went wrong. The folders of the
repository are linked here, so that their import names are `nevermore.scan_core`, `nevermore.pipelines`,
`nevermore.checks` and `nevermore.assets` and never meet a user's own packages.

Names load on first use: importing `nevermore` imports none of them.
"""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.pipelines.errors import PipelineError as PipelineError
    from nevermore.scan_core.expr.nodes import col as col
    from nevermore.scan_core.model.errors import ScanError as ScanError
    from nevermore.scan_core.scan import open_table as open_table
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.pipelines.errors": "PipelineError",
            "nevermore.scan_core.expr.nodes": "col",
            "nevermore.scan_core.model.errors": "ScanError",
            "nevermore.scan_core.scan": "open_table",
        },
    )
