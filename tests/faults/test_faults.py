"""Every command with its n-th allocation, open, read, write, change of a name or thread failing: it ends
with a line that says why, or does without; nothing else changes. n is the first call of each way through
the program that leads to one; with LLMQ_FAULTS=all, else a sample, in turns: once, and from there on."""
import errno

import pytest

from jobs import EXHAUSTIVE, JOBS, first_of_each, walk
from shim import ALLOC, CHANGE, OPEN, READ, SHORT, THREAD, WRITE, Fault

# classes, how they fail, of the sample one in
KINDS = [(ALLOC, (errno.ENOMEM,), 100),
         (OPEN, (errno.EMFILE,), 7),
         (READ, (errno.EIO, errno.EINTR, SHORT), 11),
         (WRITE, (errno.ENOSPC, errno.EINTR, SHORT), 7),
         (CHANGE, (errno.EIO,), 5),
         (THREAD, (errno.EAGAIN,), 1)]


def faults_of(job, llmq):
    """Each way once; an error that lasts too."""
    for classes, hows, sample in KINDS:
        ways = first_of_each(job.calls(llmq, classes))
        all_of = [Fault(classes, how, n, stays) for n in ways for how in hows for stays in (False, True)
                  if not stays or how not in (errno.EINTR, SHORT)]
        yield from all_of if EXHAUSTIVE else all_of[::sample]


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda j: j.name.replace(" ", "-"))
def test_any_call_that_fails_ends_in_one_clear_line_or_does_no_harm(llmq, job):
    faults = list(faults_of(job, llmq))
    bad = walk(job, llmq, faults)
    print(f"{job.name}: {len(faults)} faults")
    assert not bad, f"{len(bad)} of {len(faults)}:\n" + "\n".join(bad)
