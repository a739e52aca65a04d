"""A machine with a GPU's device nodes, in a /dev of its own: what is said of a GPU that is not used; and `llmq serve`
under its isolation, where a stand-in for the driver's library asks of the system what NVIDIA's does
(tests/support/standin_cuda.c)."""
import os
import pathlib
import re
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
[ -z "$LOADER_CACHE" ] || mount --bind "$LOADER_CACHE" /etc/ld.so.cache
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
def beside_nodes(tmp_path_factory):
    """beside_nodes(LLMQ): that program where a driver has made its nodes."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of users' own here")

    def make(path):
        folder = tmp_path_factory.mktemp("dev")
        (folder / "dev").mkdir()
        tool = folder / "llmq"
        tool.write_text(IN_OWN_DEV.format(dev=folder / "dev", llmq=path))
        tool.chmod(0o755)
        return Llmq(tool)
    return make


@pytest.fixture(scope="module")
def gpu(beside_nodes):
    path = ROOT / "build/tests/llmq-emulated"
    if not os.access(path, os.X_OK):
        pytest.skip("build/tests/llmq-emulated is not there: no C++ compiler")
    return beside_nodes(path)


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


def test_cublas_is_found_where_the_loaders_cache_alone_knows_it(gpu, env, tmp_path):
    """As NVIDIA's packages leave it: a line in /etc/ld.so.conf.d, in a folder outside /usr."""
    ldconfig = shutil.which("ldconfig", path="/usr/sbin:/sbin:" + os.environ["PATH"])
    if not ldconfig:
        pytest.skip("no ldconfig here")
    (tmp_path / "blas").mkdir()
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-D_GNU_SOURCE", "-pthread", "-Wl,-soname,libcublas.so.13",
                    "-o", tmp_path / "blas/libcublas.so.13", ROOT / "tests/support/standin_cuda.c"], check=True)
    conf = pathlib.Path("/etc/ld.so.conf")
    (tmp_path / "conf").write_text(f"{tmp_path}/blas\n" + (conf.read_text() if conf.exists() else ""))
    subprocess.run([ldconfig, "-X", "-C", tmp_path / "cache", "-f", tmp_path / "conf"], check=True)
    env["LOADER_CACHE"] = str(tmp_path / "cache")
    with Server(gpu, TINY, "--device", "cuda", log=tmp_path / "log", env=env) as s:
        assert "libcublas.so.13: created" in s.output() and "given up: no new privileges, files" in s.output()


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


def said_of_devices(text):
    return [line for line in text.splitlines() if line.startswith("device: ")]


RUN = ["run", TINY, "It was", "-n", 1]
HINT = "device: cpu (the GPU that is here is not used: --device cuda or auto asks for it)"


def test_a_gpu_that_nobody_asked_for_is_said_once(gpu, llmq, tmp_path):
    assert said_of_devices(gpu(*RUN).stderr) == [HINT]
    assert said_of_devices(gpu(*RUN, "--device", "cpu").stderr) == []
    assert said_of_devices(llmq(*RUN).stderr) == [] or os.path.exists("/dev/nvidiactl")
    for hidden, said in [("", []), ("-1", []), ("NoDevFiles", []), ("0", [HINT])]:
        assert said_of_devices(gpu(*RUN, env={**os.environ, "CUDA_VISIBLE_DEVICES": hidden}).stderr) == said, hidden
    chat = gpu("chat", TINY, "-n", 1, input="Hello\n")
    assert said_of_devices(chat.stderr) == [HINT]
    with Server(gpu, TINY, log=tmp_path / "log") as s:
        assert said_of_devices(s.output()) == [HINT]


def test_a_gpu_that_this_build_cannot_use_is_said_once(beside_nodes, llmq):
    if "not in this build" not in llmq("version").stdout:
        pytest.skip("this build has CUDA")
    here = beside_nodes(llmq.path)
    why = r"this llmq was built without CUDA \([^\n]+\)"
    [line] = said_of_devices(here(*RUN).stderr)
    assert re.fullmatch(rf"device: cpu \(the GPU that is here is not used: {why}\)", line)
    [line] = said_of_devices(here(*RUN, "--device", "auto", "--log-level", "warn").stderr)
    assert re.fullmatch(rf"device: cpu \(no GPU: {why}\)", line)
    assert here.json("doctor", "--quick")["nvidia_driver"].startswith("there, ")


def test_a_driver_that_does_not_start_is_said_and_auto_goes_on(gpu, env, tmp_path):
    """As where its modules cannot be loaded, another process holds the GPU, or it is too old."""
    broken = {**os.environ, **env, "LLMQ_STANDIN_FAILS": "cuInit"}
    [line] = said_of_devices(gpu(*RUN, "--device", "auto", "--log-level", "warn", env=broken).stderr)
    assert line == "device: cpu (no GPU: cuInit: 304)"
    assert "no GPU: cuInit: 304" in gpu(*RUN, "--device", "cuda", env=broken, code=1).stderr
    with Server(gpu, TINY, "--device", "auto", log=tmp_path / "log", env=broken) as s:
        assert said_of_devices(s.output()) == [line]
    missing = {**broken, "LD_LIBRARY_PATH": str(tmp_path)}
    [line] = said_of_devices(gpu(*RUN, "--device", "auto", "--log-level", "warn", env=missing).stderr)
    assert line.startswith("device: cpu (no GPU: libcuda.so.1: cannot open shared object file")


def test_a_device_that_does_not_open_is_said_and_auto_goes_on(gpu, env):
    broken = {**os.environ, **env, "LLMQ_STANDIN_FAILS": "cuDevicePrimaryCtxRetain"}
    [line] = said_of_devices(gpu(*RUN, "--device", "auto", env=broken).stderr)
    assert line == "device: cpu (no GPU: cuDevicePrimaryCtxRetain: 304)"


def test_the_doctor_does_not_say_that_a_driver_is_and_is_not_here(gpu):
    """Its modules are loaded, its library is not there, as in a container that was not given the GPU."""
    found = gpu.json("doctor", "--quick", env={**os.environ, "LLMQ_EMULATED_DEVICES": "0"})
    assert found["nvidia_driver"].startswith("there, ")
    assert found["devices"].startswith("cpu (no GPU: the library of NVIDIA's driver is not here (libcuda.so.1")
    [advice] = [a["text"] for a in found["advice"] if a["name"] == "gpu-fails"]
    assert "--gpus all" in advice
