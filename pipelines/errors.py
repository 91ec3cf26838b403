"""The errors of the pipelines, by what the caller can do about them.

One base, few children; each has the exit code of a command that fails with it. A problem of a single event is not an
error: the event goes to quarantine.
"""

from typing import ClassVar

from scan_core import hide_in_error, hide_secrets


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


class GlobalDeleteError(PipelineError):
    """A delete that must reach every partition, in a table with `global_deletes: refuse`."""


class CommitConflictError(PipelineError):
    """Another writer changed the table first; `may_retry` is False where trying again would be wrong."""

    def __init__(self, message: str, *, may_retry: bool = True) -> None:
        super().__init__(message)
        self.may_retry = may_retry


class CommitUnknownError(PipelineError):
    """A catalog does not reveal whether a commit happened. Files of such a commit are never removed."""


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
    lines = (line.strip() for line in str(error).splitlines() if "Request" not in line)
    return hide_secrets(" ".join(dict.fromkeys(filter(None, lines)))[:300])
