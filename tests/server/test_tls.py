"""TLS of the server (--ssl-certfile, --ssl-keyfile), with a certificate made here."""
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import httpx
import pytest

from harness import Server
from helpers import TINY, events_of, metric


def make_certificate(folder):
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    folder.mkdir(exist_ok=True)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                    "-nodes", "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


class TlsServer(Server):
    def __init__(self, llmq, model, folder, *args, **more):
        super().__init__(llmq, model, "--ssl-certfile", folder / "cert.pem", "--ssl-keyfile",
                         folder / "key.pem", *args, **more)
        self.url = f"https://127.0.0.1:{self.port}"
        self.context = ssl.create_default_context(cafile=folder / "cert.pem")

    def _open(self, request, timeout):
        try:
            return urllib.request.urlopen(request, timeout=timeout, context=self.context)
        except urllib.error.HTTPError as e:
            return e


@pytest.fixture(scope="module")
def tls(scripted_llmq, certificate, tmp_path_factory):
    with TlsServer(scripted_llmq, TINY, certificate, "--test-head", 1, "--test-ping", 0.3,
                   log=tmp_path_factory.mktemp("tls-log") / "log") as s:
        yield s


def test_answers_and_streams(tls):
    body = {"prompt": "The sea", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    whole = tls.post_json("/v1/completions", body)["choices"][0]["text"]
    with httpx.Client(verify=tls.context) as client:
        with client.stream("POST", tls.url + "/v1/completions", json={**body, "stream": True}) as r:
            events = events_of(b"".join(r.iter_bytes()))
        assert "".join(e["choices"][0]["text"] for e in events) == whole
        assert client.get(tls.url + "/").text.startswith("<!doctype html>")
    assert "https://127.0.0.1" in tls.output()


def test_a_client_that_leaves(tls):
    """Its request ends although the connection is encrypted."""
    with tls.context.wrap_socket(socket.create_connection(("127.0.0.1", tls.port)),
                                 server_hostname="localhost") as s:
        s.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n'
                  b'Content-Length: 60\r\n\r\n' + b'{"prompt": "a", "max_tokens": 900, "ignore_eos": true}'.ljust(60))
        end = time.monotonic() + 10
        while metric(tls, "vllm:num_requests_running") != 1:
            assert time.monotonic() < end
    end = time.monotonic() + 10
    while metric(tls, "vllm:num_requests_running") or not metric(tls, "llmq:http_clients_gone_total"):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_what_is_no_tls(tls):
    with socket.create_connection(("127.0.0.1", tls.port), timeout=10) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1" not in s.recv(4096)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)), \
            socket.create_connection(("127.0.0.1", tls.port), timeout=10) as s:
        old.wrap_socket(s)
    with tls.context.wrap_socket(socket.create_connection(("127.0.0.1", tls.port), timeout=10),
                                 server_hostname="localhost") as s:
        s.sendall(b"GET /health HTTP/1.1\r\nX: ")  # never ends: cut, and no plain text among the records
        with pytest.raises((ssl.SSLEOFError, ConnectionError)):
            assert s.recv(4096) == b""
            raise ConnectionError
    assert tls.get("/health").status == 200


def served(port):
    """The certificate that a connection gets now."""
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_a_certificate_is_exchanged_while_it_runs(llmq, certificate, tmp_path):
    """After SIGHUP new connections have the new one and open ones go on; what is wrong changes nothing."""
    folder = tmp_path / "live"
    shutil.copytree(certificate, folder)
    other = make_certificate(tmp_path / "other")
    with TlsServer(llmq, TINY, folder, log=tmp_path / "log") as s:
        old = served(s.port)
        assert old.strip() == (folder / "cert.pem").read_text().strip()
        with httpx.Client(verify=s.context) as open_before:
            assert open_before.get(s.url + "/health").status_code == 200
            shutil.copy(other / "cert.pem", folder)  # the old key does not fit it
            hang_up(s, "what was stays")
            assert served(s.port) == old
            shutil.copy(other / "key.pem", folder)
            hang_up(s, "read again")
            new = served(s.port)
            assert new.strip() == (other / "cert.pem").read_text().strip() and new != old
            assert open_before.get(s.url + "/health").status_code == 200
        with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(("127.0.0.1", s.port)) as c:
            s.context.wrap_socket(c, server_hostname="localhost")
        with httpx.Client(verify=ssl.create_default_context(cafile=other / "cert.pem")) as now:
            assert now.get(s.url + "/health").status_code == 200


def hang_up(s, word):
    s.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 20
    while word not in s.output():
        assert time.monotonic() < end, s.output()
        time.sleep(0.02)


def test_the_terminal_as_a_client(llmq, tls):
    args = ["chat", tls.url, "-n", 2]
    assert "certificate" in llmq(*args, input="a", code=1).stderr
    assert llmq(*args, "--insecure", input="a").stdout


def test_files_that_are_none(llmq, certificate, tmp_path):
    (tmp_path / "text").write_text("no certificate\n")
    cert, key, text = certificate / "cert.pem", certificate / "key.pem", tmp_path / "text"
    for args, code, says in [
            (["--ssl-certfile", cert], 2, "go together"),
            (["--ssl-keyfile", key], 2, "go together"),
            (["--ssl-certfile", cert, "--ssl-keyfile", tmp_path / "none"], 3, "none"),
            (["--ssl-certfile", text, "--ssl-keyfile", key], 3, "TLS did not start"),
            (["--ssl-certfile", cert, "--ssl-keyfile", cert], 3, "TLS did not start")]:
        p = llmq("serve", TINY, "--port", 0, *args, code=None, timeout=20)
        assert p.returncode == code and says in p.stderr, (args, p.returncode, p.stderr)
