"""Files that attempts of tasks have left behind: a run removes its own, known by how their names begin.

An attempt that is killed cannot tidy up, and one that goes on after the job is over may even leave a file later: no
snapshot names it, and the collection of orphans finds it.
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


def remove_all(storage: Storage, folder: str, run: str) -> int:
    """Remove all files of `run` in a folder and those in it, for a run that failed; how many there were."""
    left = [path for path in storage.files_below(folder) if path.rpartition("/")[2].startswith(f"{run}-")]
    storage.remove(left)
    return len(left)
