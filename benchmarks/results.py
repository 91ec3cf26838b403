"""Ratios that benchmarks found: recorded one by one, kept under git as `benchmarks/ratios.json`.

A ratio is our time over another's, measured in turn in one run; times of two runs are never compared.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
COMMITTED = Path(__file__).parent / "ratios.json"


@dataclass(frozen=True, slots=True)
class Ratio:
    """`ours` / `against`, by the median of wall time and by CPU time; `goal` is the most it may be.

    `seconds` is our median wall time: what the reader of a table wants to know beside the ratio.
    """

    case: str
    ours: str
    against: str
    wall: float
    cpu: float | None
    goal: float | None
    seconds: float

    @property
    def key(self) -> str:
        """What tells one ratio from another in all runs."""
        return f"{self.case}: {self.ours} / {self.against}"

    @property
    def met(self) -> bool | None:
        """Whether wall or CPU time meets the goal; None without a goal."""
        return None if self.goal is None else min(self.wall, self.cpu or self.wall) <= self.goal

    def sentence(self) -> str:
        """The ratio in words."""
        cpu = "" if self.cpu is None else f", {self.cpu:.3g} in CPU time"
        goal = "" if self.goal is None else f"; goal {self.goal:g}: {'met' if self.met else 'missed'}"
        return f"{self.ours} / {self.against} = {self.wall:.3g}{cpu}{goal}"


def record(ratio: Ratio) -> None:
    """Keep a ratio of this run in `benchmarks/results`, one file each; the last run wins."""
    RESULTS.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", ratio.key.lower()).strip("-")
    (RESULTS / f"{name}.json").write_text(json.dumps(asdict(ratio)))


def recorded() -> dict[str, Ratio]:
    """The ratios of the last runs, by key."""
    return _by_key(Ratio(**json.loads(path.read_text())) for path in sorted(RESULTS.glob("*.json")))


def committed() -> dict[str, Ratio]:
    """The ratios under git, by key."""
    if not COMMITTED.exists():
        return {}
    return _by_key(Ratio(**entry) for entry in json.loads(COMMITTED.read_text()))


def commit(ratios: Iterable[Ratio]) -> None:
    """Write the file under git, to three digits: more is noise."""
    entries = [
        {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in asdict(ratio).items()} for ratio in ratios
    ]
    COMMITTED.write_text(json.dumps(entries, indent=1) + "\n")


def _by_key(ratios: Iterable[Ratio]) -> dict[str, Ratio]:
    return {ratio.key: ratio for ratio in ratios}
