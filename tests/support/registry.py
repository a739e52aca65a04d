"""A registry of OCI artifacts in memory (distribution specification 1.1, as much as `publish` and
`pull` use), with faults to order: for what a real registry never does."""
import base64
import hashlib
import json
import os
import re
import signal
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Registry:
    """fault(handler) is called before each request; True: it has answered, or cut the connection."""

    def __init__(self, auth=None, user="me", password="s3cret"):
        self.blobs, self.manifests, self.uploads = {}, {}, {}
        self.log = []  # (method, path, headers)
        self.auth, self.user, self.password = auth, user, password
        self.tokens = set()
        self.fault = lambda handler: False
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                registry.log.append((self.command, self.path, dict(self.headers)))
                self.consumed = False
                if registry.fault(self):
                    return
                if registry.may(self):
                    registry.answer(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = handle_any

            def body(self, limit=None):
                n = int(self.headers.get("Content-Length", 0))
                self.consumed = True
                return self.rfile.read(n if limit is None else min(n, limit))

            def reply(self, status, body=b"", **headers):
                if not self.consumed:
                    self.body()
                self.send_response(status)
                for k, v in headers.items():
                    self.send_header(k.replace("_", "-"), v)
                if "Content_Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def cut(self):
                """The connection ends here."""
                self.wfile.flush()
                self.connection.shutdown(2)
                self.close_connection = True

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # the client went away, as some tests want it to

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.host = f"localhost:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    # ---- authorization ----
    def may(self, h):
        basic = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        given = h.headers.get("Authorization", "")
        if h.path.startswith("/token"):
            if given != basic:
                h.reply(401)
                return False
            token = f"token-{len(self.tokens)}"
            self.tokens.add(token)
            h.reply(200, json.dumps({"token": token}).encode())
            return False
        if self.auth == "basic" and given != basic:
            h.reply(401, WWW_Authenticate='Basic realm="here"')
            return False
        if self.auth == "token" and given.removeprefix("Bearer ") not in self.tokens:
            h.reply(401, WWW_Authenticate=f'Bearer realm="http://{self.host}/token",service="test service",'
                                          'scope="repository:me/m:pull,push"')
            return False
        return True

    # ---- the specification ----
    def answer(self, h):
        url = urllib.parse.urlsplit(h.path)
        m = re.fullmatch(r"/v2/(.+?)/(blobs/uploads|blobs|manifests)/(.*)", url.path)
        if not m:
            return h.reply(404)
        kind, what = m[2], m[3]
        if kind == "blobs/uploads":
            return self.upload(h, what, urllib.parse.parse_qs(url.query))
        if kind == "manifests":
            return self.manifest(h, what)
        data = self.blobs.get(what)
        if data is None:
            return h.reply(404)
        r = re.fullmatch(r"bytes=(\d+)-", h.headers.get("Range", ""))
        if h.command == "HEAD":
            return h.reply(200, Content_Length=str(len(data)))
        if r and int(r[1]) >= len(data):
            return h.reply(416)
        if r:
            at = int(r[1])
            return h.reply(206, data[at:], Content_Range=f"bytes {at}-{len(data) - 1}/{len(data)}")
        return h.reply(200, data)

    def manifest(self, h, ref):
        if h.command == "PUT":
            data = h.body()
            doc = json.loads(data)
            if any(b["digest"] not in self.blobs for b in [doc["config"], *doc["layers"]]):
                return h.reply(404, b'{"errors":[{"code":"BLOB_UNKNOWN"}]}')
            self.manifests[ref] = self.manifests[digest(data)] = data
            return h.reply(201, Docker_Content_Digest=digest(data))
        data = self.manifests.get(ref)
        if data is None:
            return h.reply(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"none"}]}')
        return h.reply(200, data, Docker_Content_Digest=digest(data),
                       Content_Type="application/vnd.oci.image.manifest.v1+json")

    def upload(self, h, session, query):
        if h.command == "POST":
            session = f"u{len(self.uploads)}"
            self.uploads[session] = b""
            return h.reply(202, Location=f"/v2/me/m/blobs/uploads/{session}?state=0")
        have = self.uploads.get(session)
        if have is None:
            return h.reply(404)
        where = dict(Location=f"/v2/me/m/blobs/uploads/{session}?state={len(have)}")
        if h.command == "GET":
            return h.reply(204, Range=f"0-{max(len(have) - 1, 0)}", **where)
        if h.command == "PATCH":
            first = int(h.headers["Content-Range"].split("-")[0])
            if first != len(have):
                return h.reply(416, Range=f"0-{max(len(have) - 1, 0)}", **where)
            self.uploads[session] = have = have + h.body()
            return h.reply(202, Range=f"0-{len(have) - 1}", **where)
        want = query["digest"][0]
        if digest(have) != want:
            return h.reply(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"not that"}]}')
        self.blobs[want] = have
        del self.uploads[session]
        return h.reply(201)

    # ---- help for tests ----
    def put(self, ref, layers):
        """An artifact of [(name, bytes)], or of whole layer objects."""
        config = b"{}"
        self.blobs[digest(config)] = config
        out = []
        for layer in layers:
            if isinstance(layer, tuple):
                name, data = layer
                self.blobs[digest(data)] = data
                layer = {"mediaType": "x/y", "digest": digest(data), "size": len(data),
                         "annotations": {"org.opencontainers.image.title": name}}
            out.append(layer)
        self.manifests[ref] = json.dumps({"schemaVersion": 2, "config": {
            "mediaType": "x/y", "digest": digest(config), "size": 2}, "layers": out}).encode()

    def kill_at_request(self, n, half=False):
        """SIGKILL to self.pid (set by the test) when request n comes; half: with half of its body
        kept, or half of the answer sent."""
        seen = []

        def fault(h):
            seen.append(1)
            if len(seen) != n:
                return False
            if half and h.command == "PATCH":
                session = h.path.split("?")[0].rsplit("/", 1)[1]
                self.uploads[session] += h.body(int(h.headers["Content-Length"]) // 2)
            if half and h.command == "GET" and "/blobs/sha256" in h.path:
                data = self.blobs[h.path.rsplit("/", 1)[1]]
                h.reply(200, data[:len(data) // 2], Content_Length=str(len(data)))
                time.sleep(0.1)  # for some of it to arrive
            assert self.ready.wait(400)
            os.kill(self.pid, signal.SIGKILL)
            h.cut()
            return True

        self.ready = threading.Event()
        self.fault = fault


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()
