"""llmq handover: the lines it prints work, and what it says follows from the model."""
import json
import os
import re
import shlex
import shutil
import struct
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
                                          ("hqq", "compressed-tensors", "rounded again")])
def test_vllm_gets_a_folder_in_a_layout_that_holds_the_model(llmq, quantized, tmp_path, name, to, says):
    doc = llmq.json("handover", "vllm", quantized[name])
    assert doc["runs"] and f"--to {to}" in doc["prepare"][0] and any(says in d for d in doc["differences"])
    assert ("--allow-requantize" in doc["prepare"][0]) == (name == "hqq")
    folder = lines(llmq, doc, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == {"bnb": "bitsandbytes"}.get(to, to)
    assert doc["command"] == f"vllm serve {name}-vllm --max-model-len 1024"
    assert f"{name}-sglang" in llmq.json("handover", "sglang", quantized[name])["command"]


def test_tensor_parallel_follows_from_groups(llmq, model, draft, tmp_path):
    def sizes(group):
        llmq("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", "--group-size", group)
        d = llmq.json("handover", "vllm", tmp_path / "q.llmq")["differences"]
        return next(x for x in d if x.startswith("tensor parallel"))

    # inputs of o: 128, of down: 384; 4 heads, 2 for k and v
    assert sizes(32).startswith("tensor parallel: 1, 2, 4 (of 1, 2, 4, 8); 4 heads")
    llmq("quantize", model, "-o", tmp_path / "f8", "--to", "compressed-tensors:fp8-block")
    said = next(x for x in llmq.json("handover", "vllm", tmp_path / "f8")["differences"] if x.startswith("tensor parallel"))
    assert said.startswith("tensor parallel: 1 (of 1, 2, 4, 8); model.layers.0.") and "groups of 128 in 128 outputs" in said
    assert sizes(128).startswith("tensor parallel: 1 (of 1, 2, 4, 8); model.layers.0.mlp.down_proj.weight: groups of 128 in 384")


@pytest.mark.parametrize("how", ["f32", "bpw"])
def test_llama_cpp_is_told_which_weights_gguf_does_not_hold(llmq, quantized, tmp_path, how):
    """Scales of f32 that f16 does not have; several schemes, each named once. The command does what it says."""
    src = tmp_path / "m.llmq"
    if how == "bpw":
        llmq("quantize", ROOT / "models/novels-1m", "-o", src, "--method", "gptq", "--calib-samples", "4", "--calib-len", "64", "--no-check", "--bpw", "3.5")
    else:
        src = tmp_path / "m"
        llmq("convert", quantized["sym"], "-o", src, "--to", "compressed-tensors")
        path = src / "model.safetensors"
        b = bytearray(path.read_bytes())
        n = int.from_bytes(b[:8], "little")
        head = json.loads(b[8:8 + n])
        data = bytes(b[8 + n:])
        parts, at = b"", 0
        for name, t in sorted(((k, v) for k, v in head.items() if k != "__metadata__"), key=lambda x: x[1]["data_offsets"]):
            raw = data[slice(*t["data_offsets"])]
            if name.endswith(".weight_scale"):
                values = struct.unpack(f"<{len(raw) // 2}e", raw) if t["dtype"] == "F16" else None
                assert values is not None, t["dtype"]
                raw, t["dtype"] = struct.pack(f"<{len(values)}f", *(v * (1 + 2 ** -14) for v in values)), "F32"
            t["data_offsets"] = [at, at + len(raw)]
            parts, at = parts + raw, at + len(raw)
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + parts)
    doc = llmq.json("handover", "llama.cpp", src)
    note = [d for d in doc["differences"] if d.startswith("weights: ")]
    assert note and "--allow-requantize" in doc["prepare"][0]
    named = note[0].split("(")[1].split(")")[0].split(", ")
    assert len(set(named)) == len(named) and (len(named) > 1) == (how == "bpw"), note
    p = shlex.split(doc["prepare"][0])[1:]
    p[p.index("-o") + 1] = tmp_path / "x.gguf"
    llmq(*p)
    assert "has no type of blocks" in llmq(*[x for x in p if x != "--allow-requantize"], code=3).stderr


@pytest.mark.parametrize("text, why", [("[]", "expected an object"), ('{"temperature":"a"}', "temperature: expected 0 to 100")])
def test_settings_that_cannot_be_read_are_named_once(llmq, tmp_path, text, why):
    shutil.copytree(ROOT / "models/novels-1m", tmp_path / "m")
    (tmp_path / "m/generation_config.json").write_text(text)
    doc = llmq.json("handover", "llama.cpp", tmp_path / "m")
    assert any(d.startswith(f"generation_config.json: {why}") for d in doc["differences"])
    for command, code in (["verify"], 4), (["run", "-p", "a"], 3), (["convert", "--to", "gguf", "-o", tmp_path / "x.gguf"], 0):
        p = llmq(command[0], tmp_path / "m", *command[1:], code=code)
        said = (p.stderr + p.stdout).replace("\n", " ")
        assert said.count(f"generation_config.json: {why}") == 1 and "json: generation_config" not in said, said


def test_llama_cpp_gets_a_file_and_the_models_sampling(llmq, quantized, tmp_path):
    doc = llmq.json("handover", "llama.cpp", quantized["sym"])
    file = lines(llmq, doc, tmp_path)
    assert file.read_bytes()[:4] == b"GGUF" and doc["command"].startswith("llama-server -m sym.gguf -c 1024 --jinja --temp 0.8 --top-k 0 --top-p 0.95")
    doc = llmq.json("handover", "llama.cpp", file)
    assert doc["prepare"] == [] and doc["files"] == [str(file)]
    doc = llmq.json("handover", "llama.cpp", ROOT / "tests/golden/arch/opt")
    assert not doc["runs"] and doc["command"] is None and "OPTForCausalLM" in doc["differences"][0]


def test_a_published_folder_goes_as_it_is(llmq, draft, tmp_path):
    for to, bits in (("gptq_v2", 3), ("awq", 4)):
        llmq("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", "--bits", bits, "--asym")
        llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / to, "--to", to)
    doc = llmq.json("handover", "vllm", tmp_path / "gptq_v2")
    assert doc["prepare"] == [] and any("slow gptq kernel" in d for d in doc["differences"])
    assert any("refuses GPTQ with zero points" in d and "compressed-tensors" in d for d in doc["differences"])
    llmq("convert", tmp_path / "gptq_v2", "-o", tmp_path / "ct", "--to", "compressed-tensors")
    assert any("neither vLLM nor SGLang reads" in d for d in llmq.json("handover", "vllm", tmp_path / "ct")["differences"])
    out = llmq("handover", "vllm", tmp_path / "awq").stdout
    assert "--dtype float16" in out.splitlines()[0]
    others = [x for x in out.splitlines() if x and not x.startswith(("#", "vllm "))]
    assert not others, "all else is a comment of the script"


@pytest.mark.parametrize("name, how", [("llama-4bit", "--to compressed-tensors --allow-requantize"),
                                       ("llama-mxfp8", "--to compressed-tensors"), ("gpt-oss", "--to safetensors")])
def test_a_folder_of_mlx_is_converted(llmq, tmp_path, name, how):
    """vLLM and SGLang read none, quantized or not."""
    for engine in ("vllm", "sglang"):
        doc = llmq.json("handover", engine, ROOT / "tests/golden/mlx" / name)
        assert doc["prepare"][0].endswith(how), doc["prepare"]
    lines(llmq, doc, tmp_path)


def test_what_is_rounded_again_is_not_told_of_as_it_was(llmq):
    """2 and 3 bits with biases become symmetric ones of 4: vLLM refuses no zero points of them."""
    doc = llmq.json("handover", "vllm", ROOT / "tests/golden/mlx/llama-mixed")
    assert doc["prepare"][0].endswith("--to gptq_v2 --allow-requantize")
    assert not any("zero points (" in d or "slow gptq kernel" in d for d in doc["differences"]), doc["differences"]


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


def emitted(llmq, folder, engine, form, *args, model, code=0):
    p = subprocess.run([llmq.path, "handover", engine, model, "--emit", form, *map(str, args)], cwd=folder, capture_output=True, text=True)
    assert p.returncode == code, p.stderr
    return p


def documents(path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("engine, len_option, parts_option", [("vllm", "--max-model-len", "--tensor-parallel-size"),
                                                              ("sglang", "--context-length", "--tp-size")])
def test_files_have_the_models_limits(llmq, quantized, tmp_path, engine, len_option, parts_option):
    model, name = quantized["sym"], f"sym-{engine}"
    for form in ("ray", "kserve", "compose"):
        emitted(llmq, tmp_path, engine, form, "--tensor-parallel-size", 2, model=model)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{name}.{form}.yaml" for form in ("compose", "kserve", "ray")]
    compose, = documents(tmp_path / f"{name}.compose.yaml")
    service = compose["services"][engine]
    assert {f"{len_option}=1024", f"{parts_option}=2", "--kv-cache-dtype=auto", "--dtype=auto"} <= set(service["command"])
    assert service["volumes"][0]["source"] == f"./{name}" and service["volumes"][0]["target"] in service["command"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    runtime, inference = documents(tmp_path / f"{name}.kserve.yaml")
    container, = runtime["spec"]["containers"]
    assert {f"{len_option}=1024", f"{parts_option}=2"} <= set(container["args"]) and container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert inference["spec"]["predictor"]["model"]["runtime"] == runtime["metadata"]["name"] == name
    ray, = documents(tmp_path / f"{name}.ray.yaml")
    llm, = ray["applications"][0]["args"]["llm_configs"]
    assert sorted(v for v in llm["engine_kwargs"].values() if isinstance(v, int)) == [2, 1024]
    assert ("server_cls" in llm) == (engine == "sglang")
    assert llm["engine_kwargs"].get("model_path") == (llm["model_loading_config"]["model_source"] if engine == "sglang" else None)
    if engine == "vllm":
        emitted(llmq, tmp_path, engine, "llm-d", model=model)
        doc, = documents(tmp_path / f"{name}.llm-d.yaml")
        assert doc["spec"]["parallelism"] == {"tensor": 1}
        assert "--max-model-len=1024" in doc["spec"]["template"]["containers"][0]["env"][0]["value"]
    else:
        assert "expected vllm" in emitted(llmq, tmp_path, engine, "llm-d", model=model, code=2).stderr
    first = next(x for x in (tmp_path / f"{name}.ray.yaml").read_text().splitlines() if x.startswith("# llmq convert"))
    assert f"-o {name} --to compressed-tensors" in first


@pytest.mark.parametrize("why, args, says", [
    ("cuts groups of 64", ["--tensor-parallel-size", 8], "cuts no group and no head (of 1, 2, 4, 8: 1, 2), found 8"),
    ("none of the four", ["--tensor-parallel-size", 3], "found 3"),
    ("there is one", [], "expected a new name, or --force"),
    ("the model itself", ["--force", "-o", "MODEL"], "sym.llmq"),
    ("a file for a folder", ["-o", "sym.llmq/x.yaml"], "sym.llmq"),
    ("a folder for a file", ["--force", "-o", "."], "--out"),
])
def test_no_file_is_written_that_would_not_work_nor_over_another(llmq, quantized, tmp_path, why, args, says):
    here = tmp_path / "sym-vllm.compose.yaml"
    here.write_text("mine")
    model = shutil.copy(quantized["sym"], tmp_path / "sym.llmq")
    before = model.read_bytes()
    p = emitted(llmq, tmp_path, "vllm", "compose", *[str(model) if x == "MODEL" else x for x in args], model=model, code=2)
    assert says in p.stderr, (why, p.stderr)
    assert here.read_text() == "mine" and model.read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    emitted(llmq, tmp_path, "vllm", "compose", "--force", model=model)
    assert here.read_text().startswith("# Written by")


def test_a_file_is_refused_where_the_engine_refuses_the_model(llmq, draft, tmp_path):
    llmq("quantize", draft, "-o", tmp_path / "q.llmq", "--method", "rtn", "--asym")
    llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "g", "--to", "gptq_v2")
    p = emitted(llmq, tmp_path, "vllm", "kserve", model="g", code=3)
    assert "refuses GPTQ with zero points" in p.stderr
    emitted(llmq, tmp_path, "sglang", "kserve", model="g")
    assert "expected vllm or sglang" in emitted(llmq, tmp_path, "llama.cpp", "compose", model="q.llmq", code=2).stderr
    for args in (["--force"], ["-o", "x"], ["--tensor-parallel-size", "2"]):
        assert "go with --emit" in llmq("handover", "vllm", draft, *args, code=2).stderr


def test_a_file_is_refused_where_no_engine_rounds_the_inputs(llmq, tmp_path):
    """Groups of 128, and 160 inputs."""
    llmq("quantize", ROOT / "tests/golden/arch/llama3-gqa", "-o", tmp_path / "q.llmq", "-m", "fp8", "-g", "128", "--no-check")
    for engine in ("vllm", "sglang"):
        p = emitted(llmq, tmp_path, engine, "compose", model="q.llmq", code=3)
        assert "160 inputs are rounded in groups of 128" in p.stderr


@pytest.mark.parametrize("name", ["My Model: v1.5 #3", "가나다", "7b", "-x", "a$HOME${X}", 'quote"s', "x" * 120, "vllm",
                                  "null", "true", "No", "on", "y"])
def test_whatever_a_model_is_called_its_file_is_yaml(llmq, draft, tmp_path, name):
    shutil.copytree(draft, tmp_path / name)
    for form in ("ray", "kserve", "llm-d", "compose"):
        p = subprocess.run([llmq.path, "handover", "vllm", f"./{name}", "--emit", form, "--json"], cwd=tmp_path, capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        docs = documents(tmp_path / json.loads(p.stdout)["written"])
        labels = [d["metadata"]["name"] for d in docs if "metadata" in d] + [d["name"] for d in docs if "name" in d]
        assert all(re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", x) for x in labels), labels
        if form == "compose":
            source = docs[0]["services"]["vllm"]["volumes"][0]["source"]
            assert (tmp_path / source.replace("$$", "$")).is_dir(), source
            assert f"--served-model-name={name}" in [x.replace("$$", "$") for x in docs[0]["services"]["vllm"]["command"]]


@pytest.mark.parametrize("there, path", [("my-model", "."), ("my-model", "./"), ("my-model/sub", "..")])
def test_a_model_that_is_here_is_called_as_its_folder(llmq, draft, tmp_path, there, path):
    shutil.copytree(draft, tmp_path / "my-model")
    (tmp_path / there).mkdir(exist_ok=True)
    emitted(llmq, tmp_path / there, "vllm", "llm-d", "-o", tmp_path / "x.yaml", model=path)
    doc, = documents(tmp_path / "x.yaml")
    assert doc["metadata"]["name"] == "my-model" and doc["spec"]["model"]["uri"] == "pvc://models/my-model"


def test_a_path_that_yaml_cannot_have_is_refused(llmq, draft, tmp_path):
    model = os.fsencode(tmp_path) + b"/m\xff"
    shutil.copytree(os.fsencode(draft), model)
    p = subprocess.run([llmq.path, "handover", "vllm", model, "--emit", "compose"], cwd=tmp_path, capture_output=True)
    assert p.returncode == 2 and b"expected such a path" in p.stderr, p.stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_paths_in_a_file_elsewhere_lead_back(llmq, draft, tmp_path):
    shutil.copytree(draft, tmp_path / "m")
    emitted(llmq, tmp_path, "vllm", "compose", "-o", "there/x.yaml", model="m")
    doc, = documents(tmp_path / "there/x.yaml")
    assert doc["services"]["vllm"]["volumes"][0]["source"] == str(tmp_path / "m")
