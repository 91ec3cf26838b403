"""What values of a config may look like: durations, sizes, one name or several; and what all its sections have in common."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_DURATION_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS: Mapping[str, int] = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _seconds(value: Any) -> Any:
    """A duration in seconds from a number or text such as `30s`, `5m`."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([\d.]+)\s*(ms|s|m|h|d)\s*", value)):
        return float(match[1]) * _DURATION_UNITS[match[2]]
    return value


def _bytes(value: Any) -> Any:
    """A size in bytes from a number or text such as `512MiB`, `2g`."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())):
        return int(match[1]) * _SIZE_UNITS[match[2]]
    return value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1024**2)]
Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
