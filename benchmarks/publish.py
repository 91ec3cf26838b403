"""`make bench` ends here: the recorded ratios become `benchmarks/ratios.json`, a table and a plot in `docs/`.

The table stands between two marks in `docs/benchmarks.md`; what is written around them is kept. Ratios that this run
did not measure are kept from the file under git.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Ratio, commit, committed, recorded

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- ratios: written by make bench -->", "<!-- end of ratios -->"


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


def plot(ratios: Sequence[Ratio], path: Path) -> None:
    """Every ratio with a goal as a bar over it, on a logarithmic axis: left of 1 is better than the goal."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "nevermore", "svg.fonttype": "none"}
    shown = [ratio for ratio in ratios if ratio.goal]
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.28 * len(shown)), layout="constrained")
    values = [min(r.wall, r.cpu or r.wall) / (r.goal or math.nan) for r in shown]
    colours = ["tab:green" if r.met else "tab:red" for r in shown]
    axes.barh(range(len(shown)), [math.log10(value) for value in values], color=colours)
    axes.set_yticks(range(len(shown)), [f"{r.case}: {r.ours} / {r.against}" for r in shown], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    ticks = [-2, -1, math.log10(0.5), 0, math.log10(2), 1]
    axes.set_xticks(ticks, [f"{10**tick:.2g}" for tick in ticks])
    axes.set_xlabel("ratio over its goal (1 = just met, left is better)")
    metadata: dict[str, Any] = {"Date": None}
    figure.savefig(path, metadata=metadata)


def main() -> None:
    """Write the three files."""
    ratios = [ratio for _, ratio in sorted({**committed(), **recorded()}.items())]
    if not ratios:
        raise SystemExit("nothing is recorded: run a benchmark first")
    commit(ratios)
    plot(ratios, DOCS / "benchmarks.svg")
    page = DOCS / "benchmarks.md"
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{table(ratios)}\n{END}{tail}")
    print(f"{len(ratios)} ratios written to {page}")


if __name__ == "__main__":
    main()
