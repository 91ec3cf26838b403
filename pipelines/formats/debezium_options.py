"""The options of Debezium's formats, whether its events are JSON or Avro."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.errors import ConfigError
from pipelines.formats.placeholders import DEFAULT_PLACEHOLDER


@dataclass(frozen=True)
class DebeziumOptions:
    """Options of the format.

    Attributes:
        placeholder: the connector's `unavailable.value.placeholder`.
        tombstones: `ignore`, or `delete` where they are the only sign of a delete.
        objects: `struct`, or `text` to keep undeclared nested objects as JSON text.
    """

    placeholder: str = DEFAULT_PLACEHOLDER
    tombstones: str = "ignore"
    objects: str = "struct"

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> "DebeziumOptions":
        """Options from config.

        Raises:
            ConfigError: a value that the option does not have.
        """
        result = cls(**options)
        result.check()
        return result

    def check(self) -> None:
        """Refuse values that an option does not have.

        Raises:
            ConfigError: names it and the valid ones.
        """
        if self.tombstones not in {"ignore", "delete"}:
            raise ConfigError(f"tombstones must be ignore or delete, not {self.tombstones!r}")
        if self.objects not in {"struct", "text"}:
            raise ConfigError(f"objects must be struct or text, not {self.objects!r}")
