"""llmq as a client: at a terminal, and against a server of a few lines."""
import fcntl
import http.server
import json
import os
import pty
import select
import signal
import struct
import termios
import threading
import time

from harness import until


class Mock:
    """Streams five tokens: the first after `first` seconds, the others `between` apart; or `answer`, bytes
    of a body of type `kind`."""

    def __init__(self, first=0.0, between=0.0, answer=None, kind="text/event-stream"):
        self.bodies, self.arrived, self.ttft, self.itl = [], [], [], []
        mock = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.answer(200, {"data": [{"id": "mock"}]})

            def do_POST(self):
                start = time.monotonic()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    return self.answer(404, {"error": {"message": "no such path"}})
                mock.arrived.append(start)
                mock.bodies.append(body)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                if answer is not None:
                    return self.wfile.write(answer)
                sent = []
                for i in range(5):
                    time.sleep(between if i else first)
                    text = f"t{i} "
                    sent.append(time.monotonic())
                    self.event({"choices": [{"text": text, "delta": {"content": text}}]})
                mock.ttft.append(sent[0] - start)
                mock.itl += [b - a for a, b in zip(sent, sent[1:])]
                self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
                self.wfile.write(b"data: [DONE]\n\n")

            def event(self, body):
                self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
                self.wfile.flush()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Terminal:
    """llmq at a terminal of 80 columns and 24 lines; as a context manager it ends with it. env: of its
    environment; None: not there."""

    def __init__(self, llmq, *args, **env):
        self.seen, self.status, self.all = "", [], b""
        env = {**os.environ, "TERM": "xterm", **env}
        self.child, self.fd = pty.fork()
        if self.child == 0:
            os.execve(llmq.path, [llmq.path, *args], {k: v for k, v in env.items() if v is not None})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def poll(self):
        if select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # it has ended
                return
            self.all += data
            self.seen += data.decode(errors="replace")

    def read_until(self, text):
        """What came since the last call, up to this text."""
        def comes():
            self.poll()
            return text in self.seen
        until(comes, lambda: self.seen)
        got, found, self.seen = self.seen.partition(text)
        return got + found

    def type(self, data):
        os.write(self.fd, data)

    def ended(self):
        """Its exit status, in a list; empty: it still runs."""
        if not self.status:
            pid, code = os.waitpid(self.child, os.WNOHANG)
            self.status.extend([code] if pid else [])
        return self.status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.ended():
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
        os.close(self.fd)
