"""A year of commits, one a minute: what scans lose and how many bytes are written again, if compaction runs on its own.

python -m benchmarks.year simulated     525,600 commits of three key shapes, decided by the code of `compact: auto`; plots docs/year-of-commits.svg
python -m benchmarks.year real          600 commits of each shape that are made and compacted, scans timed, all bytes counted

Both with `deletes: converted`, the default, which converts deletes once they are as old as the commits between two decisions, and
with `deletes: equality`.

The simulation holds files as numbers: sizes, rows, dead rows by what each commit updates. What to rewrite, and what a scan costs, is
computed by `pipelines/maintain/compact.py` from them; the sizes of files are those of files that are written first. `real` compares the
same estimate with seconds of CPU, and counts manifests and metadata.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.compact import INITIAL_ROWS, Mirror, scan, seconds_of
from benchmarks.race import chosen
from nevermore.pipelines.iceberg.conversion import keep_converted
from nevermore.pipelines.maintain.compact import (
    CompactSettings,
    Costs,
    FileDebt,
    choose_groups,
    compact,
    debts_of,
    pays_conversion,
    pays_unasked,
)
from nevermore.scan_core import DataFile, DeleteContent, DeleteFile, FileFormat, FileScanTask, PartitionSpec, ScanPlan
from nevermore.scan_core.split.tasks import EqualityDeleteGroup

COMMITS = 525_600
ROWS = 1_000
EVERY, FILES = 5, 3
"""Commits between two decisions: at least so many, and one for so many data files, as a look takes longer then."""
HOT_KEYS = INITIAL_ROWS // 100
WINDOW = 10
"""Commits whose new rows are updated in the sequential shape."""
UPDATED = {"sequential": 0.2, "hot set": 1.0, "random UUID": 0.5}
"""Part of the rows of a commit that replace rows."""
MANIFEST_BYTES = 20_000
"""Bytes of manifests and manifest lists that a commit writes, as `real` finds."""
POSITIONS_BYTES = (1_500.0, 1.5)
"""Bytes of a file of positions, and of each position in it, as `real` finds."""
REAL_COMMITS = 600
STEPS = "made", "deletes converted", "compacted"
PLOT = Path(__file__).parent.parent / "docs" / "year-of-commits.svg"
_SPEC = PartitionSpec(0, ())


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of files: a fixed part, and one for each row."""

    data: tuple[float, float]
    deletes: tuple[float, float]

    @classmethod
    def measured(cls, *, as_uuid: bool) -> "Sizes":
        """From files of few and of many rows."""
        found: dict[str, list[float]] = {"data": [], "deletes": []}
        few, many = 1_000, 100_000
        for count in (few, many):
            with tempfile.TemporaryDirectory() as folder:
                mirror = Mirror(Path(folder), as_uuid=as_uuid)
                mirror.commit(np.arange(count), np.arange(0))
                found["data"].append(mirror.written)
                mirror.commit(np.arange(0), np.arange(count))
                found["deletes"].append(mirror.written - found["data"][-1])
        slopes = {kind: (sizes[1] - sizes[0]) / (many - few) for kind, sizes in found.items()}
        fixed = {kind: found[kind][0] - slopes[kind] * few for kind in found}
        return cls((fixed["data"], slopes["data"]), (fixed["deletes"], slopes["deletes"]))


@dataclass(slots=True)
class _File:
    """A data file; `live` has its live rows by group of keys that are updated alike."""

    sequence: int
    rows: float
    live: np.ndarray
    last_cohort: int
    converted: int = 0
    known_dead: float = 0.0

    @property
    def dead(self) -> float:
        """Dead rows that are still in it."""
        return self.rows - float(self.live.sum())


@dataclass(slots=True)
class _Year:
    """The files of one table. Groups of keys: in the sequential shape the last commits' rows, then all older ones."""

    shape: str
    sizes: Sizes
    files: list[_File] = field(default_factory=list)
    deletes: list[tuple[int, int]] = field(default_factory=list)
    is_converted: bool = True
    commits: int = 0
    ingested: float = 0.0
    rewritten: float = 0.0
    conversions: int = 0
    surviving: float = 1.0
    window: np.ndarray = field(default_factory=lambda: np.zeros((8 * WINDOW, WINDOW + 1)))
    recent: list[_File] = field(default_factory=list)
    settings: CompactSettings = field(default_factory=lambda: CompactSettings(is_automatic=True))

    def begin(self) -> None:
        """The rows that are there at first, in one file."""
        live = np.zeros(self.num_groups)
        live[-1] = INITIAL_ROWS - (HOT_KEYS if self.shape == "hot set" else 0)
        if self.shape == "hot set":
            live[0] = HOT_KEYS
        self.files = [_File(0, INITIAL_ROWS, live, 0)]

    @property
    def num_groups(self) -> int:
        return {"sequential": WINDOW + 1, "hot set": 2, "random UUID": 1}[self.shape]

    def commit(self) -> None:
        """One commit: some rows replace live rows, the others are new."""
        self.commits += 1
        updated = UPDATED[self.shape] * ROWS
        new = np.zeros(self.num_groups)
        if self.shape == "sequential":  # the oldest group of the window joins all older ones
            live = self.window[: len(self.recent)]
            live[:, -1] += live[:, -2]
            live[:, 1:-1] = live[:, :-2].copy()
            live[:, 0] = 0.0
            live[:, 1:-1] *= 1 - updated / ((WINDOW - 1) * (1 - UPDATED[self.shape]) * ROWS)
            new[1:-1] = updated / (WINDOW - 1)
            new[0] = ROWS - updated
        else:
            keys = HOT_KEYS if self.shape == "hot set" else INITIAL_ROWS + (ROWS - updated) * self.commits
            self.surviving *= 1 - updated / keys
            new[0] = ROWS / self.surviving
        self.files.append(_File(self.commits, ROWS, new, self.commits))
        if self.shape == "sequential":
            if len(self.recent) == len(self.window):
                self._settle()
            self.window[len(self.recent)] = new
            self.recent.append(self.files[-1])
        num_keys = updated if self.shape == "sequential" else ROWS
        self.deletes.append((self.commits, int(num_keys)))
        data, deletes = self.sizes.data, self.sizes.deletes
        self.ingested += data[0] + data[1] * ROWS + deletes[0] + deletes[1] * num_keys

    def _settle(self) -> None:
        """Give the files their live rows back."""
        for file, live in zip(self.recent, self.window, strict=False):
            file.live = live.copy()
        self._begin_window()

    def _begin_window(self) -> None:
        """The files whose rows the next commits update."""
        self.recent = [
            file for file in self.files if file.last_cohort >= self.commits - WINDOW and file.live[:-1].any()
        ]
        for number, file in enumerate(self.recent):
            self.window[number] = file.live

    def _met_by(self, file: _File) -> range:
        """The commits whose deletes may meet rows of a file: by its sequence number, and by the bounds of keys."""
        last = file.last_cohort + WINDOW if self.shape == "sequential" else self.commits
        return range(max(file.sequence, file.converted) + 1, min(last, self.commits) + 1)

    def tasks(self) -> list[FileScanTask]:
        """The files as scans plan them."""
        met = [self._met_by(file) for file in self.files]
        first = self.deletes[0][0] if self.deletes else self.commits
        needed = np.zeros(self.commits + 2 - first, np.int64)
        for one in met:
            if one and one.stop > first:
                needed[max(one.start - first, 0)] += 1
                needed[one.stop - first] -= 1
        is_needed = np.cumsum(needed) > 0
        self.deletes = [one for one in self.deletes if is_needed[one[0] - first]]
        group = EqualityDeleteGroup((1,), tuple(_delete_file(*one) for one in self.deletes))
        return [
            FileScanTask(
                _data_file(number, file, self.sizes),
                0,
                1,
                (group,) if self.deletes and one and one.stop > self.deletes[0][0] else (),
                (_delete_file(-number, round(file.known_dead), DeleteContent.POSITION),)
                if file.known_dead >= 1
                else (),
            )
            for number, (file, one) in enumerate(zip(self.files, met, strict=True))
        ]

    def decide(self) -> tuple[float, float]:
        """Rewrite what the code of `compact: auto` would; return seconds of a scan before, and of one without debt."""
        costs, target = Costs(), self.settings.target_file_bytes
        if self.shape == "sequential":
            self._settle()
        else:  # what commits have updated since the last decision
            for file in self.files:
                file.live[0] *= self.surviving
        self.surviving = 1.0
        tasks = self.tasks()
        if self.is_converted or pays_conversion(
            debts_of(cast("ScanPlan", SimpleNamespace(tasks=tasks)), costs, lambda found: [0] * len(found))
        ):
            self._convert()
            tasks = self.tasks()

        def dead_rows(touched: Any) -> list[int]:
            return [self._dead(int(task.data_file.path)) for task in touched]

        debts = debts_of(cast("ScanPlan", SimpleNamespace(tasks=tasks)), costs, dead_rows)
        best, lost = costs.scan_seconds(debts, target), max(costs.saved_seconds(debts, target), 0.0)
        if pays_unasked(lost, best):
            groups = choose_groups(debts, _SPEC, costs, self.settings)
            gone: set[int] = set()
            for group in groups:
                gone |= self._merge(group)
            self.files = sorted(
                (file for number, file in enumerate(self.files) if number not in gone), key=lambda f: f.last_cohort
            )
            self.rewritten += MANIFEST_BYTES * bool(groups)
        if self.shape == "sequential":
            self._begin_window()
        return best + lost, best

    def _dead(self, number: int) -> int:
        return round(self.files[number].dead)

    def _convert(self) -> None:
        """Positions in the place of keys: of each file with new dead rows all positions are written."""
        if not self.deletes or self.deletes[-1][0] <= max(file.converted for file in self.files):
            return
        self.conversions += 1
        for file in self.files:
            if self._met_by(file) and file.dead > file.known_dead + 0.5:
                file.known_dead = file.dead
                self.rewritten += POSITIONS_BYTES[0] + POSITIONS_BYTES[1] * file.dead
            file.converted = self.commits
        self.rewritten += MANIFEST_BYTES

    def _merge(self, group: list[FileDebt]) -> set[int]:
        numbers = [int(debt.task.data_file.path) for debt in group]
        members = [self.files[number] for number in numbers]
        live = sum((file.live for file in members), np.zeros(self.num_groups))
        rows = float(live.sum())
        made = _File(self.commits, rows, live, max(file.last_cohort for file in members))
        self.files.append(made)
        self.rewritten += self.sizes.data[0] + self.sizes.data[1] * rows
        return set(numbers)


def _data_file(number: int, file: _File, sizes: Sizes) -> DataFile:
    size = int(sizes.data[0] + sizes.data[1] * file.rows)
    return _file(DataFile, number, round(file.rows), size, file.sequence)


def _delete_file(commit: int, keys: int, content: DeleteContent = DeleteContent.EQUALITY) -> DeleteFile:
    return replace(_file(DeleteFile, commit, keys, 1, commit), content=content)


def _file(kind: Any, number: int, rows: int, size: int, sequence: int) -> Any:
    return kind(
        path=str(number),
        format=FileFormat.PARQUET,
        spec_id=0,
        partition=(),
        record_count=rows,
        file_size_bytes=size,
        data_sequence_number=sequence,
    )


Point = tuple[float, float, float]
"""The day, a scan over that of the compacted table, and the bytes rewritten per byte ingested so far."""


def follow(shape: str, commits: int, *, is_converted: bool = True) -> tuple[str, list[Point]]:
    """Make many commits of one shape; a summary, and what every decision found."""
    year = _Year(shape, Sizes.measured(as_uuid=shape == "random UUID"), is_converted=is_converted)
    year.begin()
    points: list[Point] = []
    following, best = EVERY, 0.0
    for number in range(1, commits + 1):
        year.commit()
        if number < following and number < commits:
            continue
        following = number + max(EVERY, len(year.files) // FILES)
        now, best = year.decide()
        rewritten = (year.rewritten + MANIFEST_BYTES * number) / year.ingested
        points.append((number / 1_440, now / best, rewritten))
    ratios = [ratio for _, ratio, _ in points]
    summary = (
        f"{shape}, {_mode(is_converted=is_converted)}: scan / compacted at most {max(ratios):.2f}, median {median(ratios):.2f}, at the end {ratios[-1]:.2f} of {best:.1f} s; "
        f"{points[-1][2]:.2f} bytes rewritten per byte ingested, of which {MANIFEST_BYTES * commits / year.ingested:.2f} manifests; "
        f"{year.ingested / 1e9:.1f} GB ingested, {year.conversions:,} conversions, {len(year.files):,} data files and "
        f"{len(year.deletes):,} equality-delete files at the end"
    )
    return summary, points


def simulated(commits: int = COMMITS) -> None:
    """A year of each shape."""
    found: dict[str, list[Point]] = {}
    for shape in UPDATED:
        summary, found[shape] = follow(shape, commits)
        print(summary, follow(shape, commits, is_converted=False)[0], sep="\n", flush=True)
    plot(found)


def _mode(*, is_converted: bool) -> str:
    return "converted" if is_converted else "equality"


def plot(found: Mapping[str, Sequence[Point]]) -> None:
    """Both measures over the days of the year."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "nevermore", "svg.fonttype": "none"}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    titles = ("scan / scan of the compacted table", "bytes rewritten per byte ingested so far")
    for place, title, goal, index in zip(axes, titles, (1.5, 5.0), (1, 2), strict=True):
        for shape, points in found.items():
            edges = np.unique(np.geomspace(1, len(points), 60).astype(int))  # a small file: the worst of neighbours
            parts = [points[begin:end] for begin, end in pairwise([0, *edges]) if end > begin]
            place.plot(
                [part[-1][0] for part in parts],
                [max(p[index] for p in part) for part in parts],
                label=shape,
                linewidth=1,
            )
        place.axhline(goal, color="black", linewidth=0.6, linestyle="--")
        place.set_xscale("log")
        place.set_title(title, fontsize=9)
        place.set_xlabel("day", fontsize=8)
        place.set_ylim(bottom=0)
    axes[0].legend(fontsize=8)
    metadata: dict[str, Any] = {"Date": None}
    figure.savefig(PLOT, metadata=metadata)


def real(commits: int = REAL_COMMITS) -> None:
    """Commits that are made, compacted and scanned."""
    for shape, is_converted in product(UPDATED, (True, False)):
        random = np.random.default_rng(5)
        with tempfile.TemporaryDirectory() as folder:
            mirror = Mirror(Path(folder), as_uuid=shape == "random UUID")
            mirror.commit(np.arange(INITIAL_ROWS), np.arange(0))
            first, rewritten, runs, ratios, spent = mirror.written, 0, 0, [], [0.0, 0.0, 0.0]
            for number in range(1, commits + 1):
                keys, begins = _keys(shape, number, random), [process_time()]
                mirror.commit(*keys)
                begins.append(process_time())
                if number % EVERY == 0 and is_converted and (done := keep_converted(mirror.table())):
                    rewritten += done.added_bytes
                begins.append(process_time())
                if number % EVERY == 0:
                    report = compact(mirror.table(), CompactSettings(is_automatic=True, key=("id",)))
                    rewritten += report.bytes_after
                    runs += report.has_changed
                spent = [a + b - c for a, b, c in zip(spent, [*begins[1:], process_time()], begins, strict=True)]
                if number % max(commits // 6, 1) == 0:
                    now = seconds_of(partial(scan, mirror.table()), 3)
                    best = seconds_of(partial(scan, mirror.compacted_copy()), 3)
                    ratios.append(now / best)
            sizes = {
                suffix: sum(path.stat().st_size for path in Path(folder).rglob(f"*{suffix}"))
                for suffix in (".avro", ".metadata.json")
            }
            ingested = mirror.written - first
            print(
                f"{shape}, {_mode(is_converted=is_converted)}: {commits} commits, scan / compacted at most {max(ratios):.2f}, median {median(ratios):.2f} (CPU); bytes per byte "
                f"ingested: {rewritten / ingested:.2f} rewritten in {runs} runs, {sizes['.avro'] / ingested:.2f} manifests "
                f"({sizes['.avro'] / commits:,.0f} a commit), {sizes['.metadata.json'] / ingested:.2f} metadata files, all snapshots kept; ms a commit: "
                + ", ".join(f"{name} {1000 * s / commits:.1f}" for name, s in zip(STEPS, spent, strict=True)),
                flush=True,
            )


def _keys(shape: str, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Keys that a commit upserts, and those that may exist."""
    updated = int(UPDATED[shape] * ROWS)
    new = np.arange(ROWS - updated) + INITIAL_ROWS + number * ROWS
    if shape == "hot set":
        old = random.choice(HOT_KEYS, updated, replace=False)
    elif shape == "sequential":
        old = np.unique(new[0] - 1 - random.choice(WINDOW * ROWS, updated, replace=False))
        return np.r_[new, old], old
    else:
        old = random.choice(INITIAL_ROWS, updated, replace=False)
    return np.r_[old, new], np.r_[old, new]


def _runs() -> Iterator[str]:
    yield from chosen(__doc__, "part", ("simulated", "real"))


if __name__ == "__main__":
    for part in _runs():
        {"simulated": simulated, "real": real}[part]()
