"""The link between the machines of a job is cut: every rank ends with an error that says so, within the time that is
documented, and what is finished stays. Two network namespaces are the machines, so root and mpirun are needed.
Run by make check-hard."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from harness import LIMIT, ROOT, until
from ranks import LAUNCHERS, MPI

SECONDS = 8  # LLMQ_RANK_TIMEOUT
GPTQ = ["-m", "gptq", "--no-check", "--threads", "1", "--calib-samples", "48"]


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True)


class Machines:
    """Namespaces with a name of a host, addresses 10.99.0.1 and .2, and one link."""

    def __init__(self, folder):
        self.folder, self.names = folder, [f"llmq{os.getpid()}{x}" for x in "ab"]
        self.ends = [f"lq{os.getpid() % 100000}{x}" for x in "ab"]

    def __enter__(self):
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.ends[0], "netns", self.names[0], "type", "veth", "peer", "name", self.ends[1], "netns", self.names[1])
        for i, (name, end) in enumerate(zip(self.names, self.ends)):
            ip("-n", name, "addr", "add", f"10.99.0.{i + 1}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
        self.join()
        # What launchers call in place of ssh: options, the host, a command. The host's number is its address's last.
        self.shell = self.script("shell", 'while [ "${1#-}" != "$1" ]; do shift; done\ncase $1 in *.1) n=%s;; *) n=%s;; esac\nshift\n'
                                 'exec ip netns exec $n unshare --uts sh -c "hostname $n; $*"' % tuple(self.names))
        # A rank's messages are kept on its machine, since what the launcher would carry is cut off.
        self.rank = self.script("rank", f'exec "$@" 2>{self.folder}/err.${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}')
        return self

    def __exit__(self, *_):
        for name in self.names:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name)

    def script(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def join(self):
        for name, end in zip(self.names, self.ends):
            ip("-n", name, "link", "set", end, "up")
        for name, end in zip(self.names, self.ends):
            until(lambda: "state UP" in subprocess.run(["ip", "-n", name, "link", "show", end], capture_output=True, text=True).stdout)

    def cut(self):
        ip("-n", self.names[1], "link", "set", self.ends[1], "down")

    def start(self, launcher, llmq, *args):
        """Two ranks, one on each."""
        if "mpich" in launcher:
            how = ["-launcher", "ssh", "-launcher-exec", self.shell, "-n", "2", "-hosts", "10.99.0.1:1,10.99.0.2:1"]
        else:
            net = "10.99.0.0/24"
            how = ["-n", "2", "--host", "10.99.0.1,10.99.0.2", "-x", "LLMQ_RANK_TIMEOUT"]
            for k, v in {"plm_rsh_agent": self.shell, "btl": "tcp,self", "btl_tcp_if_include": net, "oob_tcp_if_include": net}.items():
                how += ["-mca", k, v]
        command = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", f'hostname {self.names[0]}; exec "$@"', "sh",
                   launcher, *how, self.rank, llmq.path, *args]
        env = {**os.environ, **MPI, "LLMQ_RANK_TIMEOUT": str(SECONDS), "UCX_TLS": "tcp,self"}
        with open(self.folder / "out", "w") as out:
            return subprocess.Popen([str(x) for x in command], stdout=out, stderr=out, cwd=ROOT, env=env)

    def said(self, rank):
        path = self.folder / f"err.{rank}"
        return path.read_text() if path.exists() else ""

    def ranks(self, llmq):
        """Processes of llmq that run on either."""
        found = []
        for name in self.names:
            for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split():
                try:
                    found += [int(pid)] if os.path.samefile(f"/proc/{pid}/exe", llmq.path) else []
                except OSError:
                    pass
        return found



@pytest.fixture
def machines(tmp_path):
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs root, ip and unshare")
    folder = tmp_path / "machines"
    folder.mkdir()
    try:
        with Machines(folder) as m:
            yield m
    except subprocess.CalledProcessError as e:
        if "netns" not in e.cmd or "add" not in e.cmd:
            raise
        pytest.skip(f"no network namespaces here: {e.stderr}")


def until_runs(what, p, machines):
    def runs():
        assert p.poll() is None, machines.said(0) + (machines.folder / "out").read_text()
        return what()
    until(runs, lambda: machines.said(0))


def lost(rank):
    return f"rank {rank} of 2 is lost: expected a sign of it within {SECONDS} s (LLMQ_RANK_TIMEOUT), found none"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_cut_link_ends_both_sides_and_the_run_goes_on_later(llmq, machines, tmp_path, launcher):
    out, model = tmp_path / "q", ROOT / "models/novels-6m"
    llmq("quantize", model, "-o", tmp_path / "one", *GPTQ)
    p = machines.start(launcher, llmq, "quantize", model, "-o", out, *GPTQ)
    until_runs(lambda: pathlib.Path(f"{out}.resume/part-00001.llmq").exists(), p, machines)
    machines.cut()
    until(lambda: not machines.ranks(llmq))
    assert lost(1) in machines.said(0) and f"rank 1 of 2: {lost(0)}" in machines.said(1), machines.said(0) + machines.said(1)
    p.kill()
    p.wait()
    assert not out.exists()
    r = llmq("quantize", model, "-o", out, *GPTQ, "--json")
    assert json.loads(r.stdout)["resumed_parts"] >= 2 and out.read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_a_cut_link_ends_a_server_and_its_requests(llmq, machines, launcher, busy):
    p = machines.start(launcher, llmq, "serve", ROOT / "models/novels-1m", "--threads", "1", "--port", "8000")
    until_runs(lambda: "\nready: " in machines.said(0), p, machines)
    body = json.dumps({"model": "novels-1m", "prompt": "It was", "max_tokens": 900, "ignore_eos": True, "stream": True, "n": 8})
    ask = subprocess.Popen(["ip", "netns", "exec", machines.names[0], "curl", "-sN", "http://127.0.0.1:8000/v1/completions", "-H", "Content-Type: application/json", "-d", body],
                           stdout=subprocess.PIPE, text=True) if busy else None
    if busy:
        assert ask.stdout.readline().startswith("data: ")
    else:
        time.sleep(1)
    machines.cut()
    until(lambda: not machines.ranks(llmq), lambda: machines.said(0))
    assert lost(1) in machines.said(0) and lost(0) in machines.said(1), machines.said(0) + machines.said(1)
    if busy:
        assert lost(1) in ask.communicate(timeout=LIMIT)[0]
    p.kill()
    p.wait()
