"""Ingest and scan while another user attacks the shared temporary directory, before the start and while they run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.project import Project, event, product
from tests.support.other_user import Machine, machine, needs_root

pytestmark = [needs_root, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import sys
from pathlib import Path
from nevermore import scan_core
from nevermore.pipelines.iceberg.catalog import find_table, open_catalog
from nevermore.pipelines.config.project import load
from nevermore.pipelines.ingest.feed_run import run_once
from nevermore.scan_core.spark.source import with_shared_indexes
from nevermore.scan_core.io.private_files import PrivateFolder, user_folder
spilled = []
create = PrivateFolder.create
PrivateFolder.create = lambda self, name: spilled.append(self.path / name) or create(self, name)
config = load(Path(sys.argv[1]))
for step in ("first", "second"):
    report = run_once(config)
    print(report.as_dict()["tables"][0]["data_rows"], flush=True)
    if step == "first":
        input()  # the attacker acts
        (config.path.parent / "landing" / "1.jsonl").rename(config.path.parent / "landing" / "9.jsonl.gone")
        (config.path.parent / "next").rename(config.path.parent / "landing" / "2.jsonl")
for limit in (1, 1 << 30):  # by partitions in spill files, and by a shared index
    options = scan_core.ScanOptions(memory_limit_bytes=limit, index_folder=str(user_folder("indexes").path))
    table = scan_core.open_table(find_table(open_catalog(config), "shop.products"))
    print(table.scan().with_options(options).to_table().num_rows, flush=True)
assert any(p.parent.parent.name == "spill" or p.parent.name.startswith("deletes-") for p in spilled), spilled
assert any(p.name.endswith(".arrow") for p in spilled), spilled
"""

ATTACKS = {
    "none": "true",
    "folder": "mkdir -m 755 $base",
    "open folder": "mkdir -m 777 $base; mkdir -m 777 $base/spill $base/indexes; mkfifo $base/spill/lock",
    "folder of links": "mkdir -m 777 $base; ln -s $precious $base/spill; ln -s $precious $base/indexes",
    "link": "ln -s $precious $base",
    "fifo": "mkfifo $base",
    "file": "touch $base",
}


@pytest.fixture
def engine() -> str:
    """Spilled files are those of the engine that reads in its own process."""
    return "local"


@pytest.fixture
def attacked() -> Iterator[Machine]:
    with machine() as made:
        yield made
        made.check_unharmed()


@pytest.mark.parametrize("later", [False, True], ids=["before", "while it runs"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_ingest_and_scan_do_their_work_and_harm_nothing(
    attacked: Machine, tmp_path: Path, attack: str, *, later: bool
) -> None:
    project = Project(tmp_path, {"shop.products": {"key": ["id"], "memory_limit_bytes": "1MiB"}})
    project.land("1.jsonl", (event("c", product(n, "x" * 400)) for n in range(3_000)))
    (tmp_path / "next").write_text("".join(event("u", product(n, "y" * 400)) + "\n" for n in range(0, 3_000, 2)))
    if not later:
        attacked.attack(attack)
    environment = {**os.environ, "TMPDIR": str(attacked.shared), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "nevermore.yaml")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as victim:
        assert victim.stdout is not None
        first = victim.stdout.readline()
        if later:
            attacked.attack(f"if test -e $base; then mv $base $shared/away; fi; {attack}")
        rest, errors = victim.communicate("\n", timeout=200)
    assert (first + rest).split() == ["3000", "1500", "3000", "3000"], errors
