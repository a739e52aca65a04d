"""Which nvcc `make` takes, and what it says of it (scripts/make/cuda.sh): stand-ins in folders as toolkits have them."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from harness import ROOT

NVCC = """#!/bin/sh
case "$*" in
*--version*) echo "Cuda compilation tools, release {version}, V{version}.99" ;;
*--list-gpu-code*) printf 'sm_%s\\n' {codes} ;;
*--dryrun*) echo '#$ TOP={top}' >&2 ;;
esac
"""
HEADER = "#if __GNUC__ > {0}\n#error -- unsupported GNU version! gcc versions later than {0} are not supported!\n#endif\n"
CODES = {"11.8": "50 80 86 89 90", "12.4": "50 80 86 89 90", "13.0": "75 80 86 89 90 100 103 120"}


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The system's programs but for compilers for GPUs, and but for g++, whose versions tests choose."""
    folder = tmp_path_factory.mktemp("bin")
    for path in pathlib.Path("/usr/bin").iterdir():
        if not re.match(r"nvcc|nvidia-smi|(.*-)?g\+\+", path.name):
            (folder / path.name).symlink_to(path)
    return folder


class Machine:
    """A PATH, folders below a root, and `make` with them."""

    def __init__(self, tools, folder):
        self.root, self.bin = folder / "root", folder / "bin"
        self.bin.mkdir()
        self.env = {"PATH": f"{self.bin}:{tools}", "LLMQ_CUDA_ROOT": str(self.root), "HOME": str(folder), "LC_ALL": "C"}
        self.program("g++", "echo 13")

    def program(self, name, text):
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def toolkit(self, place, version, library="lib64", gcc=13):
        top = self.root / place
        (top / "bin").mkdir(parents=True)
        (top / "bin/nvcc").write_text(NVCC.format(version=version, codes=CODES[version], top=top))
        (top / "bin/nvcc").chmod(0o755)
        (top / "include/crt").mkdir(parents=True)
        (top / "include/crt/host_config.h").write_text(HEADER.format(gcc))
        if library:
            (top / library).mkdir(parents=True)
            (top / library / "libcudart_static.a").touch()
        return top

    def make(self, *args, **env):
        p = subprocess.run(["make", "-s", "-C", ROOT, *args], capture_output=True, text=True, env={**self.env, **env})
        assert p.returncode == 0, p.stderr
        return p.stdout.strip()

    def compiles(self, *args, **env):
        """How the kernels are compiled, and what device.c is told."""
        said = self.make("-n", "-B", *args, "build/kernels/cuda/dev.o", "build/kernels/device.o", **env)
        nvcc = [line for line in said.splitlines() if "dev.cu" in line and "-gencode" in line]
        return nvcc[0] if nvcc else "", re.search(r"-DLLMQ_\w*CUDA='\"[^\"]*\"'", said)[0]


@pytest.fixture
def machine(tools, tmp_path):
    return Machine(tools, tmp_path)


@pytest.mark.parametrize("place, variable, library", [
    ("anywhere", "CUDA_HOME", "lib64"), ("anywhere", "CUDA_PATH", "lib"), ("opt/cuda", None, "lib64"),
    ("usr/local/cuda", None, "lib64"), ("usr/local/cuda-12.4", None, "targets/x86_64-linux/lib"),
    ("usr/lib/nvidia-cuda-toolkit", None, "lib")])
def test_a_toolkit_off_the_path_is_found(machine, place, variable, library):
    top = machine.toolkit(place, "12.4", library)
    env = {variable: str(top)} if variable else {}
    assert machine.make("cuda", **env) == f"12.4 ({top}/bin/nvcc), code for 80, and for later GPUs by their driver"
    compiled, told = machine.compiles(**env)
    assert compiled.startswith(f"{top}/bin/nvcc ") and told == "-DLLMQ_CUDA='\"80\"'"


def test_what_was_named_goes_before_the_path_and_that_before_folders(machine):
    machine.toolkit("usr/local/cuda", "12.4")
    on_path, named, home = (machine.toolkit(name, "13.0") for name in ("on-path", "named", "home"))
    machine.env["PATH"] = f"{on_path}/bin:{machine.env['PATH']}"
    assert f"({on_path}/bin/nvcc)" in machine.make("cuda")
    assert f"({home}/bin/nvcc)" in machine.make("cuda", CUDA_HOME=str(home))
    assert f"({named}/bin/nvcc)" in machine.make("cuda", f"NVCC={named}/bin/nvcc", CUDA_HOME=str(home))
    assert f"({named}/bin/nvcc)" in machine.make("cuda", NVCC=f"{named}/bin/nvcc")


def test_the_newest_of_several_versions_is_taken(machine):
    for place, version in [("usr/local/cuda-9.2", "11.8"), ("usr/local/cuda-12.4", "12.4"), ("usr/local/cuda-13.0", "13.0")]:
        machine.toolkit(place, version)
    assert machine.make("cuda").startswith("13.0 ")


def test_a_runtime_that_the_compiler_alone_knows_is_found(machine, tmp_path):
    """As Debian's nvidia-cuda-toolkit has it."""
    machine.toolkit("usr/lib/nvidia-cuda-toolkit", "12.4", library=None)
    assert re.fullmatch(r"not in this build: nvcc of CUDA 12.4 is here, libcudart_static.a is not: [^\n]+", machine.make("cuda"))
    compiled, told = machine.compiles()
    assert "libcudart_static.a is not" in told
    (tmp_path / "libcudart_static.a").touch()
    machine.program("cc", f'[ "$1" != -print-file-name=libcudart_static.a ] || exec echo {tmp_path}/libcudart_static.a\nexec /usr/bin/cc "$@"')
    assert machine.make("cuda").startswith("12.4 ")
    assert f" {tmp_path}/libcudart_static.a " in machine.make("-n", "-B", "llmq")


def test_code_that_an_older_nvcc_does_not_know_is_left_out(machine):
    machine.toolkit("usr/local/cuda", "12.4")
    archs = "CUDA_ARCHS=80 90a 100 120a"
    assert machine.make("cuda", archs).endswith("code for 80 90a, and for later GPUs by their driver; nvcc does not know 100, 120a")
    compiled, told = machine.compiles(archs)
    assert re.findall(r"code=(\w+)", compiled) == ["sm_80", "sm_90a", "compute_80"] and told == "-DLLMQ_CUDA='\"80 90a\"'"
    machine.toolkit("newer", "13.0")
    compiled, _ = machine.compiles(archs, CUDA_HOME=str(machine.root / "newer"))
    assert re.findall(r"code=(\w+)", compiled) == ["sm_80", "sm_90a", "sm_100", "sm_120a", "compute_80"]


def test_code_for_this_machines_gpus_is_made_where_nvcc_knows_them(machine):
    machine.program("nvidia-smi", "printf '9.0\\n12.0\\n12.0\\n7.5\\n'")
    machine.toolkit("usr/local/cuda", "12.4")
    assert machine.make("cuda").endswith("code for 80 90a, and for later GPUs by their driver; nvcc does not know 120")
    machine.toolkit("newer", "13.0")
    assert "code for 80 90a 120, " in machine.make("cuda", CUDA_HOME=str(machine.root / "newer"))


@pytest.mark.parametrize("words, archs", [
    ("sm_90", "90"), ("sm_90a 9.0a compute_90a", "90a"), ("80,8.6;sm_120", "80 86 120"), ("native", "90a"), ("80 native", "80 90a")])
def test_code_may_be_named_as_other_programs_name_it(machine, words, archs):
    machine.program("nvidia-smi", "printf '9.0\\n9.0\\n'")
    machine.toolkit("usr/local/cuda", "13.0")
    assert machine.make("cuda", f"CUDA_ARCHS={words}").endswith(f"code for {archs}, and for later GPUs by their driver")


def test_a_release_has_code_for_every_gpu_that_nvcc_knows(machine):
    """Of a GPU's own family, not newer than it; 9.0's of its own alone, as wgmma's."""
    machine.toolkit("usr/local/cuda", "13.0")
    [archs] = re.findall(r'CUDA_ARCHS="([^"]*)"', (ROOT / "packaging/portable/build.sh").read_text())
    assert machine.make("cuda", f"CUDA_ARCHS={archs}").endswith(f"code for {archs}, and for later GPUs by their driver")
    made = [(int(a.rstrip("a")), a.endswith("a")) for a in archs.split()]
    for cc in (int(c) for c in CODES["13.0"].split() if int(c) >= 80):
        assert any(a == cc or (not own and a // 10 == cc // 10 and a < cc) for a, own in made), cc


def test_native_without_a_gpu_is_the_default_and_said(machine):
    machine.toolkit("usr/local/cuda", "13.0")
    assert machine.make("cuda", "CUDA_ARCHS=native").endswith(
        "code for 80, and for later GPUs by their driver; native: nvidia-smi names no GPU here")


def test_a_program_that_hangs_is_waited_for_no_longer_than_said(machine):
    machine.env["LLMQ_CUDA_WAIT"] = "1"
    top = machine.toolkit("usr/local/cuda", "13.0")
    machine.program("nvidia-smi", "sleep 1000")
    for archs in ["CUDA_ARCHS=", "CUDA_ARCHS=native"]:
        assert machine.make("cuda", archs).endswith("code for 80, and for later GPUs by their driver; nvidia-smi does not answer within 1 s")
    (top / "bin/nvcc").write_text("#!/bin/sh\nsleep 1000\n")
    assert machine.make("cuda") == f"not in this build: {top}/bin/nvcc does not answer within 1 s"


@pytest.mark.parametrize("args, env, why", [
    ([], {}, r"no nvcc was found in CUDA_HOME, PATH, /usr/local/cuda\* or /opt/cuda"),
    (["NVCC="], {}, "NVCC= or a sanitizer left it out"),
    ([], {"NVCC": ""}, "NVCC= or a sanitizer left it out"),
    (["SANITIZE=-fsanitize=thread"], {}, "NVCC= or a sanitizer left it out"),
    (["NVCC=/nowhere/nvcc"], {}, "/nowhere/nvcc does not say its version"),
])
def test_without_one_the_build_goes_on_and_says_why(machine, args, env, why):
    if args or env:
        machine.toolkit("usr/local/cuda", "13.0")
    assert re.fullmatch(f"not in this build: {why}", machine.make("cuda", *args, **env))
    _, told = machine.compiles(*args, **env)
    assert re.fullmatch(rf"-DLLMQ_NO_CUDA='\"{why}\"'", told)


def test_code_that_the_kernels_or_nvcc_cannot_be_compiled_to_is_left_out(machine):
    """nvcc knows 75 and refuses 89a and 90f; the kernels need 80."""
    machine.toolkit("usr/local/cuda", "13.0")
    archs = "CUDA_ARCHS=75 80 89a 90a 90f 100f sm90 *"
    assert machine.make("cuda", archs).endswith("code for 80 90a 100f, and for later GPUs by their driver; nvcc does not know 89a, "
                                                "90f, sm90, *; kernels need 80 or later, not 75")
    machine.toolkit("older", "12.4")
    assert "nvcc does not know 100f" in machine.make("cuda", "CUDA_ARCHS=80 100f", CUDA_HOME=str(machine.root / "older"))


def test_an_nvcc_whose_path_has_a_space_is_refused_by_that_name(machine):
    top = machine.toolkit("my tools", "13.0")
    why = f"not in this build: {top}/bin/nvcc: expected a path without a space, which make cannot take"
    assert machine.make("cuda", CUDA_HOME=str(top)) == machine.make("cuda", f"NVCC={top}/bin/nvcc") == why


def test_an_nvcc_that_compiles_nothing_is_said_in_its_words(machine):
    top = machine.toolkit("usr/local/cuda", "13.0")
    text = (top / "bin/nvcc").read_text()
    (top / "bin/nvcc").write_text(text.replace(f"echo '#$ TOP={top}'", "echo \"g++-99: No such file or directory\""))
    assert machine.make("cuda").endswith("/usr/local/cuda/bin/nvcc fails: g++-99: No such file or directory")


@pytest.mark.parametrize("args, why", [(["NVCC="], "not in this build: NVCC= or a sanitizer left it out"),
                                       (["CUDA_ARCHS=75 abc"], "nvcc does not know abc; kernels need 80 or later, not 75")])
def test_a_bundle_without_code_for_a_gpu_is_refused_with_the_reason(machine, args, why):
    machine.toolkit("usr/local/cuda", "13.0")
    p = subprocess.run(["make", "-s", "-C", ROOT, "gpu-bundle", *args], capture_output=True, text=True, env=machine.env)
    assert p.returncode == 2 and p.stderr.startswith("gpu-bundle: expected code for a GPU; CUDA: "), p.stderr
    assert p.stderr.splitlines()[0].endswith(why) and len(p.stderr.splitlines()) == 2  # the other is make's


def test_an_nvcc_that_is_too_old_is_not_used(machine):
    machine.toolkit("usr/local/cuda", "11.8")
    assert machine.make("cuda").endswith("/usr/local/cuda/bin/nvcc is of CUDA 11.8, 12.0 or later is needed")


def test_a_host_compiler_that_nvcc_refuses_is_replaced_or_said(machine):
    top = machine.toolkit("usr/local/cuda", "12.4", gcc=13)
    machine.program("g++", "echo 15")
    assert machine.make("cuda") == "not in this build: nvcc of CUDA 12.4 takes g++ up to 13, found 15: install g++-13"
    machine.program("g++-12", "echo 12")
    assert machine.make("cuda").endswith("; with g++-12, as nvcc takes g++ up to 13")
    assert machine.compiles()[0].startswith(f"{top}/bin/nvcc -ccbin g++-12 ")
    for args, env in [([f"NVCC={top}/bin/nvcc -ccbin clang++"], {}), ([], {"NVCC_CCBIN": "clang++"})]:
        assert machine.make("cuda", *args, **env).startswith("12.4 ")
        assert "g++-12" not in machine.compiles(*args, **env)[0]


KERNEL = """ptxas info    : Compiling entry function '_Z12probe_kernelv' for 'sm_90a'
ptxas info    : Function properties for _Z12probe_kernelv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 4 registers, used 0 barriers
"""


@pytest.mark.parametrize("code", ["C7506", "C7507", "C7508", "C7510"])
def test_what_ptxas_did_not_do_as_written_is_over_budget(tmp_path, code):
    """Registers that warps were to give each other (setmaxnreg), and products that were to overlap."""
    def over(text):
        (tmp_path / "sm90.ptxas").write_text(text + KERNEL)
        p = subprocess.run([sys.executable, ROOT / "scripts/ci/ptxas.py", tmp_path], capture_output=True, text=True)
        return int(re.search(r"ptxas: 1 kernels, (\d+) over budget", p.stdout)[1]), p.stderr
    warning = f"ptxas info    : ({code}) Potential Performance Loss: what was written is ignored"
    plain, warned = over(""), over(warning + "\n")
    assert warned[0] == plain[0] + 1 and f"sm90.ptxas: {warning}" in warned[1]
