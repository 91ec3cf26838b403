"""Python environments as machines of a cluster have them: without our code, with or without the libraries it needs."""

import sys
import venv
from collections.abc import Collection
from pathlib import Path

from nevermore.scan_core.spark.package import required_distributions


def bare_python(folder: Path) -> Path:
    """The folder of a `python3` with its standard library alone."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return folder / "bin"


def python_with_requirements(folder: Path, without: Collection[str] = ()) -> Path:
    """The folder of a `python3` that knows the libraries which the package asks for, and nothing else."""
    programs = bare_python(folder)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for one in required_distributions():
        if one.metadata["Name"].lower() in without:
            continue
        for top in {file.parts[0] for file in one.files or () if ".." not in file.parts}:
            place = site / top
            if not place.exists() and top != "__pycache__":
                place.symlink_to(Path(str(one.locate_file(top))))
    return programs
