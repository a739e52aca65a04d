"""llmq quantize --reproducible: calibrated results do not depend on the kernels that made them."""
import hashlib
import os
import subprocess

import pytest

QUICK = ["--calib-samples", "4", "--calib-len", "64", "--no-check", "--log-level", "error"]
# What other processors' runs would use: (OPENBLAS_CORETYPE, --kernels).
PLACES = [(None, []), ("Nehalem", []), ("Sandybridge", ["--kernels", "ref"])]


def quantize(llmq, draft, out, core, *args):
    """The bytes of the result on a machine for which OpenBLAS chooses `core`."""
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    env |= {"OPENBLAS_CORETYPE": core} if core else {}
    subprocess.run([llmq.path, "quantize", draft, "-o", out, *QUICK, *args], env=env, check=True,
                   capture_output=True, timeout=300)
    return hashlib.sha256(out.read_bytes()).hexdigest()


@pytest.mark.parametrize("method", ["gptq", "awq", "auto"])
def test_the_same_bytes_on_any_kernels(llmq, draft, tmp_path, method):  # T-77
    args = ["-m", method, "--reproducible", *(["--tune", "2"] if method == "auto" else [])]
    assert len({quantize(llmq, draft, tmp_path / "q", core, *args, *more) for core, more in PLACES}) == 1
    kept = llmq.json("inspect", tmp_path / "q")["provenance"]
    assert (kept["kernels"], kept["blas"]) == ("any", "Haswell")


def test_without_it_the_file_says_what_made_it(llmq, draft, tmp_path):
    made = {quantize(llmq, draft, tmp_path / "q", core, "-m", "gptq", *more) for core, more in PLACES}
    assert len(made) == len(PLACES)
    kept = llmq.json("inspect", tmp_path / "q")["provenance"]
    assert (kept["kernels"], kept["blas"]) == ("ref", "Sandybridge")


def test_methods_without_calibration_need_no_other_start(llmq, draft, tmp_path):
    assert len({quantize(llmq, draft, tmp_path / "q", core, *args, *more)
                for core, more in PLACES for args in (["-m", "rtn"], ["-m", "rtn", "--reproducible"])}) == 1
