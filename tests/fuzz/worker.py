"""A process that runs a chunk of cases and prints what went wrong, one JSON object a line.

    python -m tests.fuzz.worker SEED START STOP FOLDER

Before each case its number is written to FOLDER/progress, so that whoever started the process knows where it ended.
"""

import faulthandler
import json
import resource
import sys
import tempfile
import traceback
from pathlib import Path

import pyarrow as pa

from nevermore.scan_core.native import load_kernels
from tests.fuzz.case import make_case, run_case
from tests.fuzz.subjects import build_subjects
from tests.support.memory import peak_bytes

MAX_SECONDS = 30
"""For one case, which takes milliseconds; the machine may be busy."""
MAX_ADDRESS_BYTES = 16 * 1024**3
MAX_ARROW_BYTES = 512 * 1024**2
MAX_RESIDENT_BYTES = 1024**3
"""The tables are small: more was allocated because a file said so."""
TOO_MUCH_MEMORY = 3
"""Exit code; peaks do not go down again, so another process has to go on."""


def main(seed: int, start: int, stop: int, folder: Path) -> int:
    """Run the cases [start, stop)."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=folder) as tables, (folder / "progress").open("r+") as progress:
        subjects = build_subjects(Path(tables))
        load_kernels()  # on a machine that has not compiled them yet, this takes longer than a case may
        for number in range(start, stop):
            progress.seek(0)
            progress.write(str(number))
            progress.flush()
            faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
            what = _run(seed, number, subjects)
            if what is not None:
                sys.stdout.write(json.dumps({"number": number, "what": what}) + "\n")
                sys.stdout.flush()
            if pa.default_memory_pool().max_memory() > MAX_ARROW_BYTES or peak_bytes() > MAX_RESIDENT_BYTES:
                return TOO_MUCH_MEMORY
        faulthandler.cancel_dump_traceback_later()
    return 0


def _run(seed: int, number: int, subjects: list) -> str | None:  # type: ignore[type-arg]
    case, random = make_case(seed, number, subjects)
    try:
        what = run_case(case, random)
    except Exception:  # noqa: BLE001  a fault of the harness is reported like one of the engine
        what = traceback.format_exc()
    return None if what is None else f"{case}: {what}"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
