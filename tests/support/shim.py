"""The other side of tests/support/fault.c: the file that says which calls count and what happens at the n-th."""
import contextlib
import dataclasses
import errno
import mmap
import os
import pathlib
import struct
import subprocess
import tempfile

import pytest

from harness import ROOT

LIBRARY = ROOT / os.environ.get("BUILD", "build") / "tests/fault.so"
ALLOC, OPEN, READ, WRITE, CHANGE, NET, THREAD = (1 << i for i in range(7))
SHORT, KILL_BEFORE, KILL_AFTER, TORN, STOP_AFTER = -1, -2, -3, -4, -5
ACTIONS = {SHORT: "short", KILL_BEFORE: "killed before", KILL_AFTER: "killed after", TORN: "torn", STOP_AFTER: "stopped after"}
CONTROL = struct.Struct("<IiQIIQI28s64s")  # struct control


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens at the n-th call of these classes; stays: and at all behind it."""
    classes: int
    action: int = 0  # an errno, or one of the above
    at: int = 0
    stays: bool = False
    named: str = ""  # only changes that give a file this name count

    def __str__(self):
        what = ACTIONS.get(self.action) or errno.errorcode.get(self.action, "counted")
        return f"{what} at call {self.at}{' and all behind it' if self.stays else ''}"


@dataclasses.dataclass(frozen=True)
class Call:
    """A line of the log. stack: the same for calls by the same way through llmq."""
    n: int
    name: str
    stack: str
    result: int
    inode: int
    path: str
    to: str


class Shim:
    """A control file in `folder`; env() goes to the process."""

    def __init__(self, folder):
        if "ASAN_OPTIONS" in os.environ:
            pytest.skip("the library of faults takes the place of AddressSanitizer's memory")
        if not LIBRARY.exists():  # else the system goes on without it, and no fault comes
            pytest.fail(f"{LIBRARY} is not there: run make {os.path.relpath(LIBRARY, ROOT)} first")
        self.path = pathlib.Path(folder) / "fault"
        self.path.write_bytes(bytes(CONTROL.size))
        with open(self.path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), CONTROL.size)

    def env(self):
        return {**os.environ, "LD_PRELOAD": str(LIBRARY), "LLMQ_FAULT": str(self.path),
                "OPENBLAS_NUM_THREADS": "1"}

    def set(self, fault, traced=False):
        """From now on, counting anew."""
        new = CONTROL.pack(0, fault.action, fault.at, fault.stays, traced, 0, 0, b"", fault.named.encode())
        self.map[:CONTROL.size] = new
        self.map[:4] = struct.pack("<I", fault.classes)

    def off(self):
        self.map[:4] = bytes(4)

    @property
    def count(self):
        return CONTROL.unpack(self.map[:CONTROL.size])[5]

    @property
    def hit(self):
        """The call that the fault came to, or ''."""
        return CONTROL.unpack(self.map[:CONTROL.size])[7].rstrip(b"\0").decode()

    def log(self):
        out = []
        for line in self.lines():
            if line[0] == "#":
                continue
            n, name, stack, result, inode, path, to = line.split("\t")
            out.append(Call(int(n), name, stack, int(result), int(inode), path, to))
        return sorted(out, key=lambda c: c.n)

    def lines(self):
        return self.path.with_name("fault.log").read_text().splitlines()

    def way(self, program):
        """How llmq came to the call that was hit, as functions and lines, where addr2line is there."""
        hit = next((x.split("\t")[1:] for x in self.lines() if x[0] == "#"), [])
        try:
            found = subprocess.run(["addr2line", "-fsi", "-e", program, *hit[:8]], capture_output=True, text=True)
        except FileNotFoundError:
            return " < ".join(hit)
        words = found.stdout.split()
        return " < ".join(f"{f} ({at})" for f, at in zip(words[::2], words[1::2]))

    def close(self):
        self.map.close()


@contextlib.contextmanager
def stopped(llmq, where, *args, **more):
    """A run of llmq that has stopped itself: `where` is a Fault, or the name that it has just given a
    file. SIGCONT lets it go on; it is killed at the end."""
    fault = where if isinstance(where, Fault) else Fault(CHANGE, STOP_AFTER, 1, named=where)
    with tempfile.TemporaryDirectory() as folder:
        shim = Shim(folder)
        shim.set(fault)
        p = llmq.start(*args, env=shim.env(), **more)
        try:
            how = os.waitid(os.P_PID, p.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT).si_code
            assert how == os.CLD_STOPPED, f"it ended before {fault}"
            shim.off()
            yield p
        finally:
            p.kill()
            p.wait()
            shim.close()
