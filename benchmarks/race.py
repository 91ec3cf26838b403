"""Side by side in one run: candidates in turn, round after round, their answers compared first.

Wall and CPU time are taken of every round: on a machine with other work CPU time is what stays comparable. Every
ratio printed is also recorded, so that `make bench` can publish it and `make bench-check` compare it.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Ratio, record

ROUNDS = 7


def chosen(
    description: str | None, name: str = "", known: Sequence[str] = (), default: Sequence[str] = ()
) -> list[str]:
    """The words on the command line, each one of `known`; the default, or all, if there are none.

    A benchmark without a name for words takes none. `--help` prints the first line of the description.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    if name:
        parser.add_argument(
            name, nargs="*", metavar=name, help=f"{', '.join(known)}; default: {', '.join(default or known)}"
        )
    words: list[str] = getattr(parser.parse_args(), name, [])
    if wrong := [word for word in words if word not in known]:
        parser.error(f"unknown {name}: {', '.join(wrong)} (known: {', '.join(known)})")
    return words or list(default or known)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a candidate in another process says, with the wall and CPU seconds it took there."""

    value: Any
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall seconds of one candidate over all rounds, and its least CPU seconds (of all its threads)."""

    minimum: float
    median: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Goal:
    """`ours` takes at most `at_most` times as long as `against`."""

    ours: str
    against: str
    at_most: float | None = None


def race(candidates: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS, *, same: bool = True) -> dict[str, Timing]:
    """Run every candidate once per round, in turn, after one round that does not count.

    Args:
        candidates: what to run, by name; one that returns an Answer was timed where it ran.
        rounds: counted rounds, at least 5 for a published figure.
        same: whether all of them must give one answer; a difference ends the benchmark.
    """
    answers = {name: _timed(run) for name, run in candidates.items()}
    if same and len({json.dumps(rounded(answer.value)) for answer in answers.values()}) > 1:
        raise SystemExit(f"the answers differ: { {name: answer.value for name, answer in answers.items()} }")
    taken: dict[str, list[Answer]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            gc.collect()
            taken[name].append(_timed(run))
    return {
        name: Timing(
            min(run.seconds for run in runs),
            statistics.median(run.seconds for run in runs),
            min(run.cpu for run in runs),
        )
        for name, runs in taken.items()
    }


def rounded(answer: Any) -> Any:
    """The answer with floats to nine digits: sums in another order differ in the last ones."""
    if isinstance(answer, float):
        return float(f"{answer:.9g}")
    if isinstance(answer, list | tuple):
        return [rounded(part) for part in answer]
    return answer if isinstance(answer, int | str | None) else str(answer)


def report(title: str, timings: Mapping[str, Timing], ours: str, goals: Sequence[Goal] = ()) -> None:
    """A Markdown table with each candidate's time over ours; the ratios of `goals` are recorded under `title`."""
    print(f"\n### {title}\n\n| | min ms | median ms | CPU ms | x ours | x ours, CPU |\n|---|---|---|---|---|---|")
    base = timings[ours]
    for name, timing in timings.items():
        times = f"{timing.minimum * 1e3:.1f} | {timing.median * 1e3:.1f} | {timing.cpu * 1e3:.1f}"
        print(f"| {name} | {times} | {timing.median / base.median:.2f} | {timing.cpu / base.cpu:.2f} |")
    for goal in goals:
        mine, other = timings[goal.ours], timings[goal.against]
        ratio = Ratio(
            title,
            goal.ours,
            goal.against,
            mine.median / other.median,
            mine.cpu / other.cpu if other.cpu else None,
            goal.at_most,
            mine.median,
        )
        record(ratio)
        print(f"\n{ratio.sentence()}")


def _timed(run: Callable[[], Any]) -> Answer:
    wall, cpu = time.perf_counter(), time.process_time()
    value = run()
    if isinstance(value, Answer):
        return value
    return Answer(value, time.perf_counter() - wall, time.process_time() - cpu)
