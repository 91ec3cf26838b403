"""Tells at the end how often Iceberg Java was known to be wrong."""

from collections import Counter

import pytest

_FAULTS = pytest.StashKey[Counter[str]]()


@pytest.fixture(scope="session")
def faults(pytestconfig: pytest.Config) -> Counter[str]:
    """Readings that were compared, and how many of them each known fault of Java's explains."""
    return pytestconfig.stash.setdefault(_FAULTS, Counter())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(_FAULTS, None):
        listed = ", ".join(f"{name} {count}" for name, count in sorted(found.items()) if name != "readings")
        terminalreporter.write_line(
            f"{found['readings']} readings compared; known faults of Iceberg Java: {listed or 'none'}"
        )
