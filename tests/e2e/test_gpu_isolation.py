"""`llmq serve` on a GPU under its isolation: a stand-in for the driver's library asks of the system what NVIDIA's
does (tests/support/standin_cuda.c), in a /dev of its own."""
import os
import shutil
import subprocess

import pytest

from harness import ROOT, Llmq, Server

TINY = ROOT / "models/novels-1m"
# Device nodes as any user may make them: /dev/null by another name, in a namespace of its own.
IN_OWN_DEV = """#!/bin/sh
[ -n "$INSIDE" ] || INSIDE=1 exec unshare -rm "$0" "$@"
set -e
mount -t tmpfs none '{dev}'
mkdir '{dev}/shm' '{dev}/nvidia-caps'
mount -t tmpfs none '{dev}/shm'
for f in null zero random urandom; do touch "{dev}/$f"; mount --bind "/dev/$f" "{dev}/$f"; done
for f in nvidiactl nvidia0 nvidia-uvm nvidia-caps/nvidia-cap1; do
    touch "{dev}/$f"; mount --bind /dev/null "{dev}/$f"
done
mount --rbind '{dev}' /dev
exec '{llmq}' "$@"
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with the stand-in and a library that it loads."""
    folder, cc = tmp_path_factory.mktemp("driver"), os.environ.get("CC", "cc")
    build = [cc, "-shared", "-fPIC", "-D_GNU_SOURCE", "-pthread", "-o"]
    subprocess.run([*build, folder / "libcuda.so.1", ROOT / "tests/support/standin_cuda.c"], check=True)
    # The neighbour is elsewhere, as in /run/opengl-driver/lib and in folders of modules.
    (folder / "store").mkdir()
    subprocess.run([*build, folder / "store/ptx.so", "-x", "c", "/dev/null"], check=True)
    (folder / "libnvidia-ptxjitcompiler.so.1").symlink_to("store/ptx.so")
    return folder


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    path = ROOT / "build/tests/llmq-emulated"
    if not os.access(path, os.X_OK):
        pytest.skip("build/tests/llmq-emulated is not there: no C++ compiler")
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of users' own here")
    folder = tmp_path_factory.mktemp("dev")
    (folder / "dev").mkdir()
    tool = folder / "llmq"
    tool.write_text(IN_OWN_DEV.format(dev=folder / "dev", llmq=path))
    tool.chmod(0o755)
    return Llmq(tool)


@pytest.fixture
def env(driver, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    return {"LLMQ_EMULATED_DRIVER": "1", "LD_LIBRARY_PATH": str(driver), "HOME": str(home)}


def answers(server):
    return server.post_json("/v1/completions", {"model": "novels-1m", "prompt": "It was", "max_tokens": 3, "temperature": 0})


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_driver_finds_what_it_needs(gpu, env, tmp_path, device):
    with Server(gpu, TINY, "--device", device, log=tmp_path / "log", env=env) as s:
        assert answers(s)["usage"]["completion_tokens"] == 3
        assert "device emulated" in s.output() and "libcuda.so.1: " not in s.output(), s.output()
        assert "given up: no new privileges, files, system calls" in s.output()
    assert (tmp_path / "home/.nv/ComputeCache/7/kernels").read_text() == "sass"


def test_the_cache_that_a_user_named_is_used(gpu, env, tmp_path):
    cache = tmp_path / "cache/deep"
    with Server(gpu, TINY, "--device", "cuda", log=tmp_path / "log", env={**env, "CUDA_CACHE_PATH": str(cache)}) as s:
        assert "libcuda.so.1: " not in s.output(), s.output()
    assert (cache / "7/kernels").exists() and not (tmp_path / "home/.nv").exists()


def test_several_devices_find_each_other(gpu, env, tmp_path):
    env["LLMQ_EMULATED_DEVICES"] = "2"
    with Server(gpu, TINY, "--tensor-parallel-size", 2, log=tmp_path / "log", env=env) as s:
        assert answers(s)["usage"]["completion_tokens"] == 3
        assert "libcuda.so.1: " not in s.output(), s.output()
