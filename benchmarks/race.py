"""Side by side in one run: candidates in turn, round after round, their answers compared first."""

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one candidate over all rounds."""

    minimum: float
    median: float


def race(candidates: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS, *, same: bool = True) -> dict[str, Timing]:
    """Run every candidate once per round, in turn, after one round that does not count.

    Args:
        candidates: what to run, by name.
        rounds: counted rounds, at least 5 for a published figure.
        same: whether all of them must give one answer; a difference ends the benchmark.
    """
    answers = {name: run() for name, run in candidates.items()}
    if same and len({json.dumps(rounded(answer)) for answer in answers.values()}) > 1:
        raise SystemExit(f"the answers differ: {answers}")
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            gc.collect()
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(min(taken), statistics.median(taken)) for name, taken in seconds.items()}


def rounded(answer: Any) -> Any:
    """The answer with floats to nine digits: sums in another order differ in the last ones."""
    if isinstance(answer, float):
        return float(f"{answer:.9g}")
    if isinstance(answer, list | tuple):
        return [rounded(part) for part in answer]
    return answer if isinstance(answer, int | str | None) else str(answer)


def report(title: str, timings: Mapping[str, Timing], ours: str) -> None:
    """A Markdown table; the last column is each candidate's median over ours."""
    print(f"\n### {title}\n\n| | min ms | median ms | x ours |\n|---|---|---|---|")
    for name, timing in timings.items():
        ratio = timing.median / timings[ours].median
        print(f"| {name} | {timing.minimum * 1e3:.1f} | {timing.median * 1e3:.1f} | {ratio:.2f} |")
