"""What the tests of tests/faults and tests/soak/test_kills.py do to llmq, and what must hold after it.

A job is a command in a folder of its own: `files` are put there before, `argv` runs in it, and a run
without a fault makes of the folder what `after` holds. Whatever is done to a run, then
- a run that says 0 left exactly that;
- one that fails says so in one line, and what had a name before has the old or the new whole content;
- nothing else lies there but what the next run goes on with (`state`), and that run, without a fault,
  leaves exactly `after`."""
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from harness import LIMIT, ROOT
from shim import KILL_AFTER, KILL_BEFORE, TORN, Fault, Shim

ARCH = ROOT / "tests/golden/arch/arcee"
LLAMA = ROOT / "tests/golden/arch/llama2-mha"  # what GGUF has a name for
KILLS = (KILL_BEFORE, KILL_AFTER, TORN)
EXHAUSTIVE = os.environ.get("LLMQ_FAULTS") == "all"  # make check-hard; else a sample


def read_tree(folder):
    """relative name -> bytes; a folder that is empty: None."""
    out = {}
    for base, subs, names in os.walk(folder):
        at = pathlib.Path(base)
        out.update({str((at / n).relative_to(folder)): (at / n).read_bytes() for n in names})
        if not subs and not names and at != folder:
            out[str(at.relative_to(folder))] = None
    return out


def write_tree(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(data)


def same(data):
    return data


def same_answers(data):
    """Answers without what tells one run from another."""
    return data and re.sub(rb'"(created":\d+|id":"cmpl-\w+")', b"", data)


class Job:
    def __init__(self, name, argv, files=None, out="out", state=(), content=same, make=None):
        self.name, self.argv, self.content, self.out = name, argv, content, out
        self.state = state  # names that a run may leave for the next, with all in them
        self.given, self.make = files or {}, make
        self.after = None

    def set_up(self, llmq, folder):
        for argv in self.make or ():
            subprocess.run([llmq.path, *argv], cwd=folder, check=True, capture_output=True)

    def place(self, folder):
        write_tree(folder, self.files)

    def command(self, llmq):
        return [llmq.path, *self.argv]

    def prepare(self, llmq):
        """Runs it once without a fault: the truth of `after`."""
        if self.after is not None:
            return self
        self.files = {n: (p.read_bytes() if isinstance(p, pathlib.Path) else p) for n, p in self.given.items()}
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d)
            write_tree(folder, self.files)
            self.set_up(llmq, folder)
            self.files, self.before = read_tree(folder), self.tree(folder)
            p = subprocess.run(self.command(llmq), cwd=d, capture_output=True, text=True)
            assert p.returncode == 0, p.stderr
            self.stdout, self.after = p.stdout, self.tree(folder)
            self.makes = self.after != self.before
        return self

    @property
    def is_folder(self):
        return self.out not in self.after

    def is_state(self, name):
        return any(name == s or name.startswith(s + "/") for s in self.state)

    def tree(self, folder):
        return {n: self.content(b) for n, b in read_tree(folder).items()}

    def is_spare(self, name):
        """What the next run removes, when this one could not."""
        own = (f"{self.out}.tmp/", f"{self.out}.tmp-")
        return self.is_state(name) or name in (f"{self.out}.tmp", self.mark) or name.startswith(own)

    @property
    def mark(self):
        """Of a folder that has taken its name and whose predecessor is not yet gone; it says so, and is no file of it."""
        return f"{self.out}/.llmq-begun"

    def wrong(self, llmq, folder, p, shim, fault):
        """What must not be after the run p, or ''. Runs the command again where that must mend it."""
        said = p.stderr.strip().splitlines()
        before, after, tree = self.before, self.after, self.tree(folder)
        killed = p.returncode == -9 and shim.hit
        if p.returncode < 0 and not killed:
            return f"ended by signal {-p.returncode}"
        if p.returncode == 0:
            spare = {n for n in tree if n not in after and self.is_spare(n)}
            if {n: b for n, b in tree.items() if n not in spare} != after:
                return "exit 0, but " + self.difference(tree, after)
            if p.stdout != self.stdout and not self.makes:
                return "exit 0, but another stdout"
            return self.next_run(llmq, folder, after) if spare else ""
        if not killed and not (said and said[-1].startswith("llmq: ") and len(said[-1]) > 12):
            return f"exit {p.returncode} without a line that says why"
        if not killed and sum(x.startswith("llmq: ") for x in said) != 1:
            return f"{len(said)} lines of error"
        bad = self.half(tree, before, after)
        could_not = killed or fault.stays or shim.hit in ("unlink", "unlinkat", "rmdir", "opendir")
        left = [n for n in tree if n not in before and n not in after and not
                (self.is_spare(n) if could_not else self.is_state(n))]
        if bad or left:
            return bad or f"exit {p.returncode}, and {left} stay"
        return self.next_run(llmq, folder, after)

    def next_run(self, llmq, folder, after):
        again = subprocess.run([llmq.path, *self.argv], cwd=folder, capture_output=True, text=True)
        if again.returncode != 0:
            return f"the next run ends with {again.returncode}: {again.stderr[-300:]}"
        tree = self.tree(folder)
        return "" if tree == after else "after the next run " + self.difference(tree, after)

    def half(self, tree, before, after):
        """What has the final name must be the old or the new, whole."""
        def own(t):
            return {n: b for n, b in t.items() if (n == self.out or n.startswith(self.out + "/")) and n != self.mark}
        now = own(tree)
        if now == own(before) or now == own(after):
            return ""
        return f"{self.out} is neither the old nor the new: " + self.difference(now, own(after))

    @staticmethod
    def bytes_apart(a, b):
        if not isinstance(a, bytes) or not isinstance(b, bytes):
            return "otherwise"
        at = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
        first = at[0] if at else min(len(a), len(b))
        return f"{len(a)} bytes for {len(b)}, {len(at)} others, from {first} on: {a[first:first + 60]!r} for {b[first:first + 60]!r}"

    @staticmethod
    def difference(got, want):
        return "; ".join([f"{n} missing" for n in sorted(set(want) - set(got))] +
                         [f"{n} left over" for n in sorted(set(got) - set(want))] +
                         [f"{n} differs ({Job.bytes_apart(got[n], want[n])})"
                          for n in sorted(set(got) & set(want)) if got[n] != want[n]])

    def run(self, llmq, fault, traced=False):
        """One run with the fault: (what is wrong, the finished process, the call hit, the log)."""
        with tempfile.TemporaryDirectory() as d, tempfile.TemporaryDirectory() as c:
            folder = pathlib.Path(d)
            self.place(folder)
            shim = Shim(c)
            shim.set(fault, traced)
            try:
                p = subprocess.run([llmq.path, *self.argv], cwd=folder, env=shim.env(), capture_output=True,
                                   text=True, errors="replace", timeout=LIMIT)
            except subprocess.TimeoutExpired:
                return "hangs", None, shim.hit, []
            wrong = self.wrong(llmq, folder, p, shim, fault)
            log = shim.log() if traced else []
            hit = shim.hit + (f", {shim.way(llmq.path)}," if wrong else "")
            shim.close()
            return wrong, p, hit, log

    def calls(self, llmq, classes):
        """The calls of a run without a fault."""
        wrong, p, _, log = self.prepare(llmq).run(llmq, Fault(classes), traced=True)
        assert p.returncode == 0 and not wrong, (wrong, p.stderr)
        return log


def first_of_each(calls):
    """One call of each way through the program that leads to one."""
    seen = collections.OrderedDict()
    for c in calls:
        seen.setdefault((c.name, c.stack), c.n)
    return list(seen.values())


def walk(job, llmq, faults):
    """Runs all; a list of what went wrong."""
    def one(f):
        wrong, p, hit, _ = job.run(llmq, f)
        return f"{job.name}: {hit or 'no call'} {f}: {wrong}; stderr: {p.stderr[-400:] if p else ''}" if wrong else None
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [x for x in pool.map(one, faults) if x]


def model(at, folder=ARCH):
    """A model's files under `at`."""
    return {f"{at}/{p.name}": p for p in folder.iterdir() if p.name != "expected.safetensors"}


def requests(n=4):
    line = '{"custom_id":"r%d","method":"POST","url":"/v1/completions","body":' \
           '{"model":"m","prompt":[%d,5,9,30],"max_tokens":4,"temperature":0}}\n'
    return "".join(line % (i, i + 1) for i in range(n)).encode()


IDS = " ".join(str(i % 60 + 2) for i in range(128)).encode()
ONE = ("--threads", "1")
GPTQ = ("quantize", "m", "-o", "out", "--method", "gptq", "--calib", "c.ids", "--calib-len", "32",
        "--calib-samples", "2", *ONE)
PACK = ("convert", "m", "-o", "q.llmq", "--to", "llmq")

JOBS = {j.name: j for j in [
    Job("inspect", ("inspect", "m"), model("m")),
    Job("rtn", ("quantize", "m", "-o", "out", "--method", "rtn", *ONE), model("m"), state=("out.resume",)),
    Job("gptq", GPTQ, {**model("m"), "c.ids": IDS}, state=("out.resume",)),
    Job("gptq over an old file", GPTQ, {**model("m"), "c.ids": IDS, "out": b"LLMQ, an old one"}, state=("out.resume",)),
    Job("to llmq", ("convert", "m", "-o", "out", "--to", "llmq"), model("m")),
    Job("to a folder", ("convert", "m", "-o", "out", "--to", "safetensors"), model("m")),
    Job("to gptq over a folder", ("convert", "m", "-o", "out", "--to", "gptq", "--allow-requantize"),
        model("m"), make=[("convert", "m", "-o", "out", "--to", "safetensors")]),
    Job("experts to mlx", ("convert", "m", "-o", "out", "--to", "mlx"), model("m", ROOT / "tests/golden/mlx/gpt-oss-mxfp4-q8")),
    Job("to gguf", ("convert", "m", "-o", "out", "--to", "gguf"), model("m", LLAMA)),
    Job("from gguf", ("convert", "m.gguf", "-o", "out", "--to", "llmq"), model("m", LLAMA),
        make=[("convert", "m", "-o", "m.gguf", "--to", "gguf")]),
    Job("llmq back to a folder", ("convert", "q.llmq", "-o", "out", "--to", "safetensors"), model("m"), make=[PACK]),
    Job("batch", ("batch", "m", "in", "out", "--served-model-name", "m", *ONE), {**model("m"), "in": requests()},
        state=("out.resume", "out.resume.json"), content=same_answers),
    Job("publish", ("publish", "m", "dir:out"), model("m")),
    Job("publish over a folder", ("publish", "m", "dir:out"), model("m"),
        make=[("publish", "m", "dir:out"), ("convert", "m", "-o", "q", "--to", "safetensors")]),
    Job("publish a card and templates", ("publish", "m", "dir:out"), {
        **model("m"), "m/README.md": b"---\nlicense: mit\nlanguage:\n- en\n---\n# A model\n",
        "m/chat_template.jinja": b"{{ messages[0].content }}", "m/additional_chat_templates/rag.jinja": b"{{ 1 }}"}),
    Job("verify", ("verify", "m"), {**model("m"), "m/generation_config.json": b'{"temperature": 0.5}'}),
    Job("pull", ("pull", "dir:p", "-o", "out"), model("m"), state=("out.resume",),
        make=[("publish", "m", "dir:p")]),
]}
