"""A join of 204,000 items with their inventory, by runtime filter and without, beside DuckDB on the raw files.

The experiment of "Dynamic Pruning" (PolarDB IMCI): `select count(*), sum(inv_quantity) from item join inventory` where the
items are those up to a share of all, with the inventory in three orders, with and without deletes; then the other way
round (the filter on the inventory, the items looked up), and a star of two joins with skewed keys. Without means that
the inventory is read in full and joined afterwards, as a hash join does.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow.compute as pc

from benchmarks.peers import raw_files
from benchmarks.race import ROUNDS, Goal, race, report
from benchmarks.shapes import DATA
from benchmarks.star_tables import ITEMS, LAYOUTS, inventory, items
from nevermore import scan_core
from nevermore.scan_core import Scan, ScanMetrics, ScanOptions
from nevermore.scan_core.joins.key_set import KeySet
from nevermore.scan_core.read.split_reader import read_split
from nevermore.scan_core.rows.buffers import boolean_array
from nevermore.scan_core.split.tasks import Split

SHARES = (1.0, 0.5, 0.1, 0.01, 0.001)
SUMS = (("count", "*"), ("sum", "inv_quantity"))
WITHOUT = ScanOptions.of(use_runtime_filters=False)
GOALS = {("clustered", 0.001): 1 / 20, ("clustered", 1.0): 1.02, ("half_clustered", 1.0): 1.02, ("random", 1.0): 1.02}
"""Of our time without: 20 x faster end to end where it can prune, at most 2 % slower where nothing is excluded."""


@cache
def _metadata(layout: str | None, *, deletes: bool = False) -> str:
    """Where the metadata of the inventory lies, or that of the items."""
    return str((items() if layout is None else inventory(layout, deletes=deletes)).metadata_location)


def scan_of(layout: str | None, *, deletes: bool = False) -> Scan:
    """All rows of an inventory, or of the items; the table is opened anew."""
    return scan_core.open_table(_metadata(layout, deletes=deletes)).scan()


def items_up_to(share: float) -> Scan:
    """Keys of the first items, up to a share of all."""
    return scan_of(None).where(f"i_item_sk <= {round(ITEMS * share)}").select("i_item_sk")


def joined(layout: str, share: float, *, deletes: bool) -> Scan:
    """The inventory of the items up to a share of all."""
    return scan_of(layout, deletes=deletes).semi_join("inv_item_sk", items_up_to(share))


def joined_afterwards(layout: str, share: float, *, deletes: bool) -> list[int]:
    """The same, the inventory read in full and joined batch by batch: a hash join that knows no runtime filter."""
    keys = items_up_to(share).to_table().column(0).combine_chunks()
    facts = scan_of(layout, deletes=deletes).select("inv_item_sk", "inv_quantity")
    lookup = KeySet(facts.key_fields(["inv_item_sk"]), (keys,)).lookup(ScanOptions())
    plan, options = facts.plan(), facts.options
    schema = facts.arrow_schema

    def probe(split: Split, metrics: ScanMetrics, *ahead: Any) -> Iterator[tuple[int, int]]:
        for batch in read_split(split, metrics, *ahead):
            keep = lookup.contains([batch.column(schema.get_field_index("inv_item_sk"))])
            kept = batch.column(schema.get_field_index("inv_quantity")).filter(boolean_array(keep))
            yield len(kept), pc.sum(kept).as_py() or 0

    found = list(facts.with_options(options).run(plan, probe))
    return [sum(count for count, _ in found), sum(total for _, total in found)]


def asked_of_duckdb(layout: str, select: str, where: str) -> Callable[[], list[int]]:
    """A query of `facts` and `items`, the raw files of an inventory and of the items, deleted rows too."""
    facts = raw_files(inventory(layout), DATA / f"raw_star_{layout}")
    dimension = raw_files(items(), DATA / "raw_star_item")
    connection = duckdb.connect(config={"threads": 2})
    connection.execute(f"create view facts as from read_parquet('{facts}/*.parquet')")
    connection.execute(f"create view items as from read_parquet('{dimension}/*.parquet')")
    sql = f"select {select} where {where}"
    return lambda: [int(v or 0) for v in connection.execute(sql).fetchall()[0]]


def measure(layout: str, share: float, rounds: int, *, deletes: bool) -> None:
    """One order and selectivity: a new scan each time, so that keys are read and indexed anew."""
    title = f"runtime filter: {layout}, selectivity {share}{', 1 M deletes' if deletes else ''}"

    def with_filter() -> Any:
        return [int(v) for v in joined(layout, share, deletes=deletes).aggregate(*SUMS)]

    def only_looked_up() -> Any:
        return [int(v) for v in joined(layout, share, deletes=deletes).with_options(WITHOUT).aggregate(*SUMS)]

    candidates: dict[str, Callable[[], Any]] = {
        "filter": with_filter,
        "no filter": lambda: joined_afterwards(layout, share, deletes=deletes),
        "rows looked up in the scan": only_looked_up,
    }
    if not deletes:
        candidates["duckdb, raw files"] = asked_of_duckdb(
            layout,
            "count(*), sum(inv_quantity) from facts join items on i_item_sk = inv_item_sk",
            f"i_item_sk <= {round(ITEMS * share)}",
        )
    goals = [Goal("filter", "no filter", GOALS.get((layout, share)))]
    if not deletes:
        goals.append(Goal("filter", "duckdb, raw files"))
    report(title, race(candidates, rounds), "filter", goals)
    _tell_reading(layout, share, deletes=deletes)


def _tell_reading(layout: str, share: float, *, deletes: bool) -> None:
    """What was read of the inventory, against reading all of it."""
    on, off = (
        joined(layout, share, deletes=deletes),
        scan_of(layout, deletes=deletes).select("inv_item_sk", "inv_quantity"),
    )
    on.aggregate(*SUMS)
    for _ in off.to_batches():
        pass
    read, all_of_it = on.metrics.bytes_read, off.metrics.bytes_read
    print(
        f"\nbytes read {read:,} of {all_of_it:,}: {all_of_it / max(read, 1):.0f} x fewer; rows in row groups read "
        f"{on.metrics.rows_in_files:,} of {off.metrics.rows_in_files:,}; "
        f"{on.metrics.data_files_pruned_by_runtime_filters} files, {on.metrics.row_groups_pruned_by_runtime_filters} row "
        "groups left out"
    )


def measure_reverse(layout: str, share: float, rounds: int) -> None:
    """Large build side, small probe side: items that lie in the inventory up to a share."""
    facts, dimension, condition = scan_of(layout), scan_of(None), f"inv_item_sk <= {round(ITEMS * share)}"

    def ask(options: ScanOptions) -> Any:
        keys = facts.where(condition).select("inv_item_sk")
        return [dimension.with_options(options).semi_join("i_item_sk", keys).count()]

    candidates = {
        "filter": lambda: ask(ScanOptions()),
        "no filter": lambda: ask(WITHOUT),
        "duckdb, raw files": asked_of_duckdb(
            layout, "count(*) from items semi join facts on i_item_sk = inv_item_sk", condition.replace("inv_", "i_")
        ),
    }
    goals = [Goal("filter", "no filter"), Goal("filter", "duckdb, raw files")]
    report(
        f"runtime filter, large build side: {layout}, selectivity {share}", race(candidates, rounds), "filter", goals
    )


def measure_star(rounds: int) -> None:
    """Two dimensions, keys of the fact skewed as words are: few items have most of the rows."""
    facts = scan_of("skewed")
    rare = scan_of(None).where("i_item_sk between 100001 and 100100").select("i_item_sk")
    days = list(range(2_450_815, 2_450_820))

    def ask(options: ScanOptions) -> Any:
        scan = facts.with_options(options).semi_join("inv_item_sk", rare).semi_join("inv_date_sk", days)
        return [int(v or 0) for v in scan.aggregate(*SUMS)]

    candidates = {
        "filter": lambda: ask(ScanOptions()),
        "no filter": lambda: ask(WITHOUT),
        "duckdb, raw files": asked_of_duckdb(
            "skewed",
            "count(*), sum(inv_quantity) from facts join items on i_item_sk = inv_item_sk",
            f"i_item_sk between 100001 and 100100 and inv_date_sk in {tuple(days)}",
        ),
    }
    goals = [Goal("filter", "no filter"), Goal("filter", "duckdb, raw files")]
    report("runtime filter: star of two joins, skewed keys", race(candidates, rounds), "filter", goals)


def main(layouts: Sequence[str], shares: Sequence[float], rounds: int) -> None:
    """Print all cases."""
    for layout in layouts:
        for share in shares:
            measure(layout, share, rounds, deletes=False)
    for share in shares:
        measure("clustered", share, rounds, deletes=True)
    for share in (1.0, 0.001):
        measure_reverse("clustered", share, rounds)
    measure_star(rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS[:3]))
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    main(arguments.layouts, arguments.shares, arguments.rounds)
