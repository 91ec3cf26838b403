"""The tests that pytest finds depend on nothing but the code; exit status 1 with the names that differ.

Parallel runs compare what their processes have collected, each at its own time. So two processes collect at once, with
another clock, hash seed, time zone, locale and working directory. Names are short, too: values in them are not.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_LENGTH = 500
SHIFTED = """
import time

_time = time.time
time.time = lambda: _time() + 40_000_000.5
"""


def collecting(folder: Path, plugins: str, environment: dict[str, str]) -> "subprocess.Popen[str]":
    """A process that collects in `folder`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--color=no"]
    command += [f"--rootdir={ROOT}", f"--config-file={ROOT}/pyproject.toml", "-p", plugins, str(ROOT / "tests")]
    command += ["-o", "addopts=--strict-markers --import-mode=importlib", "-o", f"pythonpath={ROOT}"]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80", **environment}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def names(process: "subprocess.Popen[str]") -> list[str]:
    """The names that it found."""
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(output[-4000:])
    return [line for line in output.splitlines() if "::" in line]


def main() -> int:
    """Compare; 1 if something differs, or if a name is too long."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shifted_clock.py").write_text(SHIFTED)
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))}
        usual = collecting(ROOT, "no:doctest", {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"})
        other = {"PYTHONHASHSEED": "2", "TZ": "Asia/Kolkata", "LC_ALL": "C", **paths}
        unusual = collecting(Path(folder), "shifted_clock", other)
        found, again = names(usual), names(unusual)
    differing = sorted(set(found) ^ set(again))
    long = [name for name in found if len(name) > MAX_LENGTH]
    for title, listed in (("found once only", differing), (f"longer than {MAX_LENGTH} characters", long)):
        print(f"{len(listed):6} tests {title} (at most 0)")
        print("".join(f"         {name[:400]}\n" for name in listed[:20]), end="")
    if found != again and not differing:
        print("         the order differs")
    return int(found != again or bool(long))


if __name__ == "__main__":
    sys.exit(main())
