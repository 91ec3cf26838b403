"""What is wrong with a value, in one line of plain words: for configs, and for the options of commands.

Pydantic tells its kind of fault; what was expected there, and what stood there, is worded here.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipelines.config_document import ConfigDocument

_KINDS = (
    (("dict_type", "model_type", "model_attributes_type"), "a mapping, with one `name: value` per line"),
    (("tuple_type", "list_type"), "a name, or a list of names: [a, b]"),
    (("string_type", "string_sub_type"), "text"),
    (("bool_type", "bool_parsing"), "true or false"),
    (("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    (("float_type", "float_parsing"), "a number"),
    (("finite_number",), "a finite number"),
    (("date_type", "date_parsing", "date_from_datetime_parsing"), "a date, as 2026-01-31"),
    (("path_type",), "a path"),
)
_EXPECTED: Mapping[str, str] = {kind: words for kinds, words in _KINDS for kind in kinds}
_SHOWN_CHARACTERS = 60


def config_messages(
    error: ValidationError, document: ConfigDocument, sections: Mapping[tuple[str, ...], type[BaseModel]]
) -> list[str]:
    """One line per faulty place: where in the file, what, what is expected, what stands there.

    Args:
        error: all faults.
        document: the file.
        sections: what may stand where, with `*` for any name.
    """
    faults: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    messages: dict[tuple[str | int, ...], str] = {}
    misspelt: set[tuple[str | int | None, ...]] = set()
    for problem in error.errors(include_url=False):
        place = (*problem["loc"], *problem.get("ctx", {}).get("place", ()))
        if problem["type"] == "extra_forbidden":
            messages[place], near = unknown_key(str(place[-1]), _valid_names(place[:-1], sections))
            misspelt.add((*place[:-1], near))
        elif problem["type"] == "missing":
            messages[place] = f"{str(place[-1])!r} is missing{f' in {_name(place[:-1])}' if place[:-1] else ''}"
        else:
            # Behind the last key of the file stands which one of several types was tried.
            place = place[: document.depth(place)]
            faults.setdefault(place, []).append(problem)
            told = wrong_value(faults[place], may_show=document.may_show(place))
            messages[place] = f"{_name(place)}: {told}" if place else told
    return [f"{document.where(place)}: {message}" for place, message in messages.items() if place not in misspelt]


def wrong_value(problems: Sequence[ErrorDetails], *, may_show: bool = True) -> str:
    """What is wrong with one value: what it must be and is not, or what a validator of ours says.

    Several problems are those of several types of which it fits none.
    """
    wanted = list(dict.fromkeys(_expectation(problem) for problem in problems))
    if not all(text.startswith("must be ") for text in wanted):
        return "; ".join(wanted)
    words = " or ".join(text.removeprefix("must be ") for text in wanted)
    value = problems[0]["input"]
    hint = "; write it in quotes" if "must be text" in wanted and isinstance(value, int | float | date) else ""
    return f"must be {words}, not {_shown(value) if may_show else _kind(value)}{hint}"


def unknown_key(name: str, valid: Sequence[str]) -> tuple[str, str | None]:
    """(what to say of a key that is not known, the one that was meant)."""
    near = next(iter(get_close_matches(name, valid, n=1, cutoff=0.5)), None)
    hint = f"valid are {', '.join(valid)}" if near is None else f"did you mean {near!r}?"
    return f"unknown key {name!r}; {hint}", near


def _expectation(problem: ErrorDetails) -> str:
    kind, limits = problem["type"], problem.get("ctx", {})
    match kind:
        case "greater_than_equal":
            return f"must be at least {limits['ge']}"
        case "greater_than":
            return f"must be more than {limits['gt']}"
        case "less_than_equal":
            return f"must be at most {limits['le']}"
        case "less_than":
            return f"must be less than {limits['lt']}"
        case "literal_error" | "enum":
            return f"must be {limits['expected']}"
        case "value_error":
            return str(problem["msg"]).removeprefix("Value error, ")
        case _ if kind in _EXPECTED:
            return f"must be {_EXPECTED[kind]}"
        case _:
            return str(problem["msg"])


def _shown(value: Any) -> str:
    """A value as its writer knows it, cut if it is long."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case date():
            return str(value)
        case _:
            text = repr(value)
            return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _kind(value: Any) -> str:
    """What a value is, where it may be a secret."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "this text"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _name(place: Sequence[str | int]) -> str:
    return ".".join(str(step) for step in place)


def _valid_names(place: Sequence[str | int], sections: Mapping[tuple[str, ...], type[BaseModel]]) -> list[str]:
    for pattern, model in sections.items():
        if len(pattern) == len(place) and all(p in {"*", step} for p, step in zip(pattern, place, strict=True)):
            return sorted(name for name, f in model.model_fields.items() if not f.exclude)
    return []
