"""What planning left out and why, for `explain()`: counts, and a few examples by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field

EXAMPLES = 3
"""Enough to recognise what was pruned; a plan may leave out 100,000 files."""


@dataclass(slots=True)
class Pruned:
    """Things left out for one reason."""

    count: int = 0
    num_bytes: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, names: Sequence[str], count: int = 1, num_bytes: int = 0) -> None:
        """So many more, of that stored size together; a few of their names suffice."""
        self.count += count
        self.num_bytes += num_bytes
        self.examples.extend(names[: EXAMPLES - len(self.examples)])


@dataclass(slots=True)
class PlanTrace:
    """What a plan read and left out. Keys of the mappings are reasons in words."""

    manifests_read: int = 0
    data_files_seen: int = 0
    delete_files_seen: int = 0
    manifests: dict[str, Pruned] = field(default_factory=dict)
    data_files: dict[str, Pruned] = field(default_factory=dict)
    delete_files: dict[str, Pruned] = field(default_factory=dict)

    def manifest_pruned(self, reason: str, name: str) -> None:
        """A manifest was not opened."""
        self.manifests.setdefault(reason, Pruned()).add([name])

    def data_file_pruned(self, reason: str, name: str, num_bytes: int) -> None:
        """A data file of that size holds no row of the result."""
        self.data_files_pruned(reason, [name], 1, num_bytes)

    def data_files_pruned(self, reason: str, names: Sequence[str], count: int, num_bytes: int) -> None:
        """So many data files of that size together hold no row of the result; the first of them by name."""
        self.data_files.setdefault(reason, Pruned()).add(names, count, num_bytes)

    def delete_file_pruned(self, reason: str, name: str) -> None:
        """A delete file touches no data file of the plan."""
        self.delete_files.setdefault(reason, Pruned()).add([name])


def total(pruned: dict[str, Pruned]) -> int:
    """How many things were left out, for whatever reason."""
    return sum(p.count for p in pruned.values())
