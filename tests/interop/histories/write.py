"""Runs in the second environment: lets Iceberg Java write random tables and read every snapshot of them.

Usage: python -m tests.interop.histories.write FOLDER SEED... For each seed a line of JSON on standard output names the
file `FOLDER/SEED.json` once it is there. What happened in a history follows from its seed alone.
"""

import json
import sys
import traceback
from pathlib import Path

from tests.interop.histories.gateway import Java
from tests.interop.histories.history import write_history


def main(folder: Path, seeds: list[int]) -> None:
    java = Java()
    java.jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel(java.jvm.org.apache.logging.log4j.Level.OFF)
    for seed in seeds:
        try:
            facts = write_history(java, seed, folder / str(seed))
        except Exception:  # noqa: BLE001  the test of this seed fails with it, the others go on
            facts = {"error": traceback.format_exc()}
        (folder / f"{seed}.json").write_text(json.dumps(facts), encoding="utf-8")
        print(json.dumps({"seed": seed}), flush=True)  # noqa: T201  the protocol
    java.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]])
