"""Damage to values: JSON documents and Avro records that stay well-formed and say something absurd."""

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

Place = tuple[Any, Any]
"""A container and the key or index in it."""

_NUMBERS = (-1, 0, 1, 2, 3, 134, 999, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**40)
MADE_UP_TEXTS = (
    "",
    "x",
    "../../../../etc/passwd",
    "/etc/passwd",
    "s3://nowhere/x",
    "struct",
    "decimal(99,-1)",
    "fixed[99999999999]",
    "timestamp_ns",
    "bucket[0]",
    "truncate[-5]",
    "truncate[99999999999999999999]",
    "variant",
    "\0",
    "parquet",
    "ORC",
    "puffin",
    "\ud7ff" * 3,
    "x" * 3000,
)
_OTHERS = (None, True, False, 1.5, -0.0, 1e308, [], {}, [None], [[]], {"type": "struct"}, {"type": "list"})


def mutate_values(document: Any, random: Random) -> Any:
    """A copy of a tree of lists and dictionaries with one to three places changed."""
    document = copy.deepcopy(document)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(_places(document))
        if places:
            _change(random.choice(places), places, random)
    return document


def _places(node: Any) -> Iterator[Place]:
    items: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        yield from _places(value)


def _change(place: Place, places: list[Place], random: Random) -> None:
    container, key = place
    value = container[key]
    match random.randrange(8):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.insert(key, copy.deepcopy(value))
        case 1:
            container[random.choice(MADE_UP_TEXTS)] = container.pop(key)
        case 2:
            other, other_key = random.choice(places)
            container[key] = copy.deepcopy(other[other_key]) if _size(other[other_key]) < 2_000 else None
        case 3:
            container[key] = random.choice(_OTHERS)
        case 4 if random.random() < 0.1:
            container[key] = _deep(random)
        case _:
            container[key] = _similar(value, random)


def _similar(value: Any, random: Random) -> Any:
    """Another value of the same kind, most likely to get past a check of types."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice((*_NUMBERS, value + 1, value - 1, -value, value * 1000))
        case str():
            at = random.randrange(len(value) + 1)
            return random.choice((*MADE_UP_TEXTS, value[:at], value[:at] + "%" + value[at:], value.upper(), value * 2))
        case bytes():
            return random.choice((b"", value[:-1], value + b"\xff", random.randbytes(len(value)), b"\xff" * 40))
        case list():
            return random.choice(([], value[:-1], value * 3, value[::-1]))
        case None:
            return random.choice((*_NUMBERS, *MADE_UP_TEXTS, b"\xff\xff"))
        case _:
            return random.choice((*_NUMBERS, *MADE_UP_TEXTS, *_OTHERS))


def _deep(random: Random) -> Any:
    kind = random.choice(("list", "struct", "array"))
    deep: Any = "int"
    for level in range(random.choice((30, 150, 900))):
        if kind == "list":
            deep = {"type": "list", "element-id": 10_000 + level, "element": deep, "element-required": False}
        elif kind == "struct":
            member = {"id": 20_000 + level, "name": "x", "type": deep, "required": False}
            deep = {"type": "struct", "fields": [member]}
        else:
            deep = [deep]
    return deep


def _size(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(_size(child) for child in children)
