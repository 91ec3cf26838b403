"""The last step of `make bench`: write the recorded ratios to `benchmarks/ratios.json` and to `benchmarks/NOTES.md`.

The site is made from the file: a page with the comparisons with other products and the goals that were missed. The plot of
`docs/benchmarks.md` is drawn here. The table of the notes is written between two marks, and the text around them is kept.
Ratios that this run did not measure are kept from the file under git.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from benchmarks.race import chosen
from benchmarks.results import Ratio, commit, committed, recorded

DOCS = Path(__file__).parent.parent / "docs"
NOTES = Path(__file__).parent / "NOTES.md"
PRODUCTS = {
    "spark": "Spark with Iceberg Java",
    "clickhouse": "ClickHouse",
    "sail": "Sail",
    "polars": "Polars, raw files",
    "datafusion": "DataFusion, raw files",
    "duckdb": "DuckDB, raw files",
    "iceberg_java": "Iceberg Java",
    "PyIceberg upsert": "PyIceberg `upsert`",
    "Spark MERGE INTO, copy-on-write": "Spark `MERGE INTO`, copy-on-write",
    "Spark MERGE INTO, merge-on-read": "Spark `MERGE INTO`, merge-on-read",
    "dlt merge": "dlt `merge`",
}
"""How the page names the products that ratios compare with."""


def table(ratios: Sequence[Ratio]) -> str:
    """A Markdown row per ratio, in the order of their cases."""
    lines = ["| case | ours / other | ratio | CPU | goal | |", "|---|---|---|---|---|---|"]
    for ratio in ratios:
        verdict = {None: "", True: "met", False: "**missed**"}[ratio.met]
        goal = "" if ratio.goal is None else f"{ratio.goal:.3g}"
        cpu = "" if ratio.cpu is None else f"{ratio.cpu:.3g}"
        pair = f"{ratio.ours} ({ratio.seconds * 1e3:.0f} ms) / {ratio.against}"
        lines.append(f"| {ratio.case} | {pair} | {ratio.wall:.3g} | {cpu} | {goal} | {verdict} |")
    return "\n".join(lines)


def comparison(ratios: Sequence[Ratio]) -> str:
    """A Markdown row per comparison with another product."""
    lines = ["| case | Nevermore | compared with | time | CPU time | |", "|---|---|---|---|---|---|"]
    for ratio in ratios:
        if ratio.against in PRODUCTS:
            verdict = {None: "", True: "", False: f"goal of {1 / (ratio.goal or 1):.3g} x missed"}[ratio.met]
            cpu = "" if ratio.cpu is None else _faster(ratio.cpu)
            ours = f"{ratio.ours}, {ratio.seconds * 1e3:.0f} ms"
            cells = (ratio.case, ours, PRODUCTS[ratio.against], _faster(ratio.wall), cpu, verdict)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def missed(ratios: Sequence[Ratio]) -> str:
    """A Markdown row per ratio that does not meet its goal."""
    lines = ["| case | compared | ratio | CPU | goal |", "|---|---|---|---|---|"]
    for ratio in ratios:
        if ratio.met is False:
            cpu = "" if ratio.cpu is None else f"{ratio.cpu:.3g}"
            pair = f"{ratio.ours} / {PRODUCTS.get(ratio.against, ratio.against)}"
            lines.append(f"| {ratio.case} | {pair} | {ratio.wall:.3g} | {cpu} | {ratio.goal:.3g} |")
    return "\n".join(lines)


def _faster(ratio: float) -> str:
    """The ratio in words: how many times as fast, or as slow, ours is."""
    times = max(ratio, 1 / ratio)
    figure = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
    return f"{figure} x {'faster' if ratio < 1 else 'slower'}"


def write_table(page: Path, name: str, content: str) -> None:
    """Replace what a page has between `<!-- NAME: written by make bench -->` and `<!-- end of NAME -->`.

    Raises:
        SystemExit: the page lacks one of the two marks.
    """
    begin, end = f"<!-- {name}: written by make bench -->", f"<!-- end of {name} -->"
    head, found, rest = page.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} lacks the marks {begin} and {end}: restore them")
    page.write_text(f"{head}{begin}\n{content}\n{end}{tail}")


def plot(ratios: Sequence[Ratio], path: Path) -> None:
    """Every ratio with a goal as a bar over it, on a logarithmic axis: left of 1 is better than the goal."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "nevermore", "svg.fonttype": "none"}
    shown = [ratio for ratio in ratios if ratio.goal]
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.28 * len(shown)), layout="constrained")
    values = [min(r.wall, r.cpu or r.wall) / (r.goal or math.nan) for r in shown]
    colours = ["#2a9d5c" if r.met else "#d64545" for r in shown]
    names = [shorten(f"{r.case}: {r.ours} / {r.against}", 80, placeholder=" ...") for r in shown]
    axes.barh(range(len(shown)), [math.log10(value) for value in values], color=colours)
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    ticks = [-2, -1, math.log10(0.5), 0, math.log10(2), 1]
    axes.set_xticks(ticks, [f"{10**tick:.2g}" for tick in ticks])
    axes.set_xlabel("ratio / goal; left of 1 is better")
    axes.margins(y=0.01)
    metadata: dict[str, Any] = {"Date": None}
    figure.savefig(path, metadata=metadata)


def main() -> None:
    """Write `ratios.json`, the plot and the notes."""
    ratios = [ratio for _, ratio in sorted({**committed(), **recorded()}.items())]
    if not ratios:
        raise SystemExit("nothing is recorded: run a benchmark first")
    commit(ratios)
    plot(ratios, DOCS / "benchmarks.svg")
    write_table(NOTES, "ratios", table(ratios))
    print(f"{len(ratios)} ratios written to {NOTES}")


if __name__ == "__main__":
    chosen(__doc__)
    main()
