"""A sample of `make fuzz`, and that the suite finds what it is there to find."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from nevermore.scan_core import MalformedTableError
from tests.fuzz.__main__ import SEED
from tests.fuzz.campaign import MAX_ENDED, run_campaign
from tests.fuzz.case import _judge_refusal, make_case, run_case
from tests.fuzz.subjects import Subject, build_subjects
from tests.support.memory import PEAK_BYTES

INPUTS = 200


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> list[Subject]:
    return build_subjects(tmp_path_factory.mktemp("subjects"))


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 7))])
def test_damaged_tables_are_read_or_refused(part: int) -> None:
    findings = list(run_campaign(SEED, part * INPUTS, (part + 1) * INPUTS))
    assert not findings, "\n".join(map(str, findings))


def test_cases_are_told_by_seed_and_number(subjects: list[Subject]) -> None:
    first, again, other = (make_case(seed, 17, subjects)[0] for seed in (5, 5, 6))
    assert first == again
    assert (first.path, first.content) != (other.path, other.content)


def test_a_case_leaves_the_table_as_it_was(subjects: list[Subject]) -> None:
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for s in subjects for p in map(s.folder.joinpath, s.files())}
    for number in range(50):
        assert run_case(*make_case(1, number, subjects)) is None
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in before}


def test_foreign_errors_and_refusals_without_a_file_are_findings(
    subjects: list[Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _ = make_case(1, 0, subjects)
    assert _judge_refusal(case, MalformedTableError("something is wrong")) is not None
    assert _judge_refusal(case, MalformedTableError(f"{case.subject.name}: something is wrong")) is None
    out_of_memory = MalformedTableError(f"{case.subject.name}: too much")
    out_of_memory.__cause__ = MemoryError()
    assert "memory" in str(_judge_refusal(case, out_of_memory))
    monkeypatch.setattr("nevermore.scan_core.open_table", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in str(run_case(case, Random(1)))


def test_a_process_that_dies_is_a_finding_and_the_campaign_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, pathlib, sys\n"
        "seed, start, stop, folder = sys.argv[1:]\n"
        "for number in range(int(start), int(stop)):\n"
        "    pathlib.Path(folder, 'progress').write_text(str(number))\n"
        "    if number == 3: os.abort()\n"
        "    if number == 5: print(json.dumps({'number': 5, 'what': 'a foreign error'}))\n"
    )
    found = list(run_campaign(9, 0, 8, worker=[str(script)]))
    assert [(f.seed, f.number) for f in found] == [(9, 3), (9, 5)]
    assert "--seed 9 --case 3" in str(found[0])
    assert json.dumps("a foreign error").strip('"') in str(found[1])


def test_a_campaign_is_given_up_if_every_process_ends(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import os; os.abort()\n")
    found = list(run_campaign(9, 0, 1_000, worker=[str(script)]))
    assert len(found) == MAX_ENDED + 1
    assert "given up after 20 processes" in str(found[-1])


def test_memory_of_the_process_that_starts_a_program_does_not_count() -> None:
    child = f"{PEAK_BYTES}\nprint(peak_bytes())"
    parent = f"import subprocess, sys; full = b'x' * 300_000_000; subprocess.run([sys.executable, '-c', {child!r}])"
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, timeout=300, check=True)
    assert 0 < int(done.stdout) < 200_000_000
