"""The real binary and a running server, for the tests that start them; and waiting, which goes by
what must come and never by how long it may take."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

# Embedding and head as in the source: the layouts of other engines hold no codes there.
KEEP = ["--embed", "keep", "--lm-head", "keep"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SANITIZED = bool({"TSAN_OPTIONS", "ASAN_OPTIONS"} & set(os.environ))  # scripts/ci/tsan-server.sh, scripts/ci/asan-suites.sh
LIMIT = 400  # seconds without what must come: no machine is so busy


def until(what, say=lambda: ""):
    """Calls what() until it gives something true, and returns that; say() tells why it never did."""
    end = time.monotonic() + LIMIT
    while not (got := what()):
        assert time.monotonic() < end, say() or what
        time.sleep(0.01)
    return got


def with_template(folder, template):
    """The tiny model with another chat template (None: without one)."""
    shutil.copytree(ROOT / "models/novels-1m", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Llmq:
    """Runs ./llmq (or $LLMQ) at the root of the repository."""

    def __init__(self, path=None):
        self.path = str(path or os.environ.get("LLMQ", ROOT / "llmq"))

    def __call__(self, *args, code=0, timeout=LIMIT, **more):
        """Run to the end and check the exit code; returns the finished process."""
        p = subprocess.run([self.path, *map(str, args)], capture_output=True, text=True,
                           timeout=timeout, cwd=ROOT, **more)
        if code is not None:
            assert p.returncode == code, (
                f"llmq {' '.join(map(str, args))}: exit {p.returncode}, expected {code}\n"
                f"stdout: {p.stdout[-2000:]}\nstderr: {p.stderr[-2000:]}")
        return p

    def json(self, *args, **more):
        """Run with --json; stdout must be one document."""
        return json.loads(self(*args, "--json", **more).stdout)

    def start(self, *args, **more):
        """Start and return the Popen; the caller ends it."""
        return subprocess.Popen([self.path, *map(str, args)], cwd=ROOT, text=True, **more)

    def commands(self):
        """Names of the subcommands of this build."""
        lines = self("--help").stdout.splitlines()
        return [x.split()[0] for x in lines if x.startswith("  ") and len(x) > 15 and x[2] != " "]


def begun(folder, becomes, *names):
    """The list of a folder that a run which was killed was making."""
    (folder / ".llmq-begun").write_text(f"# Begun by llmq, to become: {becomes}\n\n" + "".join(f"\n{n}\n" for n in names))


class Server:
    """`llmq serve` on a port of the loopback that it chooses; use as a context manager. `key` goes
    with every request of get and post."""

    def __init__(self, llmq, model, *args, env=None, log=None, key=None):
        self.key = {"Authorization": f"Bearer {key}"} if key else {}
        self.log = open(log, "w+") if log else tempfile.NamedTemporaryFile("w+")
        host = [] if "--host" in args else ["--host", "127.0.0.1"]
        self.process = llmq.start(
            "serve", model, *host, "--port", 0, *args,
            stdout=self.log, stderr=self.log, env={**os.environ, **(env or {})})
        said = until(self.listens, self.output)
        self.url, self.port = said[1].replace("0.0.0.0", "127.0.0.1"), int(said[2])

    def listens(self):
        said = re.search(r"listening on (https?://\S+:(\d+)), ", self.output())
        assert said or self.process.poll() is None, f"serve ended with {self.process.returncode}: {self.output()}"
        return said

    def wait_ready(self):
        until(self.is_ready, self.output)
        until(lambda: "\nready: " in self.output(), self.output)  # it serves a moment before it says so
        return self

    def is_ready(self):
        assert self.process.poll() is None, f"serve ended with {self.process.returncode}: {self.output()}"
        try:
            return self.get("/ready").status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def output(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def get(self, path, timeout=LIMIT, headers=None):
        """urllib's response; 4xx and 5xx come back too instead of being raised."""
        return self._open(urllib.request.Request(
            self.url + path, headers={**self.key, **(headers or {})}), timeout)

    def post(self, path, body, timeout=LIMIT, headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._open(urllib.request.Request(
            self.url + path, data=data,
            headers={"Content-Type": "application/json", **self.key, **(headers or {})}), timeout)

    def post_json(self, path, body, status=200, **more):
        r = self.post(path, body, **more)
        data = r.read()
        assert r.status == status, f"{path}: {r.status}: {data[:500]!r}"
        return json.loads(data)

    @staticmethod
    def _open(request, timeout):
        try:
            return urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as e:
            return e

    def stop(self, sig=signal.SIGTERM, timeout=LIMIT):
        """Send the signal and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode

    def __enter__(self):
        return self.wait_ready()

    def __exit__(self, *_):
        self.stop()
        self.log.close()
