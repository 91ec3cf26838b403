"""What Spark's side of this package is given: a session and a scan, anything else refused by what would be right.

`DataFrame`s of Spark take paths, names and conditions where ours take a scan, so that mistakes are near.
"""

from pyspark.sql import DataFrame

from scan_core.errors import OptionError


def require_session(spark: object) -> None:
    """Check that something is a Spark session, classic or Connect.

    Raises:
        OptionError: it is not.
    """
    if not (hasattr(spark, "createDataFrame") and hasattr(spark, "conf")):
        raise OptionError(f"the first argument is a Spark session, not {_named(spark)}: dataframe(spark, scan)")


def require_scan(scan: object, *, what: str = "dataframe") -> None:
    """Check that something is a scan.

    Raises:
        OptionError: it is a table, a path or anything else.
    """
    from scan_core.scan import Scan
    from scan_core.table import Table

    if isinstance(scan, Scan):
        return
    if isinstance(scan, Table):
        raise OptionError(f"{what} takes a scan, not a table: table.scan() reads all of it")
    if isinstance(scan, str):
        raise OptionError(
            f"{what} takes a scan, not text: scan_core.open_table({scan!r}).scan() reads a table by its path"
        )
    raise OptionError(f"{what} takes a scan, not {_named(scan)}: scan_core.open_table(...).scan()")


def require_side(side: object, name: str) -> None:
    """Check that one side of a join is a scan or a DataFrame.

    Raises:
        OptionError: it is neither.
    """
    if not isinstance(side, DataFrame):
        require_scan(side, what=f"join, as its {name},")


def _named(value: object) -> str:
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    return f"{article} {type(value).__name__}"
