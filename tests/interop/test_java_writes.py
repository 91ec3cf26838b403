"""Iceberg Java writes random tables; it, scan_core and the reference read the same rows in every snapshot of them.

Every seed is one history, see `histories/`: `tests/interop/run -k seed-17` repeats one. NEVERMORE_INTEROP_HISTORIES
tells how many there are.
"""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nevermore import scan_core
from tests.interop.deviations import verdict
from tests.interop.laws import broken_laws
from tests.interop.three_readings import readings

JAVA_PYTHON = os.environ.get("NEVERMORE_INTEROP_PYTHON")
HISTORIES = int(os.environ.get("NEVERMORE_INTEROP_HISTORIES", "20"))
pytestmark = pytest.mark.skipif(JAVA_PYTHON is None, reason="make interop sets up the second environment")
ROOT = Path(__file__).parents[2]


class Writer:
    """The process in which Java writes, ahead of the tests that read."""

    def __init__(self, folder: Path, seeds: Iterable[str]) -> None:
        self.folder = folder
        self.log = (folder / "log").open("w+", encoding="utf-8")
        command = [str(JAVA_PYTHON), "-W", "ignore", "-m", "tests.interop.histories.write", str(folder), *seeds]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self.log, text=True)

    def history(self, seed: int) -> dict[str, Any]:
        """What happened under a seed, as soon as it has happened."""
        path = self.folder / f"{seed}.json"
        assert self.process.stdout is not None
        while not path.exists():
            assert self.process.stdout.readline(), self._last_words()
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return facts

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=300)
        self.log.close()

    def _last_words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-4000:]


@pytest.fixture(scope="module")
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    mine = [i for i in request.session.items if isinstance(i, pytest.Function) and i.path == Path(__file__)]
    chosen = [str(item.callspec.params["seed"]) for item in mine if hasattr(item, "callspec")]
    # the last test, which has no seed, is about all of them
    seeds = chosen if len(chosen) == len(mine) else map(str, range(HISTORIES))
    writer = Writer(tmp_path_factory.mktemp("histories"), seeds)
    yield writer
    writer.close()


@pytest.mark.parametrize("seed", range(HISTORIES), ids=lambda seed: f"seed-{seed}")
def test_java_writes_a_table_that_all_three_read_alike(seed: int, writer: Writer, faults: Counter[str]) -> None:
    history = writer.history(seed)
    assert "error" not in history, history["error"]
    for read in history["reads"]:
        where = (
            f"seed {seed}, {read.get('snapshot', read.get('ref', 'current'))}, {json.dumps(history['log'], indent=1)}"
        )
        found = readings(history, read)
        assert found.ours == found.reference, where
        faults["readings"] += 1
        if found.ours != found.java or read.get("helped"):
            said = verdict(history, read, found)
            assert said.unexplained is None, f"{said.unexplained}\n{where}"
            faults.update(said.faults)
    assert list(broken_laws(scan_core.open_table(history["metadata"]))) == [], f"seed {seed}"
    shutil.rmtree(writer.folder / str(seed))


@pytest.mark.skipif(HISTORIES < 20, reason="too few histories to show everything")
def test_histories_show_all_that_they_are_about(writer: Writer) -> None:
    histories = [writer.history(seed) for seed in range(HISTORIES)]
    did = {f"{step['step']}: {step['did']}" for history in histories for step in history["log"] if "did" in step}
    for wanted in (
        *(f"delete_by_equality: .*delete [1-9].* in {name} " for name in ("PARQUET", "ORC", "AVRO")),
        "delete_by_equality: .* rows in",
        "delete_by_position: positions",
        "delete_by_position: vectors",
        "compact: .*meanwhile",
        "rewrite_delete_file: .* to",
        *(f"change_schema: .*{kind} " for kind in ("rename", "drop", "promote", "add", "move")),
        "change_schema: .*with a default",
        "change_spec: without",
        *(f"(create|change_spec): .*{kind}" for kind in ("identity", "bucket", "truncate", "void")),
        *(f"branch_or_tag: {kind}" for kind in ("branch", "tag")),
        r".* (to|on) ref\d",
        "upgrade: 3",
        "rewrite_manifests",
    ):
        assert any(re.match(wanted, text, re.DOTALL) for text in did), wanted
    assert {history["version"] for history in histories} >= {2, 3}  # a table of v1 has no deletes and is rarer
