"""What values of a config may look like: durations, sizes, one name or several; and what all its sections have in common."""

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_DURATION_UNITS: Mapping[str, float] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS: Mapping[str, int] = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _seconds(value: Any) -> Any:
    """A duration in seconds from a number or text such as `30s`, `5m`."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)\s*", value)
    if match is None:
        raise ValueError(f"{value!r} is no duration; write seconds, or a text as 500ms, 30s, 5m, 1h, 1d")
    return float(match[1]) * _DURATION_UNITS[match[2]]


def _bytes(value: Any) -> Any:
    """A size in bytes from a number or text such as `512MiB`, `2g`."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())
    if match is None:
        raise ValueError(f"{value!r} is no size; write bytes, or a text as 512MiB, 2GiB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def _day(value: Any) -> Any:
    """YAML makes dates and numbers of some keys of partitions."""
    return str(value) if isinstance(value, date) or (isinstance(value, int) and not isinstance(value, bool)) else value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1024**2)]
Day = Annotated[str, BeforeValidator(_day)]
Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def placed(message: str, *place: str | int) -> PydanticCustomError:
    """A fault for validators of a whole section to raise, which lies further down in it."""
    return PydanticCustomError("placed", "{message}", {"message": message, "place": place})
