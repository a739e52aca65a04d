"""Replicas of `llmq serve` in Ray Serve (ray[serve] 2.60), with one address for all of them.

    serve run llmq_serve:app model=/models/model.llmq cpus=8 max_replicas=4      # in this folder, llmq in PATH
    serve deploy config.yaml                                                     # the same, with all settings

A gateway reads a request, names its conversation (llmq_routing.py) and sends it to the server of that conversation's
replica as it is: every route, header, key and stream is llmq's own. A replica that is lost or full costs a request one
more try; a stream of which the client has a part ends with an error event. See docs/scale.md."""
import collections
import contextlib
import ctypes
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import aiohttp
import ray
import yarl
from pydantic import BaseModel, field_validator
from ray import serve
from ray.serve.config import AutoscalingContext, AutoscalingPolicy, RequestRouterConfig
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import llmq_routing

KV_FULL = 0.8  # of the KV cache: a replica that uses more gets another beside it
OWN = {"connection", "content-length", "date", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
STREAMS = ("text/event-stream", "application/x-ndjson")
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


class Args(BaseModel, extra="forbid"):
    model: str  # a path that every node has, or ORG/NAME on the hub
    options: list[str] = []  # of llmq serve; one text is split as a shell would
    llmq: str = "llmq"
    cpus: int = 1  # of a replica; so many threads llmq gets
    gpus: float = 0  # likewise; llmq sees those that Ray gives it, and wants --device cuda among its options
    resources: dict[str, float] = {}  # what else of a node a replica takes
    min_replicas: int = 1
    max_replicas: int = 4
    target_requests: int = 16  # of a replica, that run or wait; beyond it others are started and take from it
    replicas_per_node: int | None = None
    gateways: int = 1
    load_s: float = 600
    drain_s: float = 60  # that running requests get when a replica ends
    upscale_delay_s: float = 10  # how long the load must ask for more replicas
    downscale_delay_s: float = 600  # or for fewer

    @field_validator("options", mode="before")
    @classmethod
    def _split(cls, v):
        return shlex.split(v) if isinstance(v, str) else v


class ByConversation(RequestRouter):
    """The order of llmq_routing, without the replicas that the request was sent to before."""

    def initialize_state(self, room: int = 16):
        self._room = room

    async def choose_replicas(self, candidate_replicas: list[RunningReplica],
                              pending_request: PendingRequest | None = None) -> list[list[RunningReplica]]:
        asks = pending_request.args if pending_request else []
        ask = next((a for a in asks if isinstance(a, llmq_routing.Ask)), None)
        if not ask:
            return [list(candidate_replicas)]
        pending_request.routing_context.should_backoff = True  # else a full house is asked again without a pause
        by_id = {r.replica_id.unique_id: r for r in candidate_replicas}
        load = {k: max(ask.load.get(k, 0), r.routing_stats.get("requests", 0)) for k, r in by_id.items()}
        left = [k for k in by_id if k not in ask.tried] or list(by_id)
        return [[by_id[k]] for k in llmq_routing.order(ask.conversation, left, load, self._room)]


def replicas_for_load(ctx: AutoscalingContext) -> tuple[float, dict]:
    """So many that none has more than the target of requests, as llmq counts them, or a KV cache too full."""
    figures = ctx.aggregated_metrics or {}
    requests = sum(figures.get("llmq_requests", {}).values())
    kv = sum(figures.get("llmq_kv_usage", {}).values())
    return max(math.ceil(requests / ctx.config.target_ongoing_requests), math.ceil(kv / KV_FULL), 1), {}


def _with_parent():
    """In the new process: it ends when the replica does, however that ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@serve.deployment
class Replica:
    """An llmq server. Gateways send requests to it directly: through Ray's streams a gateway that is lost would hold up
    the replicas that answer it."""

    def __init__(self, args: Args):
        threads = [] if "--threads" in args.options else ["--threads", str(args.cpus)]
        self.drain_s = args.drain_s
        self.keys = {"Authorization": f"Bearer {k}" for k in [_key(args.options)] if k}
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [args.llmq, "serve", args.model, *args.options, *threads, "--shutdown-timeout", f"{args.drain_s:g}",
             "--host", ray.util.get_node_ip_address(), "--port", "0"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, preexec_fn=_with_parent)
        self.address = None
        try:
            self._load(args.load_s)
        except Exception:
            self.__del__()
            raise

    def _load(self, seconds: float):
        end, said = time.monotonic() + seconds, b"nothing"
        while time.monotonic() < end:
            self._alive()
            at = re.search(rb"listening on (http://\S+), ", self._said())
            if at:
                self.address = at[1].decode()
                status, said = self._get("/ready")
                if status == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"llmq is not ready after {seconds:g} s; /ready says {said.decode(errors='replace')}")

    def _said(self) -> bytes:
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), 4096, max(0, size - 4096))

    def _get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.address + path, headers=self.keys), timeout=5) as r:
                return r.status, r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def _alive(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"llmq ended with {self.process.returncode}: {self._said().decode(errors='replace')}")

    def check_health(self):
        self._alive()
        status, said = self._get("/ready")
        if status != 200:
            raise RuntimeError(f"llmq is not ready: {said.decode(errors='replace')}")

    def record_replica_metadata(self) -> dict:
        return {"address": self.address}

    def _requests(self) -> tuple[int, float]:
        """Requests that run or wait, and the share of the KV cache in use."""
        status, said = self._get("/load")
        doc = json.loads(said) if status == 200 else {}
        return doc.get("running", 0) + doc.get("waiting", 0), doc.get("kv_cache_usage", 0)

    def record_routing_stats(self) -> dict[str, int]:
        return {"requests": self._requests()[0]}

    def record_autoscaling_stats(self) -> dict[str, float]:
        requests, kv = self._requests()
        return {"llmq_requests": requests, "llmq_kv_usage": kv}

    def where(self) -> tuple[str, str]:
        return serve.get_replica_context().replica_id.unique_id, self.address

    def __del__(self):
        """New requests go elsewhere, what runs may end; then the KV cache goes to its folder, where there is one."""
        with contextlib.suppress(Exception):
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(self.drain_s + 30)
        with contextlib.suppress(Exception):
            self.process.kill()
            self.process.wait(5)


def _key(options: list[str]) -> str | None:
    """One of the server's keys, to ask it for figures."""
    for name, value in zip(options, options[1:]):
        if name == "--api-key":
            return value
        if name == "--api-key-file":
            with open(value) as f:
                return next((x.strip() for x in f if x.strip() and not x.startswith("#")), None)
    return None


def _why(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e)}".strip().splitlines()[-1]


def _broken(path: str, why: str) -> bytes:
    """What ends a stream of which the client has a part, in the words of its API."""
    message = f"the replica broke off: {why}"
    if path.startswith("/api/"):
        return json.dumps({"error": message}).encode() + b"\n"
    if path.endswith("/messages"):
        doc = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: " + json.dumps(doc).encode() + b"\n\n"
    if path.endswith("/responses"):
        doc = {"type": "error", "code": "replica_lost", "message": message, "param": None}
        return b"event: error\ndata: " + json.dumps(doc).encode() + b"\n\n"
    return b"data: " + json.dumps(_error(message)).encode() + b"\n\ndata: [DONE]\n\n"


def _error(message: str) -> dict:
    return {"error": {"message": message, "type": "service_unavailable_error", "param": None, "code": "replica_lost"}}


def _one_page(pages: list[tuple[str, str]]) -> str:
    """Metrics of several replicas as one text, each sample with its replica's label, a family's samples together."""
    families: dict[str, dict] = {}
    for replica, text in pages:
        family = {"says": [], "samples": []}
        for line in text.splitlines():
            words = line.split(" ", 3)
            if words[0] == "#" and len(words) > 2:
                family = families.setdefault(words[2], {"says": [], "samples": []})
                if line not in family["says"]:
                    family["says"].append(line)
            elif line and words[0] != "#":
                name, brace, rest = line.partition("{")
                if not brace:
                    name, _, rest = line.partition(" ")
                    rest = "} " + rest
                comma = "" if rest.startswith("}") else ","
                family["samples"].append(f'{name}{{replica="{replica}"{comma}{rest}')
    return "".join("\n".join(f["says"] + f["samples"]) + "\n" for f in families.values())


def _socket(address) -> socket.socket:
    """A node that vanishes without a word is found out within half a minute."""
    s = socket.socket(*address[:3])
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25000}.items():
        s.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return s


@serve.deployment
class Gateway:
    def __init__(self, replicas):
        self.replicas = replicas
        self.load = collections.Counter()
        self.session = None

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        if request.url.path == "/metrics":
            return await self._metrics(request)
        name = llmq_routing.conversation(request.url.path, body) if request.method == "POST" else ""
        tried, why = [], ""
        for last in (False, True):
            async with self.replicas.choose_replica(llmq_routing.Ask(name, tried, dict(self.load))) as chosen:
                replica, address = chosen.replica_id, chosen.replica_metadata["address"]
            tried.append(replica)
            self.load[replica] += 1
            try:
                r = await self._send(address, request, body)
                if r.status == 503 and not last:  # full, or about to end
                    r.release()
                    continue
                first = await (r.content.readany() if _streams(r) else r.read())
                if _streams(r):
                    return _response(r, self._rest(request.url.path, first, r, replica))
                return _response(r, first)
            except (aiohttp.ClientError, OSError) as e:
                why = _why(e)
            finally:
                self.load[replica] -= 1
        text = json.dumps(_error(f"no replica could answer: {why}"))
        return Response(text, 503, {"Retry-After": "1"}, "application/json")

    async def _send(self, address: str, request: Request, body: bytes) -> aiohttp.ClientResponse:
        if self.session is None:
            self.session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket), auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5), cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"))
        return await self.session.request(
            request.method, yarl.URL(address + _target(request), encoded=True),
            headers=[(k, v) for k, v in request.headers.items() if k not in OWN], data=body or None,
            allow_redirects=False)

    async def _rest(self, path: str, first: bytes, r: aiohttp.ClientResponse, replica: str):
        self.load[replica] += 1
        try:
            yield first
            async for part in r.content.iter_any():
                yield part
        except (aiohttp.ClientError, OSError) as e:
            yield _broken(path, _why(e))
        finally:
            self.load[replica] -= 1
            r.close()  # where the client has gone before the end, llmq sees it so

    async def _metrics(self, request: Request) -> Response:
        where = await self.replicas.broadcast("where").results_async(timeout_s=10, return_exceptions=True)
        pages = []
        for replica, address in (w for w in where if isinstance(w, tuple)):
            with contextlib.suppress(aiohttp.ClientError, OSError):
                r = await self._send(address, request, b"")
                page = await r.read()
                if r.status != 200:  # a key is missing
                    return _response(r, page)
                pages.append((replica, page.decode()))
        return Response(_one_page(pages), media_type="text/plain; version=0.0.4")


def _target(request: Request) -> str:
    """Path and query as the client spelled them."""
    path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
    return path + (f"?{request.url.query}" if request.url.query else "")


def _streams(r: aiohttp.ClientResponse) -> bool:
    return r.content_type in STREAMS


def _response(r: aiohttp.ClientResponse, content) -> Response:
    answer = (Response if isinstance(content, bytes) else StreamingResponse)(content, r.status)
    for k, v in r.headers.items():
        if k.lower() not in OWN | {"x-request-id"}:  # Ray says the same one itself
            answer.headers.append(k, v)
    return answer


def app(args: Args) -> serve.Application:
    replica = Replica.options(
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus, "resources": args.resources},
        max_replicas_per_node=args.replicas_per_node,
        graceful_shutdown_wait_loop_s=0.5, graceful_shutdown_timeout_s=args.drain_s + 40,
        health_check_period_s=2, health_check_timeout_s=10,
        autoscaling_config={
            "min_replicas": args.min_replicas, "max_replicas": args.max_replicas,
            "target_ongoing_requests": args.target_requests, "upscale_delay_s": args.upscale_delay_s,
            "downscale_delay_s": args.downscale_delay_s,
            "policy": AutoscalingPolicy(policy_function=replicas_for_load)},
        request_router_config=RequestRouterConfig(
            request_router_class=ByConversation, request_router_kwargs={"room": args.target_requests},
            request_routing_stats_period_s=1)).bind(args)
    return Gateway.options(
        num_replicas=args.gateways, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=4096,
        graceful_shutdown_timeout_s=args.drain_s).bind(replica)
