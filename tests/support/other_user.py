"""Another user of this machine, who runs a shell; and what must be as it was afterwards."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

OTHER = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a process as another user")


@dataclass(frozen=True)
class Machine:
    """A temporary directory that all users share, a victim with files of its own, and an attacker with some.

    Nothing keeps the victim from following links of the attacker: `shared` is not sticky, so that
    `fs.protected_symlinks` does not apply, whatever this machine has set.
    """

    folder: Path

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    @property
    def precious(self) -> Path:
        return self.folder / "precious"

    @property
    def evil(self) -> Path:
        return self.folder / "evil"

    @property
    def base(self) -> Path:
        """Where the victim's files go by default."""
        return self.shared / f"nevermore-{os.geteuid()}"

    def attack(self, script: str) -> None:
        """Run a shell as the other user, in the shared folder."""
        variables = {name: str(getattr(self, name)) for name in ("shared", "precious", "evil", "base")}
        environment = {"PATH": os.environ["PATH"], **variables}
        shell = ["/bin/sh", "-ec", script]
        user = {"user": OTHER, "group": OTHER, "extra_groups": []} if os.geteuid() == 0 else {}
        subprocess.run(shell, cwd=self.shared, env=environment, check=True, timeout=300, **user)  # type: ignore[call-overload]

    def check_unharmed(self) -> None:
        """The victim's files are what they were, and nothing of the victim's lies with the attacker."""
        files = {str(p.relative_to(self.precious)): p.read_text() for p in self.precious.rglob("*") if p.is_file()}
        assert files == {"lock": "own", "diary": "dear", "run/lock": "own", "run/notes": "more"}
        of_victim = [p for p in self.evil.rglob("*") if p.lstat().st_uid == os.geteuid() != OTHER]
        assert os.geteuid() != 0 or not of_victim


@contextmanager
def machine() -> Iterator[Machine]:
    """A machine in a folder that the other user can reach, as those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="nevermore-test-") as folder:
        Path(folder).chmod(0o755)
        yield _made(Machine(Path(folder)))


def _made(made: Machine) -> Machine:
    for path, mode in ((made.shared, 0o777), (made.precious, 0o755), (made.evil, 0o777)):
        path.mkdir()
        path.chmod(mode)
    (made.precious / "run").mkdir()
    for name, text in (("lock", "own"), ("diary", "dear"), ("run/lock", "own"), ("run/notes", "more")):
        (made.precious / name).write_text(text)
    return made
