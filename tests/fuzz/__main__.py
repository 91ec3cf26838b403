"""Run many cases, or make one again: `python -m tests.fuzz --inputs 100000`, `python -m tests.fuzz --case 4711`."""

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.campaign import run_campaign
from tests.fuzz.case import make_case, run_case
from tests.fuzz.subjects import build_subjects

SEED = 20_260_101


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="how many cases")
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--case", type=int, help="run only this case, in this process")
    parser.add_argument("--keep", type=Path, help="with --case: leave the damaged table in this folder")
    chosen = parser.parse_args()
    if chosen.case is not None:
        return _again(chosen.seed, chosen.case, chosen.keep)
    started = time.monotonic()
    findings = 0
    for finding in run_campaign(chosen.seed, chosen.start, chosen.start + chosen.inputs, jobs=chosen.jobs):
        findings += 1
        print(finding, flush=True)  # noqa: T201  a report is what this is for
    seconds = time.monotonic() - started
    print(f"{chosen.inputs} inputs, {findings} findings, {seconds:.0f} s, seed {chosen.seed}")  # noqa: T201
    return 1 if findings else 0


def _again(seed: int, number: int, keep: Path | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        subjects = build_subjects(Path(folder) if keep is None else keep)
        case, random = make_case(seed, number, subjects)
        print(case)  # noqa: T201
        if keep is not None:
            (case.subject.folder / case.path).with_suffix(".damaged").write_bytes(case.content)
        try:
            what = run_case(case, random)
        except Exception:  # noqa: BLE001
            what = traceback.format_exc()
        print(what or "read, or refused as it should be")  # noqa: T201
        return 0 if what is None else 1


if __name__ == "__main__":
    sys.exit(main())
