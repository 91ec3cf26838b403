from pathlib import Path

import pytest

from nevermore.scan_core.model.errors import MissingRuntimeError
from nevermore.scan_core.spark.session import find_java


def _fake_java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize("version", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19'])
def test_a_new_enough_java_is_found_by_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java = _fake_java(tmp_path, f"echo '{version}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java()[0] == java


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'java version \"1.8.0_202\"' >&2", "is Java 8; Spark needs Java 17 or newer"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11"),
        ("exit 3", "does not start"),
        ("echo hello", "does not report its version"),
    ],
)
def test_an_unusable_java_is_told_in_one_sentence_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    _fake_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingRuntimeError, match=message) as caught:
        find_java()
    assert "apt-get install openjdk-17-jre-headless" in str(caught.value)


def test_no_java_at_all_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRuntimeError, match="no Java found"):
        find_java()


def test_java_is_asked_for_its_version_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    _fake_java(tmp_path, f"echo asked >> {asked}; echo 'openjdk version \"17.0.15\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == find_java()
    assert asked.read_text() == "asked\n"
