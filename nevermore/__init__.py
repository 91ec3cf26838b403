"""Change data capture into Apache Iceberg: the few names that most programs need, and the four packages below.

`open_project` gives the tables of a config, `open_table` reads any Iceberg table, `upsert` and `delete` write to one, `col`
builds filters, the errors say what went wrong. The folders of the repository are linked here, so that their import names are `nevermore.scan_core`, `nevermore.pipelines`,
`nevermore.checks` and `nevermore.assets` and never meet a user's own packages.

Names load on first use: importing `nevermore` imports none of them.
"""

from nevermore.scan_core.model.exports import lazy_exports

_load, __dir__, __all__ = lazy_exports(__name__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from nevermore.pipelines import own_version

        return own_version()
    return _load(name)
