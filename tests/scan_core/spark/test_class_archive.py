"""Spark starts from the classes that an earlier session kept, and without them wherever they cannot be used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nevermore.scan_core.spark import session

SCRIPT = """
import sys
from pathlib import Path
from pyspark import SparkContext
from nevermore.scan_core.spark import spark_session

spark = spark_session(master="local[1]", config=dict(p.split("=", 1) for p in sys.argv[1:]))
java = SparkContext._gateway.proc.pid
print(spark.range(3).count(), "spark-classes" in Path(f"/proc/{java}/maps").read_text())
"""


def archives(home: Path) -> list[Path]:
    return sorted((home / "nevermore" / "spark-classes").glob("*"))


def options(java: str = "17", given: str = "") -> str:
    return session._class_archive(java, given)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(session.SparkContext, "_gateway", None)
    return home


def test_an_archive_is_used_by_the_java_and_spark_that_wrote_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Path(options().split("-XX:ArchiveClassesAtExit=")[1].split()[0])
    assert written.parent == home / "nevermore" / "spark-classes"
    written.write_bytes(b"\0\0\0\0 not finished")
    assert "ArchiveClassesAtExit" in options()
    written.write_bytes(b"\xa8\xba\x0b\xf0 finished")
    assert f"-XX:SharedArchiveFile={written} " in options()
    assert "ArchiveClassesAtExit" in options(java="21")
    monkeypatch.setattr("pyspark.__version__", "9.9")
    assert "ArchiveClassesAtExit" in options()


@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=/x.jsa", "-XX:ArchiveClassesAtExit=/x.jsa"])
def test_what_a_user_says_of_archives_holds(home: Path, given: str) -> None:
    assert options(given=f"-Xmx1g {given}") == ""
    assert not archives(home)


@pytest.mark.parametrize("name", ["a b", "a:b", "a'b", 'a"b', "a\\b", "a,b"])
def test_a_path_that_would_end_the_option_is_not_given(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    assert options() == ""


def test_a_folder_that_others_may_write_to_is_not_used(home: Path) -> None:
    (home / "nevermore").mkdir(mode=0o700)
    (home / "nevermore" / "spark-classes").mkdir()
    (home / "nevermore" / "spark-classes").chmod(0o777)
    assert options() == ""


def test_a_link_in_place_of_an_archive_is_not_followed(home: Path, tmp_path: Path) -> None:
    written = Path(options().split("-XX:ArchiveClassesAtExit=")[1].split()[0])
    (tmp_path / "other").write_bytes(b"other")
    written.symlink_to(tmp_path / "other")
    assert options() == ""


def test_the_archives_used_last_are_kept(home: Path) -> None:
    options()
    folder = home / "nevermore" / "spark-classes"
    for number in range(5):
        (folder / f"{number}.jsa").write_bytes(b"archive")
        os.utime(folder / f"{number}.jsa", (number, number))
    options()
    assert [path.name for path in archives(home)] == ["2.jsa", "3.jsa", "4.jsa"]


def counted(*config: str, cwd: Path | None = None) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *config]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True, env=environment, cwd=cwd)
    assert "[warning]" not in done.stdout + done.stderr
    return done.stdout.splitlines()[-1].split()  # a Java that dies writes there, too


@pytest.mark.spark
@pytest.mark.slow
def test_the_second_session_starts_from_the_classes_of_the_first(home: Path) -> None:
    assert counted() == ["3", "False"]
    (archive,) = archives(home)
    assert counted() == ["3", "True"]
    assert archives(home) == [archive]
    assert counted("spark.driver.extraJavaOptions=-Xshare:off") == ["3", "False"]
    content = archive.read_bytes()
    archive.chmod(0o600)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    for damaged in (bytes(flipped), b"\xa8\xba\x0b\xf0" + b"x" * 10_000):
        archive.write_bytes(damaged)
        assert counted() == ["3", "False"]
    archive.write_bytes(content[: len(content) // 2])  # Java dies of it
    assert counted(cwd=home) == ["3", "False"]
    assert not archives(home)
