"""Change data capture into Apache Iceberg: the few names that most programs need, and the four packages below.

`open_project` gives the tables of a config, `open_table` reads any Iceberg table, `col` builds filters, the errors say what
went wrong. The folders of the
repository are linked here, so that their import names are `nevermore.scan_core`, `nevermore.pipelines`,
`nevermore.checks` and `nevermore.assets` and never meet a user's own packages.

Names load on first use: importing `nevermore` imports none of them.
"""

from typing import TYPE_CHECKING

from nevermore.scan_core.model.exports import lazy_exports

if TYPE_CHECKING:
    from nevermore.pipelines.errors import PipelineError as PipelineError
    from nevermore.pipelines.ingest.project import open_project as open_project
    from nevermore.pipelines.ingest.project import open_table as open_table
    from nevermore.scan_core.expr.nodes import col as col
    from nevermore.scan_core.model.errors import ScanError as ScanError

    __version__: str
else:
    _load, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "nevermore.pipelines.errors": "PipelineError",
            "nevermore.pipelines.ingest.project": "open_project open_table",
            "nevermore.scan_core.expr.nodes": "col",
            "nevermore.scan_core.model.errors": "ScanError",
        },
    )

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from nevermore.pipelines import own_version

            return own_version()
        return _load(name)
