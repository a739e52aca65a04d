"""A hub of models in memory, as much of huggingface.co's interface as `pull` and huggingface_hub use, with
faults to order. Large files are on a second host, which the first redirects to."""
import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors", ".gguf", ".llmq", ".bin")


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry_of(name, data):
    entry = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": name}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        entry["oid"] = git_sha1(b"pointer" + data[:8])
    return entry


class Repo:
    def __init__(self, files, private=False, gated=False):
        self.private, self.gated = private, gated
        self.commits, self.refs = {}, {}
        self.commit(files)

    def commit(self, files, ref="main"):
        """Another commit of these files, which `ref` then names."""
        sha = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[ref] = sha
        return sha

    @property
    def main(self):
        return self.refs["main"]


class Hub:
    """fault(handler) is called before each request; True: it has answered, or cut the connection."""

    def __init__(self, token="hf_right", page=1000):
        self.repos, self.token, self.page = {}, token, page
        self.log = []  # (host, method, path, headers)
        self.sent = 0  # bytes of bodies
        self.fault = lambda handler: False
        self.lie = lambda path, data: data  # what a file's bytes are when they are sent
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                self.host = self.server.name
                hub.log.append((self.host, self.command, self.path, dict(self.headers)))
                if not hub.fault(self):
                    (hub.answer if self.host == "hub" else hub.store)(self)

            do_GET = do_HEAD = do_POST = handle_any

            def reply(self, status, body=b"", **headers):
                self.send_response(status)
                for k, v in headers.items():
                    self.send_header(k.replace("_", "-"), str(v))
                if "Content_Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    hub.sent += len(body)
                    self.wfile.write(body)

            def reply_bytes(self, data, **headers):
                """The whole, or the range that is asked for."""
                m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if not m:
                    return self.reply(200, data, **headers)
                a, b = int(m[1]), min(int(m[2] or len(data) - 1), len(data) - 1)
                if a >= len(data):
                    return self.reply(416, Content_Range=f"bytes */{len(data)}")
                self.reply(206, data[a:b + 1], Content_Range=f"bytes {a}-{b}/{len(data)}", **headers)

            def cut(self, data=b"", length=None):
                """Some bytes of an answer, and the connection ends."""
                if length is not None:
                    self.send_response(200)
                    self.send_header("Content-Length", str(length))
                    self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()
                self.connection.shutdown(2)
                self.close_connection = True
                return True

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # the client went away, as some tests want it to

        self.servers = []
        for name, host in (("hub", "127.0.0.1"), ("store", "127.0.0.2")):
            server = Quiet((host, 0), Handler)
            server.name, server.url = name, f"http://{host}:{server.server_address[1]}"
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self.servers.append(server)
        self.url, self.store_url = (s.url for s in self.servers)

    def close(self):
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def add(self, name, files, **how):
        self.repos[name] = Repo(files, **how)
        return self.repos[name]

    def gets(self, what=""):
        """Paths of files that were asked for."""
        return [p for _, method, p, _ in self.log if method == "GET" and "/resolve/" in p and what in p]

    # ---- the first host ----
    def answer(self, h):
        url = urllib.parse.urlsplit(h.path)
        path = urllib.parse.unquote(url.path)
        m = (re.fullmatch(r"/(api/models)/(.+?)(?:/(revision|tree|paths-info)/(.+))?", path) or
             re.fullmatch(r"/()(.+?)/(resolve)/([^/]+/.+)", path))
        repo = m and self.repos.get(m[2])
        given = h.headers.get("Authorization")
        if given and given != f"Bearer {self.token}":
            return h.reply(401, X_Error_Message="Invalid credentials in Authorization header")
        if not repo or (repo.private and not given):
            return h.reply(404 if given else 401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        kind, rest = m[3] or "revision", (m[4] or "main").rstrip("/")
        ref, _, name = rest.partition("/") if kind == "resolve" else (rest, "", "")
        commit = repo.refs.get(ref, ref)
        if commit not in repo.commits:
            return h.reply(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {ref}")
        files = repo.commits[commit]
        if kind == "revision":
            doc = {"id": m[2], "sha": commit, "siblings": [{"rfilename": n} for n in files], "private": repo.private,
                   "gated": "manual" if repo.gated else False, "tags": [], "downloads": 0, "likes": 0}
            return h.reply(200, json.dumps(doc).encode(), Content_Type="application/json")
        if kind == "tree":
            return self.tree(h, files, urllib.parse.parse_qs(url.query))
        if kind == "paths-info":  # a mirror asks for it
            asked = h.rfile.read(int(h.headers["Content-Length"])).decode()
            paths = json.loads(asked)["paths"] if asked[0] == "{" else urllib.parse.parse_qs(asked)["paths"]
            return h.reply(200, json.dumps([entry_of(n, files[n]) for n in paths if n in files]).encode(),
                           Content_Type="application/json")
        if repo.gated and not (given and repo.gated == "granted"):
            return h.reply(403 if given else 401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        data = files.get(name)
        if data is None:
            return h.reply(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=commit)
        if not name.endswith(LARGE):
            return h.reply_bytes(self.lie(name, data), ETag=f'"{git_sha1(data)}"', X_Repo_Commit=commit)
        sha = hashlib.sha256(data).hexdigest()
        return h.reply(302, Location=f"{self.store_url}/{m[2]}/{commit}/{name}?signature=x", X_Repo_Commit=commit,
                       ETag=f'"{git_sha1(data)}"', X_Linked_Etag=f'"{sha}"', X_Linked_Size=len(data))

    def tree(self, h, files, query):
        entries, at = [], int(query.get("cursor", ["0"])[0])
        for folder in sorted({n.rsplit("/", 1)[0] for n in files if "/" in n}):
            entries.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
        entries += [entry_of(n, data) for n, data in sorted(files.items())]
        more = {}
        if at + self.page < len(entries):
            path = h.path.split("?")[0]
            more["Link"] = f'<{self.url}{path}?recursive=true&cursor={at + self.page}>; rel="next"'
        h.reply(200, json.dumps(entries[at:at + self.page]).encode(), Content_Type="application/json", **more)

    # ---- the second ----
    def store(self, h):
        path = urllib.parse.unquote(h.path.split("?")[0])
        for name, repo in self.repos.items():
            m = re.fullmatch(rf"/{re.escape(name)}/([0-9a-f]{{40}})/(.+)", path)
            if m:
                return h.reply_bytes(self.lie(m[2], repo.commits[m[1]][m[2]]))
        h.reply(404)
