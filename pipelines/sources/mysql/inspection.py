"""Looks at a MySQL or MariaDB server before it is read: its settings, rights, binary log and tables for `nevermore doctor`."""

import time
from collections.abc import Iterator

from pipelines.config.sources import MysqlSource
from pipelines.errors import PipelineError
from pipelines.sources.live import Finding, Wanted, clock_finding
from pipelines.sources.mysql.load import refused
from pipelines.sources.mysql.server import Server


def findings(source: MysqlSource, wanted: Wanted) -> Iterator[Finding]:
    """Look at settings, rights, the log and tables.

    The first failure to connect ends it.
    """
    server = Server(source)
    try:
        yield Finding("connection", "ok", f"{server.title}, database {server.database or 'all'}")
        for name, wrong in server.settings().items():
            yield Finding(name, "ok", "as it must be") if wrong is None else Finding(name, "failed", wrong)
        yield from _log(server)
        for table in sorted(wanted(server.tables())):
            yield _table(server, table)
        began = time.time()
        theirs = float(server.value("SELECT UNIX_TIMESTAMP(NOW(6))"))
        yield clock_finding("the database", theirs - (began + time.time()) / 2)
    except PipelineError as error:
        yield Finding("connection", "failed", str(error))
    finally:
        server.close()


def _log(server: Server) -> Iterator[Finding]:
    grants = " ".join(str(row[0]) for row in server.query("SHOW GRANTS")).upper()
    may_read = any(right in grants for right in ("REPLICATION SLAVE", "REPLICATION REPLICA", "ALL PRIVILEGES ON *.*"))
    to_see = "BINLOG MONITOR" if server.is_mariadb else "REPLICATION CLIENT"
    if may_read:
        yield Finding("right to replicate", "ok", "the user may read the binary log")
    else:
        what = f"the user may not: GRANT REPLICATION SLAVE, {to_see} ON *.* TO the user of the config"
        yield Finding("right to replicate", "failed", what)
    try:
        files = server.files()
        yield Finding("binary log", "ok", f"{len(files)} file{'s' * (len(files) != 1)}, from {files[0]} on")
    except PipelineError as error:
        yield Finding("binary log", "failed", f"{error}: GRANT {to_see} ON *.* TO the user of the config")
    if not server.is_mariadb:
        if "LOCK TABLES" in grants or "ALL PRIVILEGES" in grants:
            yield Finding(
                "right to load", "ok", "the user may lock tables, for the moment in which a part of their load begins"
            )
        else:
            what = "the user may not lock tables, as each part of a load does for a moment: GRANT LOCK TABLES ON *.* TO the user"
            yield Finding("right to load", "failed", what)


def _table(server: Server, table: str) -> Finding:
    try:
        server.check_engine(table)
        described = server.describe(table)
    except PipelineError as error:
        return Finding(f"table {table}", "failed", str(error))
    if not described.key:
        what = "it has no primary key: ALTER TABLE ... ADD PRIMARY KEY, or set identity: full or key in the config"
        return Finding(f"table {table}", "warning", what)
    if unreadable := refused(described):
        what = ", ".join(f"{name} ({kind})" for name, kind in unreadable.items())
        return Finding(f"table {table}", "warning", f"columns that cannot be read and must be excluded: {what}")
    return Finding(f"table {table}", "ok", f"readable, identified by {', '.join(described.key)}")
