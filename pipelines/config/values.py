"""Types of the values that a config may hold, and the base class of its sections.

Contains durations, sizes, names and cron expressions. The sections themselves are defined in `project.py`.
"""

import re
from collections.abc import Mapping
from datetime import date
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from nevermore.scan_core import Type

_DURATION_UNITS: Mapping[str, float] = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TYPES = (
    *("boolean", "int", "long", "float", "double", "decimal(P, S)", "date", "time", "timestamp", "timestamptz"),
    *("string", "uuid", "fixed[N]", "binary"),
)
_TYPES_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("bool", "bit"), "boolean"),
    **dict.fromkeys(("integer", "smallint", "tinyint", "int32"), "int"),
    **dict.fromkeys(("bigint", "int64"), "long"),
    **dict.fromkeys(("numeric", "number"), "decimal(P, S)"),
    **dict.fromkeys(("text", "varchar", "char", "str"), "string"),
    **dict.fromkeys(("bytes", "blob", "bytea", "varbinary"), "binary"),
    **dict.fromkeys(("datetime", "timestamp_ntz"), "timestamp"),
    "timestamp_ltz": "timestamptz",
}
"""Names that databases use for Iceberg types."""
_MANAGED_PROPERTIES = frozenset({"format-version"})
_CRON_FIELD = re.compile(r"(?:[\d*/,-]|[A-Za-z]{3})+")
_CRON_MAX = (59, 23, 31, 12, 7)
"""Minute, hour, day, month, day of the week."""


def _seconds(value: Any) -> Any:
    """A duration in seconds from a number or text such as `30s`, `5m`."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)\s*", value)
    if match is None:
        raise ValueError(
            f"{value!r} is not a duration; write a number of seconds, or text such as 500ms, 30s, 5m, 1h, 1d"
        )
    return float(match[1]) * _DURATION_UNITS[match[2]]


def _seconds_or_off(value: Any) -> Any:
    return "off" if value is False or value == "off" else _seconds(value)


def _bytes(value: Any) -> Any:
    """A size in bytes from a number or text such as `512MiB`, `2g`."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)i?b?\s*", value.lower())
    if match is None:
        raise ValueError(f"{value!r} is not a size; write a number of bytes, or text such as 512MiB, 2GiB")
    return int(match[1]) * 1024 ** " kmg".index(match[2] or " ")


def _day(value: Any) -> Any:
    """A partition key, which YAML may read as a date or number."""
    return str(value) if isinstance(value, date) or (isinstance(value, int) and not isinstance(value, bool)) else value


def type_of(text: str) -> "Type":
    """The Iceberg type of a name, or of text such as `list<int>`, `map<string, long>` and `struct<a: int>`, as `describe` prints it.

    Raises:
        ScanError: there is no such type.
    """
    from nevermore.scan_core.metadata import parse_type

    return parse_type(_document(text))


def _document(text: str) -> Any:
    """The type in the form of metadata. Ids of fields are chosen when a table gets the column."""
    text = text.strip()
    kind, _, inside = text.removesuffix(">").partition("<")
    if not inside or not text.endswith(">"):
        return text
    parts = re.findall(r"(?:[^<>,()]|\([^()]*\)|<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)+", inside)
    match kind, parts:
        case "list", [element]:
            return {"type": "list", "element-id": 0, "element": _document(element)}
        case "map", [key, value]:
            return {"type": "map", "key-id": 0, "key": _document(key), "value-id": 0, "value": _document(value)}
        case "struct", [*members]:
            named = [member.partition(":") for member in members]
            fields = [{"id": 0, "name": n.strip(), "required": False, "type": _document(t)} for n, _, t in named]
            return {"type": "struct", "fields": fields}
    return text


def _type_name(value: str) -> str:
    """Check that this is an Iceberg type."""
    from nevermore.scan_core import ScanError

    try:
        type_of(value)
    except ScanError as error:
        name = re.split(r"[(\[]", value.strip().lower(), maxsplit=1)[0]
        if name in {"decimal", "fixed"} and name != value.strip().lower():
            raise ValueError(str(error)) from error
        spellings = {known.partition("(")[0].partition("[")[0]: known for known in _TYPES} | dict(_TYPES_ELSEWHERE)
        near = get_close_matches(name, spellings, n=1)
        hint = f"did you mean {spellings[near[0]]!r}? " if near else ""
        raise ValueError(
            f"unknown type {value!r:.80}; {hint}valid types are {', '.join(_TYPES)}, and list<T>, map<K, V> and struct<NAME: T> of these"
        ) from error
    if re.search(r"_ns\b", name := value.strip().lower()):  # one value with more digits would stop the table
        raise ValueError(f"{value}: change logs hold times in microseconds; use {name.replace('_ns', '')}")
    return value


def _property_texts(value: Any) -> Any:
    """Settings of Iceberg and Spark are text, which YAML may read as booleans, numbers or dates."""
    if not isinstance(value, Mapping):
        return value
    return {
        k: str(v).lower() if isinstance(v, bool) else str(v) if isinstance(v, int | float | date) else v
        for k, v in value.items()
    }


def _settable_properties(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if name.startswith("nevermore.") or name in _MANAGED_PROPERTIES:
            raise placed(f"{name} is managed by Nevermore and cannot be set", name)
    return value


def _cron(value: str) -> str:
    """A cron expression of five fields, as Dagster accepts it."""
    fields = value.split()
    fit = [
        _CRON_FIELD.fullmatch(field) and all(int(number) <= most for number in re.findall(r"\d+", field))
        for field, most in zip(fields, _CRON_MAX, strict=False)
    ]
    if not (len(fields) == len(_CRON_MAX) and all(fit)):
        raise ValueError(
            f"{value!r} is not a cron expression; write minute, hour, day, month and day of the week: '30 1 * * *'"
        )
    return value


def _label_texts(value: Any) -> Any:
    """Values of tags are text, which YAML may read as booleans, numbers or dates; a list of tags has no values."""
    if isinstance(value, list | tuple):
        return {name: "" if isinstance(name, str) else name for name in value if isinstance(name, str)}
    if isinstance(value, Mapping):
        value = {k: "" if v is None else v for k, v in value.items()}
    return _property_texts(value)


def _labels(value: dict[str, str]) -> dict[str, str]:
    """Tags as Dagster accepts them."""
    for name, text in value.items():
        if not re.fullmatch(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}", name):
            raise placed(
                f"{name!r} cannot be the name of a tag; use up to 63 letters, digits, and _ . -, after an optional prefix/",
                name,
            )
        if name.startswith("dagster/"):
            raise placed(f"{name} is managed by Dagster and cannot be set", name)
        if not re.fullmatch(r"[A-Za-z0-9_.-]{0,63}", text):
            raise placed(f"{text!r} cannot be the value of a tag; use up to 63 letters, digits, and _ . -", name)
    return value


def spelled(pattern: str, message: str) -> AfterValidator:
    """Refuse a text that does not match; `{!r}` in the message stands for it."""

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(message.format(value))
        return value

    return AfterValidator(check)


def _word(value: Any) -> Any:
    """`false` means off, too."""
    return "off" if value is False else value


def _word_or_null(value: Any) -> Any:
    """The word `null` is YAML's for nothing."""
    return "null" if value is None else value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _distinct(value: tuple[str, ...]) -> tuple[str, ...]:
    for number, name in enumerate(value):
        if name in value[:number]:
            raise placed(f"{name!r} occurs twice", number)
    return value


def _not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise ValueError("must be a list of names: [a, b]")
    return value


def _is_number(annotation: Any) -> bool:
    """Whether a field takes numbers, and no truth values."""
    inside = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _is_number(inside[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_number(part) for part in inside if part is not NoneType)
    return annotation in (int, float)


MAX_SECONDS = 3_155_760_000.0
"""A century: the point in time that is so long ago is still a date."""
MAX_BYTES = 2**60
"""Sums of a few sizes are still numbers of 64 bits."""
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=MAX_SECONDS)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=1024**2, le=MAX_BYTES)]
SecondsOrOff = Annotated[
    Literal["off"] | Annotated[float, Field(gt=0, le=MAX_SECONDS)], BeforeValidator(_seconds_or_off)
]
AutoOrOff = Annotated[Literal["auto", "off"], BeforeValidator(_word)]
InfiniteDates = Annotated[Literal["quarantine", "null", "clamp"], BeforeValidator(_word_or_null)]
Severity = Annotated[Literal["block", "warn", "off"], BeforeValidator(_word)]
"""What a check that fails does: it stops what is published from the table, it is only reported, or it is not run."""
Day = Annotated[str, BeforeValidator(_day)]
TypeName = Annotated[str, AfterValidator(_type_name)]
Cron = Annotated[str, AfterValidator(_cron)]
Address = Annotated[
    str, spelled(r"https?://[^/\s]+(/[\s\S]*)?", "must be an address that begins with http:// or https://")
]
Texts = Annotated[dict[str, str], BeforeValidator(_property_texts)]
TableProperties = Annotated[Texts, AfterValidator(_settable_properties)]
_Owner = Annotated[
    str,
    spelled(
        r"[^@\s]+@[^@\s]+\.[^@\s]+|team:[\w-]+",
        "{!r} is not an owner; write an e-mail address, or a team as team:data",
    ),
]
"""As Dagster accepts it."""
Owners = Annotated[tuple[_Owner, ...], BeforeValidator(_one_or_many)]
Labels = Annotated[dict[str, str], BeforeValidator(_label_texts), AfterValidator(_labels)]
Group = Annotated[str, spelled("[A-Za-z0-9_]+", "{!r} cannot be the name of a group; use letters, digits and _")]
"""As Dagster accepts it."""
Count = Annotated[int, Field(ge=1, le=2**53)]
"""A number of things; larger ones are not exact in the JSON that reports are."""
Names = Annotated[tuple[str, ...], BeforeValidator(_one_or_many), AfterValidator(_distinct)]
NamesInOrder = Annotated[tuple[str, ...], AfterValidator(_not_empty), AfterValidator(_distinct)]


class Section(BaseModel):
    """Base class of all sections: unknown keys are errors, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """`true` is no number, although Python takes it for 1."""
        if isinstance(value, bool) and _is_number(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError(f"must be a number, not {str(value).lower()}")
        return value


def placed(message: str, *place: str | int) -> PydanticCustomError:
    """An error at a place within a section, to be raised by the section's validators."""
    return PydanticCustomError("placed", "{message}", {"message": message, "place": place})
