"""The section `spark` of a config: where published tables are made, and how our code gets there."""

from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from pipelines.config_values import Section
from pipelines.errors import ConfigError

LOCAL_MASTER = "local[*]"
SHIPPED = frozenset({"auto", "installed"})
"""What `package` may be beside a path."""


class SparkConfig(Section):
    """Where and how Spark runs.

    Attributes:
        master: as for `spark-submit`: `local[4]`, `spark://host:7077`, `yarn`, `k8s://...`; without one `local[*]`.
        remote: a Spark Connect server instead, `sc://host:15002`.
        conf: settings of Spark, by their names.
        package: how our code reaches the workers of a cluster: `auto` builds and ships an archive with each session, `installed` ships nothing, a path names an archive that `nevermore spark-package` has built.
        reports: folder that driver and workers share, where tasks report what they read; without one the driver fetches the reports from each host.
    """

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = Field(default_factory=dict)
    package: str = "auto"
    reports: str | None = None

    @field_validator("conf", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        """Spark takes text; YAML makes numbers and booleans of it."""
        if not isinstance(value, dict):
            return value
        return {name: _as_text(setting) for name, setting in value.items()}

    @field_validator("remote")
    @classmethod
    def _is_remote(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("sc://"):
            raise ValueError(f"{value!r} is no Spark Connect server; write sc://host:15002")
        return value

    @field_validator("master")
    @classmethod
    def _is_master(cls, value: str | None) -> str | None:
        """What Spark itself asks of one, told before a JVM has started."""
        if value and value != "yarn" and not value.startswith(("local", "spark://", "k8s://")):
            raise ValueError(f"{value!r} is no Spark master; write local[4], spark://host:7077, yarn or k8s://host")
        return value

    @model_validator(mode="after")
    def _is_at_one_place(self) -> "SparkConfig":
        if self.master is not None and self.remote is not None:
            raise ValueError("master and remote are two places to run at; leave out one of them")
        return self

    def at(self, master: str | None = None, remote: str | None = None) -> "SparkConfig":
        """These settings, run at a place that was asked for instead; none keeps the place.

        Raises:
            ConfigError: two places, or one that is none.
        """
        if master is None and remote is None:
            return self
        if master is not None and remote is not None:
            raise ConfigError("--master and --remote are two places to run at; leave out one of them")
        try:
            return SparkConfig.model_validate({**self.model_dump(), "master": master, "remote": remote})
        except ValidationError as error:
            option = "--remote" if master is None else "--master"
            raise ConfigError(f"{option}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _as_text(value: Any) -> Any:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case _:
            return value
