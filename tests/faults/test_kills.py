"""SIGKILL before, after and in the middle of every call that changes a file: what has a name is the old
or the new whole, and the next run ends with the same bytes. And the order in which a power cut would
find things on the disk. Every call of every job with LLMQ_FAULTS=all; else every fifth kill."""
import os

import pytest

from jobs import EXHAUSTIVE, JOBS, KILLS, walk
from shim import CHANGE, TORN, WRITE, Fault

MAKES = [j for j in JOBS.values() if j.name not in ("inspect", "verify")]
DATA = ("write", "pwrite", "fwrite", "fflush")


def ids(job):
    return job.name.replace(" ", "-")


@pytest.mark.parametrize("job", MAKES, ids=ids)
def test_a_kill_at_any_change_of_a_file_leaves_the_old_or_the_new_and_the_next_run_mends_it(llmq, job):
    calls = job.calls(llmq, WRITE | CHANGE)
    faults = [Fault(WRITE | CHANGE, how, c.n) for c in calls for how in KILLS if how != TORN or c.name in DATA]
    if not EXHAUSTIVE:  # where names change, and a sample of the rest
        names = {c.n for c in calls if c.name in ("rename", "renameat2", "linkat")}
        faults = [f for i, f in enumerate(faults) if f.at in names and i % 2 or i % 7 == 0]
    bad = walk(job, llmq, faults)
    print(f"{job.name}: {len(calls)} calls, killed {len(faults)} times")
    assert not bad, f"{len(bad)} of {len(faults)}:\n" + "\n".join(bad)


class Disk:
    """What a power cut could lose: data and names that no fsync has followed."""

    def __init__(self):
        self.data, self.names = set(), set()  # inodes of files; paths of folders

    def see(self, c):
        folder = os.path.dirname(c.path)
        if c.name in DATA or c.name == "ftruncate":
            self.data |= {c.inode} - {0}  # 0: a pipe or terminal
        elif c.name == "fsync":
            self.data.discard(c.inode)
            self.names.discard(c.path)
        elif c.name in ("rename", "renameat2"):
            self.names = {c.to + n[len(c.path):] if n == c.path or n.startswith(c.path + "/") else n
                          for n in self.names} | {folder, os.path.dirname(c.to)}
        elif c.name in ("link", "linkat"):
            self.names.add(os.path.dirname(c.to))
        elif c.name in ("create", "mkdir", "unlink", "unlinkat", "rmdir"):
            self.names.add(folder)


@pytest.mark.parametrize("job", MAKES, ids=ids)
def test_data_is_on_the_disk_before_its_name_and_the_name_before_the_run_ends(llmq, job):
    """From the calls of a run: when something takes the final name, all in it has been synced; the
    folder that holds the name is synced before what the next run would need goes, and before the end."""
    disk, where, safe = Disk(), None, False
    for c in job.calls(llmq, WRITE | CHANGE):
        if c.result < 0:
            continue
        base = os.path.basename(c.to)
        if c.name in ("rename", "renameat2") and base == job.out:
            where, safe = os.path.dirname(c.to), False
            inside = {n for n in disk.names if n == c.path or n.startswith(c.path + "/")}
            assert not inside, f"names in {c.path} may be lost when it is renamed"
            late = disk.data if job.is_folder else disk.data & {c.inode}
            assert not late, f"{c.path} is renamed before its data is synced"
        removes = c.name in ("unlink", "unlinkat") and any(
            f"/{s}" in c.path for s in (*job.state, f"{job.out}.tmp/"))
        safe = safe or (c.name == "fsync" and c.path == where)
        assert safe or not (where and removes), f"{c.path} goes before the name {job.out} is on the disk"
        disk.see(c)
    assert safe, f"{job.out}: the name may be lost in a power cut"
