"""Several processes of llmq that share one job: over sockets, or started by an mpirun that is here."""
import os
import shutil
import subprocess
import tempfile

from harness import LIMIT, ROOT

# Open MPI refuses root, and more ranks than cores, unless it is told.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
LAUNCHERS = [x for x in ("mpirun.openmpi", "mpirun.mpich") if shutil.which(x)] or [x for x in ["mpirun"] if shutil.which(x)]


started = []  # that end_ranks ends


class Ended:
    """How ranks ended: their codes and what each said."""

    def __init__(self, processes):
        said = [p.communicate(timeout=LIMIT) for p in processes]
        self.codes = [p.returncode for p in processes]
        self.out, self.err = [s[0] for s in said], [s[1] for s in said]

    def __str__(self):
        return "\n".join(f"rank {i}: exit {c}\n{e[-1500:]}" for i, (c, e) in enumerate(zip(self.codes, self.err)))


def rank_env(rank, n, folder):
    return {"LLMQ_RANK": str(rank), "LLMQ_RANKS": str(n), "LLMQ_RANK_SOCKETS": f"{folder}/r"}


def start_rank(llmq, rank, n, folder, *args, **env):
    started.append(llmq.start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, **rank_env(rank, n, folder), **env}))
    return started[-1]


def end_ranks():
    """Those that a failed test left waiting for the others; a later run's ranks would find them."""
    while started:
        p = started.pop()
        p.kill()
        p.wait()


def by_sockets(llmq, n, *args, code=0, only=None, **env):
    """n ranks to their end; `only`: a dict of rank -> arguments of that rank alone."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [start_rank(llmq, i, n, folder, *args, *(only or {}).get(i, []), **env) for i in range(n)]
        r = Ended(processes)
    assert all((c == 0) == (code == 0) for c in r.codes), str(r)
    assert r.codes[0] == code, str(r)
    return r


def by_mpi(llmq, launcher, n, *args, code=0):
    p = subprocess.run([launcher, "-n", str(n), llmq.path, *map(str, args)], capture_output=True, text=True, timeout=LIMIT,
                       cwd=ROOT, env={**os.environ, **MPI})
    assert (p.returncode == 0) == (code == 0), f"{p.returncode}\n{p.stdout[-2000:]}\n{p.stderr[-2000:]}"
    return p
