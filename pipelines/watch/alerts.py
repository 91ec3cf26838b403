"""Posts alerts to the webhook of a config: one JSON object each, whose `text` is for people.

No message contains the address of the webhook, a value from the environment or a password.
"""

from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from pipelines.config.project import AlertsConfig
from pipelines.errors import PipelineError
from scan_core import hide_secrets

TIMEOUT_SECONDS = 10.0
MAX_TRIES = 3
MAX_TEXT = 2_000
"""Characters of an error in a message; chat services cut longer ones."""
_RETRY = Retry(
    total=MAX_TRIES - 1, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504), allowed_methods=None
)


def shown(alerts: AlertsConfig, text: str) -> str:
    """A text as a message may contain it: short, without secrets and without the address."""
    return hide_secrets(text).replace(alerts.webhook, "***")[:MAX_TEXT]


def post(alerts: AlertsConfig, message: Mapping[str, Any]) -> None:
    """Post a message.

    Raises:
        PipelineError: it could not be delivered.
    """
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=_RETRY))
    try:
        with session:
            answer = session.post(alerts.webhook, json=message, timeout=TIMEOUT_SECONDS)
    except requests.RequestException as error:
        # not `from error`: its text contains the address
        raise PipelineError(f"the alert could not be posted: {type(error).__name__}") from None
    if not answer.ok:
        raise PipelineError(f"the webhook answered an alert with HTTP status {answer.status_code}")
