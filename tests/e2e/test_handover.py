"""llmq handover: the lines it prints work, and what it says follows from the model."""
import json
import shlex
import shutil
import subprocess

import pytest

from harness import ROOT


@pytest.fixture(scope="module")
def quantized(llmq, draft, tmp_path_factory):
    """scheme -> a .llmq of the small model."""
    folder = tmp_path_factory.mktemp("handover")
    made = {}
    for name, args in {"sym": ["--method", "rtn", "--sym", "--group-size", "64"], "nf4": ["--method", "nf4"],
                       "hqq": ["--method", "hqq"]}.items():
        made[name] = folder / f"{name}.llmq"
        llmq("quantize", draft, "-o", made[name], *args)
    return made


def lines(llmq, doc, tmp_path):
    """Run the llmq commands it prepares with, in tmp_path; what the engine is then given."""
    for line in doc["prepare"]:
        words = shlex.split(line)
        assert words[0] == "llmq"
        words[words.index("-o") + 1] = str(tmp_path / words[words.index("-o") + 1])
        llmq(*words[1:])
    return tmp_path / doc["files"][0]


@pytest.mark.parametrize("name,to,says", [("sym", "compressed-tensors", "groups of 64"), ("nf4", "bnb", "bitsandbytes layers are not split"),
                                          ("hqq", "compressed-tensors", "rounded anew")])
def test_vllm_gets_a_folder_in_a_layout_that_holds_the_model(llmq, quantized, tmp_path, name, to, says):
    doc = llmq.json("handover", "vllm", quantized[name])
    assert doc["runs"] and f"--to {to}" in doc["prepare"][0] and any(says in d for d in doc["differences"])
    assert ("--allow-requantize" in doc["prepare"][0]) == (name == "hqq")
    folder = lines(llmq, doc, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == {"bnb": "bitsandbytes"}.get(to, to)
    assert doc["command"] == f"vllm serve {name}-vllm --max-model-len 1024"
    assert f"{name}-sglang" in llmq.json("handover", "sglang", quantized[name])["command"]


def test_tensor_parallel_follows_from_groups(llmq, draft, tmp_path):
    def sizes(group):
        llmq("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", "--group-size", group)
        d = llmq.json("handover", "vllm", tmp_path / "q.llmq")["differences"]
        return next(x for x in d if x.startswith("tensor parallel"))

    # inputs of o: 128, of down: 384; 4 heads, 2 for k and v
    assert sizes(32).startswith("tensor parallel: 1, 2, 4 (of 1, 2, 4, 8); 4 heads")
    assert sizes(128).startswith("tensor parallel: 1 (of 1, 2, 4, 8); model.layers.0.mlp.down_proj.weight: groups of 128 in 384")


def test_llama_cpp_gets_a_file_and_the_models_sampling(llmq, quantized, tmp_path):
    doc = llmq.json("handover", "llama.cpp", quantized["sym"])
    file = lines(llmq, doc, tmp_path)
    assert file.read_bytes()[:4] == b"GGUF" and doc["command"].startswith("llama-server -m sym.gguf -c 1024 --jinja --temp 0.8 --top-k 0 --top-p 0.95")
    doc = llmq.json("handover", "llama.cpp", file)
    assert doc["prepare"] == [] and doc["files"] == [str(file)]
    doc = llmq.json("handover", "llama.cpp", ROOT / "tests/golden/arch/bloom-alibi")
    assert not doc["runs"] and doc["command"] is None and "BloomForCausalLM" in doc["differences"][0]


def test_a_published_folder_goes_as_it_is(llmq, draft, tmp_path):
    for to, bits in (("gptq_v2", 3), ("awq", 4)):
        llmq("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", "--bits", bits, "--asym")
        llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / to, "--to", to)
    doc = llmq.json("handover", "vllm", tmp_path / "gptq_v2")
    assert doc["prepare"] == [] and any("slow gptq kernel" in d for d in doc["differences"])
    llmq("convert", tmp_path / "gptq_v2", "-o", tmp_path / "ct", "--to", "compressed-tensors")
    assert any("neither vLLM nor SGLang reads" in d for d in llmq.json("handover", "vllm", tmp_path / "ct")["differences"])
    out = llmq("handover", "vllm", tmp_path / "awq").stdout
    assert "--dtype float16" in out.splitlines()[0]
    others = [x for x in out.splitlines() if x and not x.startswith(("#", "vllm "))]
    assert not others, "all else is a comment of the script"


@pytest.mark.parametrize("bits,to", [(2, "gptq"), (3, "gptq"), (4, "compressed-tensors"), (8, "compressed-tensors")])
def test_the_layout_is_one_that_the_engine_reads(llmq, draft, tmp_path, bits, to):
    llmq("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", "--bits", bits, "--sym")
    assert llmq.json("handover", "vllm", tmp_path / "q.llmq")["prepare"][0].endswith(f"--to {to}")


def test_paths_are_quoted_and_engines_are_named(llmq, draft, tmp_path):
    (tmp_path / "a b;c").symlink_to(draft)
    doc = llmq.json("handover", "vllm", tmp_path / "a b;c")
    assert shlex.split(doc["command"])[2] == str(tmp_path / "a b;c")
    p = llmq("handover", "tensorrt", draft, code=2)
    assert "engine: expected vllm, sglang or llama.cpp, found 'tensorrt'" in p.stderr


@pytest.mark.parametrize("name", ["-x.llmq", "-x y.llmq", "m.gguf", "m.llmq", "x"])
@pytest.mark.parametrize("engine", ["vllm", "llama.cpp"])
def test_a_name_is_never_an_option_nor_the_model_itself(llmq, quantized, tmp_path, engine, name):
    """Whatever a file or folder is called: the lines run as they stand, in the folder that it is in."""
    if name == "m.gguf":
        llmq("convert", quantized["sym"], "-o", tmp_path / name.replace("gguf", "d"), "--to", "compressed-tensors")
        (tmp_path / "m.d").rename(tmp_path / name)  # a folder
    else:
        shutil.copy(quantized["sym"], tmp_path / name)

    def run(*args):
        p = subprocess.run(["bash", "-c", f'{shlex.quote(str(llmq.path))} "$@"', "llmq", *args], cwd=tmp_path, capture_output=True, text=True)
        assert p.returncode == 0, (args, p.stderr)
        return p.stdout
    doc = json.loads(run("handover", engine, "--json", "--", name))
    before = sorted(p.name for p in tmp_path.iterdir())
    for line in doc["prepare"]:
        words = shlex.split(line)
        assert words[0] == "llmq" and words[2][0] != "-" and words[4][0] != "-"
        run(*words[1:])
    words = shlex.split(doc["command"])
    given = words[2]
    assert given[0] != "-" and (tmp_path / given).exists()
    assert len(list(tmp_path.iterdir())) == len(before) + len(doc["prepare"])


def test_a_folder_with_the_name_of_a_file_is_none(llmq, quantized, tmp_path):
    shutil.copy(quantized["sym"], tmp_path / "q.llmq")
    (tmp_path / "x.llmq").mkdir()
    assert llmq.json("inspect", tmp_path)["format"] == "llmq"
    assert llmq.json("verify", tmp_path)["not_checked"] == ["x.llmq"]


def test_an_empty_name_is_told(llmq):
    for args in (["inspect", ""], ["verify", ""], ["handover", "vllm", ""], ["convert", "", "-o", "x", "--to", "llmq"],
                 ["publish", "", "dir:x"], ["convert", ROOT / "models/novels-1m", "-o", "", "--to", "llmq"]):
        assert 'expected a name, found ""' in llmq(*args, code=2).stderr, args
