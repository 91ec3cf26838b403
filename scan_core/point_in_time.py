"""What a caller may mean by a time: a datetime, ISO 8601 text or milliseconds since the epoch."""

from datetime import UTC, datetime

from scan_core.errors import SnapshotNotFoundError

_EARLIEST_MILLISECONDS, _LATEST_MILLISECONDS = 10**11, 10**14


def is_plausible_time(number: int) -> bool:
    """Years 1973 to 5138: an integer in between that is no snapshot id is a time; snapshot ids are mostly larger."""
    return _EARLIEST_MILLISECONDS <= number < _LATEST_MILLISECONDS


def milliseconds(when: int | str | datetime) -> int:
    """Milliseconds since the epoch; text and datetimes without a zone are UTC.

    Raises:
        SnapshotNotFoundError: text that is no time.
    """
    if isinstance(when, str):
        text = when.strip()
        if text.lstrip("-").isdigit():
            return int(text)
        try:
            when = datetime.fromisoformat(text)
        except ValueError as error:
            raise SnapshotNotFoundError(
                f"{text!r} is no time: write 2026-01-31, 2026-01-31T12:00:00+01:00 or epoch milliseconds"
            ) from error
    if isinstance(when, datetime):
        moment = when if when.tzinfo else when.replace(tzinfo=UTC)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        elapsed = moment - epoch
        return (elapsed.days * 86_400 + elapsed.seconds) * 1000 + elapsed.microseconds // 1000
    return when
