"""The errors of the pipelines, by what the caller can do about them.

One base, few children; each has the exit code of a command that fails with it. A problem of a single event is not an
error: the event goes to quarantine.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from nevermore.scan_core import ScanError
from nevermore.scan_core.io import hide_in_error, hide_secrets


class PipelineError(Exception):
    """Base of every error that pipelines raise on purpose. Its text shows no secrets."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        hide_in_error(self)  # a traceback also shows the causes
        return hide_secrets(Exception.__str__(self))


class LostEventsError(PipelineError):
    """Events got lost while they were decoded, which is a fault of this package: nothing is written."""


class ConfigError(PipelineError, ValueError):
    """A config file that cannot be used: names the line, the value and the nearest valid name."""

    exit_code: ClassVar[int] = 2


class SourceError(PipelineError):
    """A source that cannot be read: no such path, unreadable file, ambiguous format."""


class WideBatchError(SourceError):
    """Events of a batch whose members have so many names that its columns would take far more memory than its bytes.

    Parts of the batch may be decoded one after the other; see `registry.parts_of`.
    """


class SchemaConflictError(PipelineError, ValueError):
    """A table or batch whose columns cannot be written: illegal key type, unknown key column, illegal change."""


class QuarantineLimitError(PipelineError):
    """More events of a batch were rejected than `max_quarantine_ratio` allows; nothing of the batch was applied."""


class CommitConflictError(PipelineError):
    """Another writer changed the table first; `may_retry` is False where trying again would be wrong."""

    def __init__(self, message: str, *, may_retry: bool = True) -> None:
        super().__init__(message)
        self.may_retry = may_retry


class AnotherIngesterError(CommitConflictError, SourceError):
    """Another ingester works on the same table or slot, and takes what is new."""

    def __init__(self, message: str) -> None:
        super().__init__(message, may_retry=False)


class CommitUnknownError(PipelineError):
    """A catalog does not reveal whether a commit happened. Files of such a commit are never removed."""


class CommitNotWrittenError(PipelineError, OSError):
    """The metadata of a commit could not be written, as the disk is full or broken: nothing of it has happened."""


class PositionLostError(PipelineError):
    """A table has rows but no source position: starting from zero would apply everything twice."""


class CatalogMismatchError(PipelineError):
    """A warehouse has tables that its catalog lacks or has in an older state: `nevermore recover` repairs it."""


class AdoptedRowsError(PipelineError):
    """An operation would lose rows of an adopted table that no change log has."""

    exit_code: ClassVar[int] = 2


class PublishError(PipelineError):
    """A published table that cannot be made: a mirror is missing, or the Spark job failed. Nothing was published."""


def in_short(error: BaseException) -> str:
    """What a client of an object store says, in one line: some repeat it, and add identifiers of requests."""
    every = [_OF_REQUEST.sub("", line).strip() for line in str(error).splitlines()]
    lines = [line for line in every if "Request" not in line]
    return hide_secrets(" ".join(dict.fromkeys(filter(None, lines or every)))[:MAX_SAID])


_OF_REQUEST = re.compile(r"\(?(x-amz-)?Request ?Id: ?[^)\s]*\)?", re.IGNORECASE)


def explained(error: BaseException) -> str | None:
    """The message of an error of ours, of the system, or of a catalog or store that cannot be used; None for others."""
    return str(error) if isinstance(error, PipelineError | ScanError) else in_plain_words(error)


def describe(error: BaseException) -> str:
    """What went wrong and what to do, for a report that goes on; an error that nobody expects is shown with its class."""
    return explained(error) or f"{type(error).__name__}: {error}"


def in_plain_words(error: BaseException) -> str | None:
    """What a library says of a catalog or store that cannot be used: where, why, and what to do; None for other errors.

    Libraries are recognised by name, so that none of them is imported.
    """
    chain = _chain(error)
    if answers := [answer for one in chain if (answer := _answer(one))]:
        return hide_secrets(answers[0])
    is_of_system = _LIBRARIES.isdisjoint(type(one).__module__.partition(".")[0] for one in chain)
    if is_of_system and "AWS Error" not in str(error):
        if not isinstance(error, OSError):
            return None
        said = _NOISE.sub("", str(error)) or type(error).__name__
        return hide_secrets(said + next((do for words, do in _OF_SYSTEM.items() if words in str(error).lower()), ""))
    of_database = filter(None, (getattr(one, "orig", None) for one in chain))
    lines = (line.strip() for line in str(next(of_database, error)).splitlines())
    said = " ".join(line for line in lines if line and not line.startswith(("(Background on", "[SQL:", "FROM ")))
    where, said = _address(chain), _NOISE.sub("", said)
    causes = " ".join(f"{type(one).__name__} {one}" for one in chain)
    reasons = (*_UNREACHABLE, *_REASONS) if where else (*((p, "", do) for p, _, do in _UNREACHABLE), *_REASONS)
    words, do = next(((words, do) for pattern, words, do in reasons if pattern.search(causes)), ("", ""))
    return hide_secrets(f"{where}{words or said[:MAX_SAID]}{': ' if do else ''}{do}")


_OF_SYSTEM = {
    "errno 28]": ": free space there and run it again",
    "errno 122]": ": free space there, or raise the quota, and run it again",
    "errno 5]": ": repair or replace the disk and run it again",
    "errno 30]": ": mount the disk for writing, or choose another place, and run it again",
    "errno 13]": ": change the rights there, or run it as another user",
    "errno 1]": ": change the rights there, or run it as another user",
    "no usable temp": ": make room in one of them, or set TMPDIR to another folder",
}
"""What to do, by the number of the error as Python and Arrow write it: the system's words depend on its language."""
MAX_SAID = 400
"""Characters of a library's own words that a message repeats."""
_LIBRARIES = frozenset(
    {"sqlalchemy", "psycopg2", "sqlite3", "pyiceberg", "requests", "urllib3", "pydantic_core", "botocore", "s3fs"}
)
_NOISE = re.compile(r"\((?:sqlite3|psycopg2)(?:\.\w+)+\)\s*|\[[Ee]rrno \d+\] ")
_Reasons = tuple[tuple[re.Pattern[str], str, str], ...]


def _reasons(*rules: tuple[str, str, str]) -> _Reasons:
    return tuple((re.compile(pattern, re.IGNORECASE), words, do) for pattern, words, do in rules)


_REASONS = _reasons(
    (
        r"database (table )?is locked",
        "another process holds a lock on the SQLite database",
        "wait until it ends; for several writers at a time use a catalog in PostgreSQL",
    ),
    (r"readonly database", "the SQLite database cannot be written", "change the rights of the file and its folder"),
    (
        r"file is not a database|disk image is malformed",
        "the file is damaged, or is no SQLite database",
        "restore it; or move it away, and nevermore recover makes a new one of what the warehouse has",
    ),
    (
        r"disk I/O error|disk is full",
        "the disk of the SQLite database is full or broken",
        "free space there, or repair it, and run it again",
    ),
    (
        r"unable to open database file",
        "the SQLite database cannot be opened",
        "free space there if its disk is full, repair the disk if it is broken, or change the rights of the file and its folder, or catalog.uri",
    ),
    (
        r"password authentication failed|role .* does not exist|no password supplied|no pg_hba.conf entry",
        "",
        "correct the user and the password in catalog.uri, or the rights on the server (pg_hba.conf)",
    ),
    (
        r"no such table: iceberg_|relation \"iceberg_\w+\" does not exist",
        "the database has no tables of an Iceberg catalog",
        "correct catalog.uri; or let them be made, without init_catalog_tables: false",
    ),
    (r"database .* does not exist", "", "create the database, or correct catalog.uri"),
    (r"permission denied", "", "grant the user of catalog.uri the right to do this"),
    (
        r"NoSuchModuleError|Can't load plugin",
        "",
        "there is no such driver: correct the beginning of catalog.uri, such as postgresql+psycopg2://, or install its package",
    ),
    (
        r"Could not parse (SQLAlchemy )?URL|MissingSchema|InvalidSchema|No connection adapters",
        "catalog.uri is not an address",
        "write it as postgresql+psycopg2://USER@HOST/DATABASE or sqlite:///FILE, for a REST catalog as https://HOST",
    ),
    (
        r"ConfigResponse|JSONDecodeError|json_invalid",
        "it answers, but not as an Iceberg REST catalog",
        "correct catalog.uri; a proxy or a login page may stand before the catalog",
    ),
    (r"ACCESS_DENIED", "", "the keys of the object store lack this right: grant it, or use others"),
    (r"NO_SUCH_BUCKET", "", "create the bucket, or correct its name"),
    (
        r"INVALID_ACCESS_KEY_ID|SIGNATURE|EXPIRED|INVALID_CLIENT_TOKEN",
        "",
        "the keys of the object store are wrong or have expired: set valid ones",
    ),
)
"""(what a library says, the same in plain words unless its own say it best, what to do)."""
_UNREACHABLE = _reasons(
    (
        r"could not translate host name|NameResolutionError|Failed to resolve|curlCode: 6,",
        "the name of the host is not known",
        "correct it in the config, or the name service of this machine",
    ),
    (
        r"SSLError|does not support SSL|certificate|SSL connection|curlCode: (35|60),",
        "it speaks no TLS, or its certificate is not accepted",
        "compare http:// or https:// (for PostgreSQL sslmode) and the certificates with what the server has",
    ),
    (
        r"timeout expired|timed out|ReadTimeout|ConnectTimeout|curlCode: 28,",
        "the server does not answer in time",
        "see that it runs, that host and port are right, and that no firewall is between",
    ),
    (
        r"Connection refused|Failed to establish a new connection|curlCode: 7,",
        "nothing answers there",
        "start the server, or correct host and port in the config",
    ),
    (
        r"closed the connection unexpectedly|RemoteDisconnected|Connection aborted|Connection reset",
        "the server ended the connection",
        "see that it runs, then run the command again",
    ),
)
"""The same of servers that cannot be reached; without an address, the library's own words tell it."""
_ANSWERS = {
    400: "it does not accept the request: compare catalog.uri and the warehouse with what the server expects",
    401: "correct the token or the credential of the catalog, or get a new one",
    403: "the user of this token or credential lacks the right to do this: grant it",
    404: "there is nothing at this address: correct catalog.uri, the warehouse or the prefix",
    409: "somebody else changed the same thing: run the command again",
    419: "the token has expired: get a new one",
    429: "it gets too many requests: run the command again later",
}


def _chain(error: BaseException) -> list[BaseException]:
    """An error and what led to it, each once."""
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found


def _answer(error: BaseException) -> str | None:
    """What an HTTP answer with an error means."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status is None or response is None:
        return None
    said = ""
    with suppress(ValueError, AttributeError, KeyError, TypeError):
        body = response.json()
        body = body["error"] if isinstance(body.get("error"), dict) else body
        said = str(body.get("message") or body.get("error_description") or body.get("error") or "")[:MAX_SAID]
    at_fault = "it is overloaded, restarting or broken: run the command again later, or look into its log"
    do = _ANSWERS.get(status, at_fault if status >= 500 else "see what the server says of it")
    return f"{_without_query(response.url)} answered {status}{f' ({said})' if said else ''}: {do}"


def _address(chain: Sequence[BaseException]) -> str:
    """Where it was asked, if the library tells it apart from its text."""
    for error in chain:
        if (url := getattr(getattr(error, "request", None), "url", None)) is not None:
            return f"{_without_query(str(url))}: "
    return ""


def _without_query(url: str) -> str:
    return url.partition("?")[0]
