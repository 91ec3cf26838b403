"""How messages write numbers of things."""

from collections.abc import Mapping


def counted(number: int, noun: str) -> str:
    """`1 file`, `2,000 files`, `2 indexes`."""
    ending = "" if number == 1 else "es" if noun.endswith("x") else "s"
    return f"{number:,} {noun}{ending}"


def counts(by_kind: Mapping[str, int]) -> str:
    """`data files: 3, manifests: 1`."""
    return ", ".join(f"{what}: {number:,}" for what, number in by_kind.items())
