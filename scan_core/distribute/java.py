"""Whether this machine has the Java that Spark needs, told in one sentence before Spark tells it in fifty lines."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from scan_core.errors import MissingRuntimeError

MINIMUM_JAVA = 17
_HINT = (
    f"Spark needs Java {MINIMUM_JAVA} or newer: install it (Debian and Ubuntu: `apt-get install openjdk-17-jre-headless`,"
    " macOS: `brew install openjdk@17`) and set JAVA_HOME if it is not on the PATH"
)


def require_java() -> Path:
    """The `java` that Spark will start.

    Raises:
        MissingRuntimeError: none is found, it does not start, or it is too old.
    """
    java = _find_java()
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - JAVA_HOME and PATH are the user's
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingRuntimeError(f"{java} does not start ({error}); {_HINT}") from error
    version = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if version is None:
        raise MissingRuntimeError(f"{java} tells no version; {_HINT}")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])
    if major < MINIMUM_JAVA:
        raise MissingRuntimeError(f"{java} is Java {major}; {_HINT}")
    return java


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        return Path(home) / "bin" / "java"
    found = shutil.which("java")
    if found is None:
        raise MissingRuntimeError(f"no Java found; {_HINT}")
    return Path(found)
