"""`make bench-check`: do the ratios of the last runs still hold against those under git?

A ratio fails when both its wall and its CPU reading are worse than the committed ones by more than TOLERANCE: one of
them alone is disturbed by whatever else the machine does.
"""

import sys

from benchmarks.race import chosen
from benchmarks.results import Ratio, committed, recorded

TOLERANCE = 1.25


def worse(now: Ratio, before: Ratio) -> bool:
    """Whether a ratio has grown by more than the tolerance, by every clock that both runs have."""
    readings = [now.wall / before.wall]
    if now.cpu and before.cpu:
        readings.append(now.cpu / before.cpu)
    return min(readings) > TOLERANCE


def main() -> int:
    """Print every ratio beside the committed one; the number of those that are worse is the exit code."""
    before, now = committed(), recorded()
    if not now:
        raise SystemExit("nothing is recorded: run make bench, or one of the benchmarks, first")
    failed = [key for key, ratio in now.items() if key in before and worse(ratio, before[key])]
    for key, ratio in now.items():
        was = f"{before[key].wall:.3g}" if key in before else "new"
        print(f"{'WORSE' if key in failed else 'ok':<6}{ratio.wall:8.3g}  was {was:>8}  {key}")
    for key in before.keys() - now.keys():
        print(f"not run                  {key}")
    return len(failed)


if __name__ == "__main__":
    chosen(__doc__)
    sys.exit(main())
