"""Where Dagster keeps runs and settings of a project: `.dagster` next to its config."""

from pathlib import Path

_SETTINGS = """\
telemetry:
  enabled: false
nux:
  enabled: false  # no dialog that asks for an e-mail address
concurrency:
  pools:
    default_limit: 1  # a pool per table: one writer at a time
run_retries:
  enabled: true
  max_retries: 1
"""


def dagster_home(project: Path) -> Path:
    """The project's DAGSTER_HOME; created with our settings unless it exists."""
    home = (project / ".dagster").resolve()
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text(_SETTINGS, encoding="utf-8")
    return home
