"""TLS of the server (--ssl-certfile, --ssl-keyfile), with a certificate made here."""
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import httpx
import pytest

from harness import LIMIT, Server, until
from helpers import TINY, events_of, metric, wait_metric


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
        self.context = ssl.create_default_context(cafile=folder / "cert.pem")

    def _open(self, request, timeout):
        try:
            return urllib.request.urlopen(request, timeout=timeout, context=self.context)
        except urllib.error.HTTPError as e:
            return e


@pytest.fixture(scope="module")
def tls(scripted_llmq, certificate, script_file, tmp_path_factory):
    with TlsServer(scripted_llmq, TINY, certificate, "--test-script", script_file, log=tmp_path_factory.mktemp("tls-log") / "log") as s:
        yield s


def test_answers_and_streams(tls):
    body = {"prompt": "The sea", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    whole = tls.post_json("/v1/completions", body)["choices"][0]["text"]
    with httpx.Client(timeout=LIMIT, verify=tls.context) as client:
        with client.stream("POST", tls.url + "/v1/completions", json={**body, "stream": True}) as r:
            events = events_of(b"".join(r.iter_bytes()))
        assert "".join(e["choices"][0]["text"] for e in events) == whole
        assert client.get(tls.url + "/").text.startswith("<!doctype html>")
    assert "https://127.0.0.1" in tls.output()


def test_a_client_that_leaves(tls):
    """Its request ends although the connection is encrypted."""
    with tls.context.wrap_socket(socket.create_connection(("127.0.0.1", tls.port)),
                                 server_hostname="localhost") as s:
        s.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
                  b'Content-Length: 60\r\n\r\n' + b'{"prompt": "[slow]", "max_tokens": 900, "ignore_eos": true}'.ljust(60))
        wait_metric(tls, "vllm:num_requests_running", 1)
    until(lambda: not metric(tls, "vllm:num_requests_running") and metric(tls, "llmq:http_clients_gone_total"))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_what_is_no_tls(scripted_llmq, tls, certificate, tmp_path):
    with socket.create_connection(("127.0.0.1", tls.port), timeout=LIMIT) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1" not in s.recv(4096)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)), \
            socket.create_connection(("127.0.0.1", tls.port), timeout=LIMIT) as s:
        old.wrap_socket(s)
    assert tls.get("/health").status == 200
    with TlsServer(scripted_llmq, TINY, certificate, "--test-head", 2, log=tmp_path / "log") as hasty, \
            pytest.raises((ssl.SSLError, ConnectionError)), \
            tls.context.wrap_socket(socket.create_connection(("127.0.0.1", hasty.port), timeout=LIMIT),
                                    server_hostname="localhost") as s:
        s.sendall(b"GET /health HTTP/1.1\r\nX: ")  # never ends: cut, and no plain text among the records
        assert s.recv(4096) == b""
        raise ConnectionError


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
        with httpx.Client(timeout=LIMIT, verify=s.context) as open_before:
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
        with httpx.Client(timeout=LIMIT, verify=ssl.create_default_context(cafile=other / "cert.pem")) as now:
            assert now.get(s.url + "/health").status_code == 200


def hang_up(s, word):
    s.process.send_signal(signal.SIGHUP)
    until(lambda: word in s.output(), s.output)


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
        p = llmq("serve", TINY, "--port", 0, *args, code=None)
        assert p.returncode == code and says in p.stderr, (args, p.returncode, p.stderr)
