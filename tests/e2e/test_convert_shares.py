"""llmq convert --shard i/N: any number of processes make the bytes of one."""
import os
import pathlib
import shutil
import subprocess

import pytest

from ranks import Ended
from shim import stopped
from test_published import assemble
from test_quantize import leftovers

ARCH = pathlib.Path(__file__).resolve().parents[1] / "golden/arch"

# why, the source (a folder of golden/arch, "" for a small model, "u4" for one quantized, else a published checkpoint), target, options
TARGETS = [("floats", "", "safetensors", ["--dtype", "f16"]), ("tiles, and hashes for its provenance", "bnb-nf4-double", "llmq", ["--layout", "tile16"]),
           ("tiles turned back", "u4-tile16", "llmq", []), ("several files", "u4", "gptq", ["--shard-size", "1M"]), ("zero points", "u4", "awq", []),
           ("codes as they are", "u4", "compressed-tensors", []), ("rounded again", "u4", "bnb", ["--allow-requantize"]),
           ("blocks of floats", "u4", "fp8", ["--allow-requantize"]), ("matrices without codes", "u4", "gguf", ["--dtype", "bf16"]),
           ("codes with a scale of their tensor", "ct-nvfp4a16", "compressed-tensors", []), ("order of activations", "gptq-4bit-g32-desc-act", "safetensors", []),
           ("experts that GGUF stacks", "mixtral-moe", "gguf", []), ("gate and up in one tensor, biases", "gpt-oss-sinks", "gguf", []),
           ("states", "falcon-h1", "gguf", []), ("floats in turned matrices", "gpt2", "llmq", [])]


def source_of(llmq, model, tmp_path, name):
    if not name:
        return model
    if (ARCH / name).is_dir():
        return ARCH / name
    if not name.startswith("u4"):
        return assemble(name, tmp_path / "src")
    llmq("quantize", model, "-o", tmp_path / "src", "-m", "rtn", "--no-check")
    if name == "u4-tile16":
        llmq("convert", tmp_path / "src", "-o", tmp_path / "tiled", "--to", "llmq", "--layout", "tile16")
        return tmp_path / "tiled"
    return tmp_path / "src"


def made(path):
    return path.read_bytes() if path.is_file() else {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("why,name,to,args", TARGETS, ids=[x[0] for x in TARGETS])
def test_any_number_of_shares_makes_the_bytes_of_one_process(llmq, model, tmp_path, why, name, to, args):
    src, out = source_of(llmq, model, tmp_path, name), tmp_path / "out"
    (tmp_path / "one").mkdir()
    command = ["convert", src, "--to", to, *args]
    whole = llmq.json(*command, "-o", tmp_path / "one/out")
    before = leftovers(tmp_path)
    for n in (1, 2, 3, 5):
        for i in range(n, 0, -1):
            said = llmq.json(*command, "-o", out, "--shard", f"{i}/{n}")
            assert said == {"out": str(out), "to": to, "shard": i, "shards": n} and not out.exists()
        said = llmq.json(*command, "-o", out)
        assert {**said, "out": ""} == {**whole, "out": ""}
        assert made(out) == made(tmp_path / "one/out"), f"{n} shares"
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        assert leftovers(tmp_path) == before


def test_shares_side_by_side_one_twice_by_an_arrays_index(llmq, model, tmp_path):
    command = ["convert", model, "-o", tmp_path / "many", "--to", "llmq"]
    done = Ended([llmq.start(*command, "--shard", f"{i}/3", stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in (1, 1, 2)])
    assert done.codes == [0] * 3, str(done)
    array = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"}
    assert llmq.json(*command, "--shard", "auto", env={**os.environ, **array})["shard"] == 3
    llmq("convert", model, "-o", tmp_path / "one", "--to", "llmq", env={**os.environ, **array})  # unasked it is nobody's share
    r = llmq(*command)
    assert "parts" not in r.stderr and made(tmp_path / "many") == made(tmp_path / "one") and leftovers(tmp_path) == ["many", "one"]


@pytest.mark.parametrize("to", ["llmq", "gguf", "safetensors"])
def test_what_is_missing_is_said_and_made(llmq, model, tmp_path, to):
    """A share that never ran, one that was killed in the middle, a part that is damaged, one that is cut."""
    out, rest = tmp_path / "many", tmp_path / "many.resume"
    command = ["convert", model, "-o", out, "--to", to]
    llmq("convert", model, "-o", tmp_path / "one", "--to", to)
    with stopped(llmq, "part-00007", *command, "--shard", "3/5"):
        pass
    llmq(*command, "--shard", "1/5")
    llmq(*command, "--shard", "4/5")
    assert not out.exists()
    for part, change in (("part-00005", lambda raw: raw[:9] + bytes([raw[9] ^ 1]) + raw[10:]), ("part-00003", lambda raw: raw[:-1])):
        (rest / part).write_bytes(change((rest / part).read_bytes()))
    said = llmq(*command).stderr
    assert "note: shares 2, 3, 5 of 5 have not finished: " in said and "parts are made here" in said, said
    assert made(out) == made(tmp_path / "one") and leftovers(tmp_path) == ["many", "one"]


def test_a_killed_share_goes_on(llmq, model, tmp_path):
    out, rest = tmp_path / "many", tmp_path / "many.resume"
    command = ["convert", model, "-o", out, "--to", "llmq"]
    for name in ("state.json", "part-00002", "part-00002.json", "part-00004"):
        with stopped(llmq, name, *command, "--shard", "1/2"):
            pass
    first = (rest / "part-00000.json").stat().st_ino
    llmq(*command, "--shard", "1/2")
    assert (rest / "part-00000.json").stat().st_ino == first
    llmq(*command, "--shard", "2/2")
    assert "parts" not in llmq(*command).stderr
    llmq("convert", model, "-o", tmp_path / "one", "--to", "llmq")
    assert made(out) == made(tmp_path / "one") and leftovers(tmp_path) == ["many", "one"]


def test_the_result_waits_for_the_shares(llmq, model, tmp_path):
    command = ["convert", model, "-o", tmp_path / "many", "--to", "llmq"]
    with stopped(llmq, "part-00002", *command, "--shard", "1/2"):
        said = llmq(*command, code=1).stderr
        assert f"{tmp_path}/many.resume: another llmq convert is writing this output" in said
    assert not (tmp_path / "many").exists()


OTHERS = [("--dtype", ["--dtype", "bf16"], '--dtype: "auto", now "bf16"'), ("--shard-size", ["--shard-size", "1M"], "--shard-size: 5368709120, now 1048576"),
          ("--tokenizer", ["--tokenizer", "models/novels-1m"], '; --tokenizer: nothing, now true'),
          ("--allow-requantize", ["--allow-requantize"], "--allow-requantize: false, now true"), ("--to", ["--to", "awq"], '--to: "gptq", now "awq"')]


@pytest.mark.parametrize("option,more,text", OTHERS, ids=[x[0] for x in OTHERS])
def test_options_other_than_the_first_shares_are_refused(llmq, model, tmp_path, option, more, text):
    src, out = source_of(llmq, model, tmp_path, "u4"), tmp_path / "out"
    command = ["convert", src, "-o", out, *([] if option == "--to" else ["--to", "gptq"])]
    llmq(*command, *(["--to", "gptq"] if option == "--to" else []), "--shard", "1/2")
    before = made(tmp_path / "out.resume")
    for share, how in ((["--shard", "2/2"], "parts, finished or at work, of another run"), ([], "finished parts of another run")):
        said = llmq(*command, *more, *share, code=2).stderr
        assert f"{out}.resume: holds {how} (" in said and text in said and "remove this folder" in said
    assert made(tmp_path / "out.resume") == before and not out.exists()


def test_another_model_is_refused(llmq, model, tmp_path):
    """Of the same names, sizes and shapes; a copy elsewhere is the same."""
    other, copy = tmp_path / "other", tmp_path / "copy"
    shutil.copytree(model, other)
    shutil.copytree(model, copy)
    with open(other / "model.safetensors", "r+b") as f:
        f.seek(-4096, os.SEEK_END)
        f.write(bytes(4096))
    command = ["-o", tmp_path / "out", "--to", "gguf"]
    llmq("convert", model, *command, "--shard", "1/2")
    assert "of another run (SRC: " in llmq("convert", other, *command, "--shard", "2/2", code=2).stderr
    llmq("convert", copy, *command, "--shard", "2/2")
    llmq("convert", model, *command)
    llmq("convert", model, "-o", tmp_path / "one", "--to", "gguf")
    assert made(tmp_path / "out") == made(tmp_path / "one")


def test_a_killed_quantization_in_the_same_place_is_not_its_business(llmq, model, tmp_path):
    out = tmp_path / "out"
    with stopped(llmq, "part-00001.llmq", "quantize", model, "-o", out, "-m", "gptq", "--calib-samples", "2", "--calib-len", "32", "--no-check"):
        pass
    before = leftovers(tmp_path / "out.resume")
    assert "of another run" in llmq("convert", model, "-o", out, "--to", "llmq", "--shard", "1/2", code=2).stderr
    llmq("convert", model, "-o", out, "--to", "llmq")
    assert leftovers(tmp_path / "out.resume") == before


BAD = [("0/2", "--shard: expected 1 to 2 of 2, found 0"), ("3/2", "--shard: expected 1 to 2 of 2, found 3"), ("2", "--shard: expected i/N")]


@pytest.mark.parametrize("shard,text", BAD, ids=[x[0] for x in BAD])
def test_a_wrong_share_is_refused(llmq, model, tmp_path, shard, text):
    env = {k: v for k, v in os.environ.items() if k != "JOB_COMPLETION_INDEX"}
    assert text in llmq("convert", model, "-o", tmp_path / "x", "--to", "llmq", "--shard", shard, code=2, env=env).stderr
    assert leftovers(tmp_path) == []
