"""What a running server has given up (tests/unit/test_isolate.c tries each part by itself)."""
import os
import pathlib
import signal

import pytest

from harness import until
from helpers import NOT_SANITIZED, SECOND, TINY


def states(server):
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        yield dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines()
                   if ":\t" in line)


def wait_output(server, text):
    until(lambda: text in server.output(), lambda: server.output()[-2000:])


@NOT_SANITIZED
def test_every_thread_is_restricted(server, serve):
    wait_output(server, "given up: no new privileges")
    threads = list(states(server))
    assert len(threads) > 4 and {t["NoNewPrivs"] for t in threads} == {"1"}
    if "system calls: " not in server.output():
        assert {t["Seccomp"] for t in threads} == {"2"}
    free = serve(TINY, "--isolation", "off")
    assert {(t["NoNewPrivs"], t["Seccomp"]) for t in states(free)} == {("0", "0")}
    assert "given up" not in free.output()


@pytest.mark.parametrize("isolation", ["auto", "off"])
def test_keys_that_lead_elsewhere_are_not_read(serve, tmp_path, isolation):
    """A key file may be replaced, but not by a link out of its folder."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "elsewhere").mkdir()
    keys, other = tmp_path / "keys/list", tmp_path / "elsewhere/list"
    keys.write_text("sk-first\n")
    other.write_text("sk-leaked\n")
    s = serve(TINY, "--api-key-file", keys, "--isolation", isolation, "--access-log",
              tmp_path / "keys/log", key="sk-first")
    if isolation == "auto" and "files: " in s.output():
        pytest.skip("this kernel has no Landlock")
    keys.unlink()
    keys.symlink_to(other)
    s.process.send_signal(signal.SIGHUP)
    wait_output(s, "SIGHUP: ")
    assert ("what was stays" in s.output()) == (isolation == "auto")
    s.key = {"Authorization": "Bearer sk-leaked"}
    assert s.get("/v1/models").status == (401 if isolation == "auto" else 200)
    (tmp_path / "keys/fresh").write_text(SECOND)
    os.rename(tmp_path / "keys/log", tmp_path / "keys/log.1")
    os.rename(tmp_path / "keys/fresh", keys)
    s.process.send_signal(signal.SIGHUP)
    wait_output(s, "keys, certificate and log are read again")
    s.key = {"Authorization": f"Bearer {SECOND}"}
    until(lambda: s.get("/v1/models").status == 200)
    until(lambda: "/v1/models" in (tmp_path / "keys/log").read_text())  # a line is written behind the answer


def test_required_starts_or_says_why(llmq, serve):
    p = llmq("serve", TINY, "--port", 0, "--isolation", "some", code=2)
    assert "--isolation: expected one of" in p.stderr
    try:
        assert "not given up" not in serve(TINY, "--isolation", "required").output()
    except AssertionError as e:
        assert "--isolation required: " in str(e)
