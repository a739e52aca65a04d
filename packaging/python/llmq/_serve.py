"""`llmq serve` as a process of its own."""
import os
import re
import subprocess
import tempfile

from ._library import Error, program


class Server:
    """A server of OpenAI's API: `url` is its address. Use it as a context manager, or `stop` it."""

    def __init__(self, model, *args, wait=600, **options):
        """model: what `llmq serve` takes. options: the command's, host="0.0.0.0", port=8000 (a free one unless
        given), api_key="...", enable_x=True for a flag; args are put as they are."""
        self._log = tempfile.TemporaryFile()
        if options.get("port") is None:
            options["port"] = 0
        line = [program(), "serve", str(model), *map(str, args)]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            if value is None:
                continue
            if value is True:
                line.append(flag)
            elif value is False:
                line.append("--no-" + flag[2:])
            else:
                for v in value if isinstance(value, (list, tuple)) else [value]:
                    line += [flag, str(v)]
        self.process = subprocess.Popen(line, stdout=self._log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            self.url = self._ready(wait)
        except BaseException:
            self.stop()
            raise

    def log(self):
        """What it has said so far."""
        n = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), n, 0).decode(errors="replace")  # the process writes at the file's offset

    def _ready(self, seconds):
        for _ in range(int(seconds * 20)):
            found = re.search(r"^ready: .* on (https?://\S+?),", self.log(), re.M)
            if found:
                return found.group(1)
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            said = [x for x in self.log().splitlines() if x.startswith("llmq: serve: ")]
            raise Error(said[-1] if said else f"llmq: serve: exit {self.process.returncode}")
        raise Error(f"llmq serve: not ready after {seconds} s")

    def stop(self):
        """Ends it: requests that run are finished."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def serve(model, *args, **options):
    """`with llmq.serve("model.llmq") as s:` - s.url is the address of OpenAI's API (clients want s.url + "/v1")."""
    return Server(model, *args, **options)
