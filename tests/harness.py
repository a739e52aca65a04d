"""The real binary and a running server, for the tests that start them."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Llmq:
    """Runs ./llmq (or $LLMQ) at the root of the repository."""

    def __init__(self, path=None):
        self.path = str(path or os.environ.get("LLMQ", ROOT / "llmq"))

    def __call__(self, *args, code=0, timeout=300, **more):
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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`llmq serve` on a free port of the loopback; use as a context manager. `key` goes with every
    request of get and post."""

    def __init__(self, llmq, model, *args, env=None, log=None, key=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = {"Authorization": f"Bearer {key}"} if key else {}
        self.log = open(log, "w+") if log else None
        self.process = llmq.start(
            "serve", model, "--host", "127.0.0.1", "--port", self.port, *args,
            stdout=self.log or subprocess.DEVNULL, stderr=self.log or subprocess.DEVNULL,
            env={**os.environ, **(env or {})})

    def wait_ready(self, timeout=60):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}: {self.output()}")
            try:
                if self.get("/ready").status == 200:
                    return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        raise AssertionError(f"serve was not ready within {timeout} s: {self.output()}")

    def output(self):
        if not self.log:
            return ""
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def get(self, path, timeout=30, headers=None):
        """urllib's response; 4xx and 5xx come back too instead of being raised."""
        return self._open(urllib.request.Request(
            self.url + path, headers={**self.key, **(headers or {})}), timeout)

    def post(self, path, body, timeout=120, headers=None):
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

    def stop(self, sig=signal.SIGTERM, timeout=30):
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
        if self.log:
            self.log.close()
