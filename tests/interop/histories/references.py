"""Steps that move branches and tags, expire snapshots or only rewrite metadata."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interop.histories.history import History


def branch_or_tag(history: "History") -> str:
    """A new branch or tag at a random snapshot."""
    table = history.table.table
    ids = [s.snapshotId() for s in table.snapshots()]
    chosen, name = history.rng.choice(ids), f"ref{len(table.refs())}"
    if history.one_in(3):
        table.manageSnapshots().createTag(name, chosen).commit()
        return f"tag {name}"
    table.manageSnapshots().createBranch(name, chosen).commit()
    return f"branch {name}"


def move_main(history: "History") -> str:
    """Main goes back, forward to a branch, or picks a commit from elsewhere."""
    table, rng = history.table.table, history.rng
    ids = [s.snapshotId() for s in table.snapshots()]
    branches = sorted(name for name in table.refs() if name != "main")
    match rng.choice(["rollback", "set", "forward", "pick"]):
        case "rollback":
            table.manageSnapshots().rollbackTo(rng.choice(ids)).commit()
            return "rollback"
        case "set":
            table.manageSnapshots().setCurrentSnapshot(rng.choice(ids)).commit()
            return "set current snapshot"
        case "forward" if branches:
            name = rng.choice(branches)
            table.manageSnapshots().fastForwardBranch("main", name).commit()
            return f"forward to {name}"
        case _:
            table.manageSnapshots().cherrypick(rng.choice(ids)).commit()
            return "cherry-pick"


def expire(history: "History") -> str:
    """A snapshot goes, and the files that only it had."""
    table = history.table.table
    ids = [s.snapshotId() for s in table.snapshots()]
    table.expireSnapshots().expireSnapshotId(history.rng.choice(ids)).cleanExpiredFiles(True).commit()
    return "expire"


def rewrite_manifests(history: "History") -> str:
    """All manifests of data become one."""
    same = history.java.jvm.com.google.common.base.Functions.constant("all")
    history.table.table.rewriteManifests().clusterBy(same).commit()
    return "rewrite manifests"
