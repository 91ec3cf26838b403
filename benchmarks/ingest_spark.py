"""What an event costs on Spark beside this process: CPU seconds of log and mirror, of all processes that take part.

A first load, and changes of rows that a mirror has (all changes are shuffled), narrow and wide. Both engines
ingest the same files in turn, in one session: driver, JVM and Python workers count. The first rounds do not, in which Java still
compiles most of what it runs. A tenth of the events is ingested in turn, too: the difference is what an event costs, the
rest what a run costs however small it is.
"""

import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.ingest_decode import write
from benchmarks.interop_session import cpu_seconds
from benchmarks.race import chosen
from benchmarks.results import Ratio, record
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import freeze_imports, run_once

WARM_UP_ROUNDS, ROUNDS = 4, 3
GOAL = 1.3
CASES = {
    "narrow first load": 4_000_000,
    "narrow changes": 4_000_000,
    "wide first load": 600_000,
    "wide changes": 600_000,
}
ENGINES = ("local", "spark")
SIZES = {"all": 1, "tenth": 10}


def prepare(folder: Path, case: str) -> None:
    """Write the feed of a case; the second half of its events updates the rows of the first."""
    whole = folder / "whole.jsonl"
    write(whole, CASES[case], 60 if "wide" in case else 5, envelope=False)
    half = CASES[case] // 2
    for size, share in SIZES.items():
        (folder / size).mkdir()
        for first, file in ((0, "1.jsonl"), (half, "2.jsonl")):
            with whole.open("rb") as lines, (folder / size / file).open("wb") as own:
                own.writelines(islice(lines, first, first + half // share))
    whole.unlink()


def spent(folder: Path, engine: str, case: str) -> tuple[float, float]:
    """(wall, CPU seconds) of the measured ingest into a new catalog."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        landing = Path(name) / "landing"
        landing.mkdir()
        config = Path(name) / "nevermore.yaml"
        files = ("1.jsonl",) if "first load" in case else ("1.jsonl", "2.jsonl")
        wall = cpu = 0.0
        for number, file in enumerate(files):
            (landing / file).symlink_to(folder / file)
            # what an update needs is loaded by the same engine for both
            ingest = {"engine": engine if number == len(files) - 1 else "local"}
            source = {"type": "files", "path": "landing/*.jsonl", "format": "debezium-json"}
            table: dict[str, Any] = {"source": source, "key": ["id"], "ingest": ingest}
            document = {"tables": {"shop.products": table}, "spark": {"master": "local[2]"}}
            config.write_text(yaml.safe_dump(document))
            wall, cpu = time.perf_counter(), cpu_seconds()
            report = run_once(load(config))
            wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
            assert report.exit_code == 0, report.as_dict()
    return wall, cpu


def main(cases: list[str]) -> None:
    freeze_imports()
    print("| events | local, us | Spark, us | Spark / local, CPU | wall | a run: local, Spark, s of CPU |")
    print("|---|---|---|---|---|---|")
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(folder, case)
            runs = [(engine, size) for engine in ENGINES for size in SIZES]
            number = WARM_UP_ROUNDS + ROUNDS
            rounds = [{(e, size): spent(folder / size, e, case) for e, size in runs} for _ in range(number)]
        wall, cpu = ({run: median(found[run][n] for found in rounds[-ROUNDS:]) for run in runs} for n in (0, 1))
        events = CASES[case] // 2
        each = {e: (cpu[e, "all"] - cpu[e, "tenth"]) / (events - events // SIZES["tenth"]) for e in ENGINES}
        fixed = {e: cpu[e, "all"] - each[e] * events for e in ENGINES}
        ratio = Ratio(
            f"ingest, {case}",
            "Spark",
            "local",
            wall["spark", "all"] / wall["local", "all"],
            each["spark"] / each["local"],
            GOAL,
            wall["spark", "all"],
        )
        record(ratio)
        print(
            f"| {case} | {each['local'] * 1e6:.2f} | {each['spark'] * 1e6:.2f} | {ratio.cpu:.2f} x | {ratio.wall:.2f} x | "
            f"{fixed['local']:.2f}, {fixed['spark']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(chosen(__doc__, "case", tuple(CASES)))
