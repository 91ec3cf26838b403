"""Which failed steps are tried again: those whose cause passes by itself, such as an object store that is overloaded.

Runs whose process died are retried by the instance, see `.dagster/dagster.yaml`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import dagster as dg

from checks.asset_checks import leave_run_failed
from pipelines.iceberg.commit import is_transient
from pipelines.publish.audit import CheckFailedError

MAX_RETRIES = 3
FIRST_WAIT_SECONDS = 10.0
"""Doubled for each further try: 10, 20 and 40 s outlast the restart of a catalog."""


def retry(context: dg.OpExecutionContext, error: Exception | str) -> NoReturn:
    """End the step and try it again after a while, unless it was tried often enough."""
    wait = FIRST_WAIT_SECONDS * 2**context.retry_number
    context.log.warning("%s; trying again in %g s, up to %s times", error, wait, MAX_RETRIES)
    raise dg.RetryRequested(max_retries=MAX_RETRIES, seconds_to_wait=wait) from (
        error if isinstance(error, Exception) else None
    )


@contextmanager
def retry_if_transient(context: dg.OpExecutionContext) -> Iterator[None]:
    """Try a step again whose error is transient; any other error fails the step and its run for good."""
    try:
        yield
    except CheckFailedError:
        raise  # with results of its own
    except Exception as error:
        if is_transient(error):
            retry(context, error)
        leave_run_failed(context)
        raise
