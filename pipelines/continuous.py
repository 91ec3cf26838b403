"""The ingest as a service: every source again and again, at its tables' commit interval, until told to stop.

What one round does is `ingest.py`; signals and what is shown are the business of the command.
"""

import threading
import time
from collections.abc import Callable, Collection

from pipelines.collector import collect
from pipelines.config import Config
from pipelines.ingest import run_once, sources
from pipelines.ingest_report import IngestReport

OnReport = Callable[[IngestReport], None]


def run_continuously(
    config: Config,
    stop: threading.Event,
    on_report: OnReport,
    tables: Collection[str] | None = None,
    interval_seconds: float | None = None,
) -> int:
    """Apply what is new until `stop` is set; what is being read then is still committed.

    A table that fails is tried again in its next round: others go on meanwhile.

    Args:
        config: which tables, from where.
        stop: set to end the run.
        on_report: told after each round of a source.
        tables: only these; None for all.
        interval_seconds: instead of the tables' `commit_interval`; of tables that share a source the least counts.

    Returns:
        How many rounds were run.

    Raises:
        ConfigError: an unknown table, format or option, before anything is read.
    """
    for name in tables or ():
        config.table(name)
    groups = [wanted for group in sources(config) if (wanted := [n for n in group if tables is None or n in tables])]
    due = [0.0] * len(groups)
    rounds = 0
    while groups and not stop.is_set():
        turn = min(range(len(groups)), key=due.__getitem__)
        if stop.wait(max(0.0, due[turn] - time.monotonic())):
            break
        began = time.monotonic()
        on_report(run_once(config, tables=groups[turn], stopping=stop.is_set))
        entries = {**config.tables, **config.patterns}
        interval = interval_seconds or min(entries[name].commit_interval for name in groups[turn])
        due[turn] = began + interval
        collect()
        rounds += 1
    return rounds
