"""What do its checks add to a publication? 1 % of the rows of a mirror change between runs, in one of its days.

Run: `python -m benchmarks.checked_publish`. In every round the mirror takes a batch of changes, then a published table is brought
up to date with all checks, of the mirrors by the keys that changed and of the staged rows; its twin, of the same SQL, without
any. All rows of the mirror were compared before the first round.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.incremental_publish import ROWS_PER_DAY, SQL, Shop, orders, shop_config
from benchmarks.race import Answer, Goal, race, report
from nevermore.checks.published_equality import ProjectAuditor
from nevermore.pipelines.ingest.feed_run import freeze_imports
from nevermore.pipelines.publish.refresh_report import PublishReport

ROUNDS = 5
DAYS = 20
CHANGED = 0.01
MAX_RATIO = 1.5


class CheckedShop(Shop):
    """Mirrors that change by the rows of one day."""

    def change_day(self, batch: int) -> None:
        """1 % of all orders get other amounts: those of one day, other ones in each batch."""
        random = np.random.default_rng(batch)
        chosen = random.choice(ROWS_PER_DAY, round(DAYS * ROWS_PER_DAY * CHANGED), replace=False)
        self.apply("shop.orders", orders(np.sort(batch % DAYS * ROWS_PER_DAY + chosen), batch))

    def publish_checked(self) -> Answer:
        """Bring the table up to date with all checks, which compare changed keys alone but for the first time."""

        def prove(made: PublishReport) -> None:
            assert made.checks, made
            assert all(verdict.passed for verdict in made.checks), made.checks
            if made.partitions is not None:
                assert any(verdict.summary().startswith("since snapshot") for verdict in made.checks), made.checks

        return self.publish("shop.checked", prove, auditor=ProjectAuditor())


def measure(rounds: int) -> None:
    """Print and record the race."""
    with tempfile.TemporaryDirectory() as folder:
        entry = {"incremental": True, "sql": SQL["partitions"]}
        shop = CheckedShop(shop_config(folder, {"shop.checked": entry, "shop.unchecked": entry}))
        shop.fill(DAYS)
        ways: dict[str, Callable[[], Answer]] = {
            "with checks": shop.publish_checked,
            "without": lambda: shop.publish("shop.unchecked"),
        }
        for publish in ways.values():
            publish()
        turns = itertools.count()

        def run(way: str) -> Answer:
            turn = next(turns)
            if turn % 2 == 0:  # both candidates of a round see one batch
                shop.change_day(turn // 2 + 1)
            return ways[way]()

        candidates = {way: partial(run, way) for way in ways}
        title = f"publish and check, {DAYS} days of {ROWS_PER_DAY:,} rows, 1 % of all changed"
        report(title, race(candidates, rounds), "with checks", [Goal("with checks", "without", MAX_RATIO)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    freeze_imports()
    measure(parser.parse_args().rounds)
