"""Files that attempts of tasks have left behind: a run removes its own, known by how their names begin.

An attempt that is killed cannot tidy up, and one that goes on after the job is over may even leave a file later, which
no snapshot names.
"""

from collections.abc import Collection, Iterable

from pipelines.tables.storage import Storage


def remove_leftovers(storage: Storage, folders: Iterable[str], run: str, reported: Collection[str]) -> int:
    """Remove the files of `run` in `folders` that no report names; how many there were."""
    left = [
        path
        for folder in sorted(set(folders))
        for path in storage.files_in(folder)
        if path.rpartition("/")[2].startswith(f"{run}-") and path not in reported
    ]
    storage.remove(left)
    return len(left)


def remove_all(storage: Storage, folder: str, run: str, named: Collection[str] = ()) -> int:
    """Remove the files of `run` in a folder and those in it, but for `named` ones; how many there were."""
    kept = {path.rpartition("/")[2] for path in named}  # no two files of a run are called alike
    found = {path: path.rpartition("/")[2] for path in storage.files_below(folder)}
    left = [path for path, name in found.items() if name.startswith(f"{run}-") and name not in kept]
    storage.remove(left)
    return len(left)
