"""SIGKILL at moments drawn from a seed, again and again until the command comes through: what has a name
is the old or the new whole after each, and the end is the same bytes as without a kill. tests/faults kills
at every call instead; here are moments between calls, many kills in one job, and registries and git. Half
of the moments are drawn over the whole run, half over what is left of it once the final name is new.
Run by make check-hard. LLMQ_KILLS: of each command (default 200), half of them at least before the name is
new; LLMQ_SEED: that of another run, which is printed (pytest -s)."""
import collections
import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import time

import pytest

from harness import ROOT, until
from jobs import GPTQ, IDS, ONE, Job, model, read_tree, requests, same_answers, write_tree
from registry import Registry

KILLS = int(os.environ.get("LLMQ_KILLS", "200"))
SEED = int(os.environ.get("LLMQ_SEED", time.time_ns() % 10**9))
WATCH = 1e-4  # seconds between two looks for the new name
TINY = ROOT / "models/novels-1m"
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}


def inode(path):
    """Which file it is, and whether there is one."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


class ToName(Job):
    """named(): what is another once the final name is the new one's; cheap, since it is asked all the time."""

    def named(self, folder):
        return inode(folder / self.out)


class ToRegistry(ToName):
    """What the tag names counts as a file, `registry`; where ARTIFACT stands is its address."""

    def set_up(self, llmq, folder):
        self.registry = Registry()
        for argv in self.make:
            subprocess.run([llmq.path, *map(self.address, argv)], cwd=folder, check=True, capture_output=True)
        self.blobs, self.manifests = dict(self.registry.blobs), dict(self.registry.manifests)

    def place(self, folder):
        self.registry.blobs, self.registry.manifests = dict(self.blobs), dict(self.manifests)
        self.registry.uploads = {}
        write_tree(folder, self.files)

    def address(self, word):
        return word.replace("ARTIFACT", f"oci://{self.registry.host}/me/m:x")

    def command(self, llmq):
        return [llmq.path, *map(self.address, self.argv)]

    def tree(self, folder):
        return {**read_tree(folder), "registry": self.registry.manifests["x"]}

    def named(self, folder):
        return super().named(folder), self.registry.manifests["x"]


class ToGit(ToName):
    """What the branch holds counts as a file, `remote.git`."""

    def set_up(self, llmq, folder):
        subprocess.run(["git", "init", "-q", "--bare", "remote.git"], cwd=folder, check=True)
        super().set_up(llmq, folder)

    def tree(self, folder):
        ours = {n: b for n, b in read_tree(folder).items() if not n.startswith("remote.git/")}
        held = subprocess.run(["git", "-C", folder / "remote.git", "rev-parse", "main^{tree}"], check=True,
                              capture_output=True)
        return {**ours, "remote.git": held.stdout}

    def named(self, folder):
        return super().named(folder), inode(folder / "remote.git/refs/heads/main")


FIRST = ("publish", "m", "ARTIFACT", "--name", "first")
SOURCE = model("m", TINY)
OLD = ("convert", "m", "-o", "out", "--to", "safetensors")
JOBS = [
    ToName("quantize by rtn", ("quantize", "m", "-o", "out", "--method", "rtn", *ONE), SOURCE, state=("out.resume",)),
    ToName("quantize by gptq over an old file", GPTQ, {**SOURCE, "c.ids": IDS, "out": b"LLMQ, an old one"}, state=("out.resume",)),
    ToName("convert to llmq", ("convert", "m", "-o", "out", "--to", "llmq"), SOURCE),
    ToName("convert over a folder", ("convert", "m", "-o", "out", "--to", "gptq", "--allow-requantize"), SOURCE, make=[OLD]),
    ToName("convert to gguf", ("convert", "m", "-o", "out", "--to", "gguf"), SOURCE),
    ToName("batch", ("batch", "m", "in", "out", "--served-model-name", "m", *ONE), {**SOURCE, "in": requests(40)},
           state=("out.resume", "out.resume.json"), content=same_answers),
    ToName("publish to a folder over another", ("publish", "m", "dir:out"), SOURCE, make=[("publish", "m", "dir:out", "--name", "first")]),
    ToName("pull from a folder", ("pull", "dir:p", "-o", "out"), SOURCE, state=("out.resume",), make=[("publish", "m", "dir:p")]),
    ToRegistry("publish to a registry", ("publish", "m", "ARTIFACT", "--chunk-size", "100K"), SOURCE, out="registry",
               state=("m.resume-publish",), make=[FIRST]),
    ToRegistry("pull from a registry", ("pull", "ARTIFACT", "-o", "out"), SOURCE, state=("out.resume",), make=[FIRST]),
    ToGit("publish to git", ("publish", "m", "git:remote.git"), SOURCE, out="remote.git", state=("m.resume-publish-git",),
          make=[("publish", "m", "git:remote.git", "--name", "first")]),
    ToGit("pull from git", ("pull", "git:remote.git", "-o", "out"), SOURCE, state=("out.resume", "out.resume-git"),
          make=[("publish", "m", "git:remote.git")]),
]


@pytest.fixture(autouse=True)
def nobody(tmp_path, monkeypatch):
    """Nobody's name, nobody's settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def ended(group):
    """What it started has ended too."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def run(job, llmq, folder, after=None, at_name=False, whole_group=False):
    """A run that is killed after so many seconds, or so many after the name is new: (the exit status,
    seconds, those of them after the name was new, what it said). at_name watches for the name."""
    began = time.monotonic()
    old = job.named(folder)
    p = subprocess.Popen(job.command(llmq), cwd=folder, start_new_session=True, text=True, **QUIET)
    end = os.pidfd_open(p.pid)
    ended_by_itself = False
    while at_name and not ended_by_itself and job.named(folder) == old:
        ended_by_itself = bool(select.select([end], [], [], WATCH)[0])
    new = time.monotonic()
    if not ended_by_itself and not select.select([end], [], [], after)[0]:
        if whole_group:
            os.killpg(p.pid, signal.SIGKILL)
        p.kill()
    over = time.monotonic()
    os.close(end)
    said = p.communicate()[1]
    until(lambda: ended(p.pid), lambda: f"{job.name}: what it started goes on")
    return p.returncode, over - began, over - new, said


@pytest.mark.parametrize("job", JOBS, ids=lambda j: j.name.replace(" ", "-"))
def test_killed_at_random_moments_it_comes_to_the_same_bytes(llmq, tmp_path, job):
    if isinstance(job, ToGit) and not (shutil.which("git") and shutil.which("git-lfs")):
        pytest.skip("git and git-lfs are not both installed")
    draw = random.Random(f"{SEED} {job.name}")
    job.prepare(llmq)
    kills, rounds, changed = 0, 0, 0
    took, rest = collections.deque(maxlen=5), collections.deque(maxlen=5)
    say = lambda: f"{job.name}, LLMQ_SEED={SEED}, kill {kills} in round {rounds}"  # noqa: E731
    while kills < KILLS or kills - changed < KILLS // 2:
        folder = tmp_path / f"round{rounds}"
        rounds += 1
        job.place(folder)
        if len(took) < 3 or rounds % 8 == 0:  # how long it takes just now
            code, seconds, behind, said = run(job, llmq, folder, at_name=True)
            took.append(seconds)
            rest.append(behind)
        else:
            code, slower = -signal.SIGKILL, 1.1
        while code == -signal.SIGKILL:  # one run in ten comes through: some begin anew each time
            at_name, whole_group = draw.random() < 0.5, draw.random() < 0.5
            most = slower * statistics.median(rest if at_name else took)
            code, _, _, said = run(job, llmq, folder, draw.uniform(0, most), at_name, whole_group)
            slower *= 1.02  # where the machine has slowed down
            if code != -signal.SIGKILL:
                break
            kills += 1
            tree = job.tree(folder)
            bad = job.half(tree, job.before, job.after)
            changed += any(tree.get(n) == b != job.before.get(n) for n, b in job.after.items())
            left = [n for n in tree if n not in job.before and n not in job.after and not job.is_spare(n)]
            assert not bad and not left, f"{say()}: {bad or left}"
        assert code == 0, f"{say()}: exit {code}: {said}"
        tree = job.tree(folder)
        assert tree == job.after, f"{say()}: {job.difference(tree, job.after)}"
        shutil.rmtree(folder)
    print(f"\n{job.name}: {kills} kills in {rounds} rounds, {changed} of them with the new name there, seed {SEED}")
