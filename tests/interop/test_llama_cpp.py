"""GGUF files beside llama.cpp itself, in both directions. LLAMA_BIN is the folder of llama-perplexity,
llama-quantize and llama-tokenize (Debian: llama.cpp-tools and llama.cpp-tools-extra); without it every test is skipped.

llama-perplexity writes the log-probabilities that it computed, in steps of 16 bits. It keeps keys and values in
f16, and quantizes activations to 8 bits before quantized weights, so it agrees with f32 arithmetic to a
divergence, not to the bit; how far its own arithmetic stands from itself in f32 bounds what can be asked.

    LLAMA_BIN=/usr/bin python3 -m pytest tests/interop/test_llama_cpp.py
"""
import json
import os
import shutil
import struct
import subprocess

import pytest

from conftest import ROOT
from harness import Server

np = pytest.importorskip("numpy", reason="numpy is not installed")
pytestmark = pytest.mark.skipif("LLAMA_BIN" not in os.environ, reason="LLAMA_BIN does not say where llama.cpp is")
CTX, PROMPT = 256, 'Once upon a time there was a captain, who said: "Don\'t!"  한국어 12345\n\n\ttab'


def llama(name, *args):
    p = subprocess.run([os.path.join(os.environ["LLAMA_BIN"], name), *map(str, args)], capture_output=True, text=True)
    assert p.returncode == 0, p.stdout[-1000:] + p.stderr[-2000:]
    return p.stdout


def theirs(model, text, out, ctx=CTX, *more):
    """Tokens of one window and the log-probabilities behind each token of its second half."""
    llama("llama-perplexity", "-m", model, "-f", text, "-c", ctx, "-b", ctx, "--chunks", 1, "-t", 2, *more,
          "--kl-divergence-base", out)
    b = out.read_bytes()
    n_ctx, vocab, chunks = struct.unpack("<Iii", b[8:20])
    assert b[:8] == b"_logits_" and (n_ctx, chunks) == (ctx, 1)
    ids = np.frombuffer(b, "<i4", n_ctx, 20)
    rows = np.frombuffer(b, "<u2", offset=20 + 4 * n_ctx).reshape(ctx - 1 - ctx // 2, -1)
    step = rows[:, :4].copy().view("<f4")  # of the codes, and their smallest value
    return ids, rows[:, 4:4 + vocab] * step[:, :1] + step[:, 1:]


def ours(llmq, model, ids, out):
    llmq("logits", model, "--ids", ",".join(map(str, ids)), "-o", out)
    b = out.read_bytes()
    ctx = len(ids)
    logits = np.frombuffer(b, "<f4", offset=8 + int.from_bytes(b[:8], "little")).reshape(ctx, -1)[ctx // 2:ctx - 1]
    logits = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def divergence(llmq, model, text, tmp_path, *more):
    ids, a = theirs(model, text, tmp_path / "theirs", *more)
    b = ours(llmq, model, ids, tmp_path / "ours")
    kl = (np.exp(a) * (a - b)).sum(1).mean()
    print(f"divergence {kl:.1e}")
    return kl


@pytest.fixture
def words(text, tmp_path):
    few = tmp_path / "few.txt"
    few.write_bytes(text.read_bytes()[:8000])
    return few


@pytest.mark.parametrize("how,bound", [
    ((), 1e-4), (("--method", "rtn", "--bits", "4", "--sym", "--group-size", "32"), 2e-3),
    (("--method", "rtn", "--bits", "8", "--sym", "--group-size", "32"), 2e-3)])
def test_llama_cpp_computes_what_llmq_wrote(llmq, model, words, tmp_path, how, bound):
    src = model
    if how:
        llmq("quantize", model, "-o", tmp_path / "q.llmq", *how)
        src = tmp_path / "q.llmq"
    llmq("convert", src, "-o", tmp_path / "m.gguf", "--to", "gguf", *([] if how else ["--dtype", "f32"]))
    assert divergence(llmq, tmp_path / "m.gguf", words, tmp_path) < bound


@pytest.mark.parametrize("kind", "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K_M Q4_K_M Q5_K_M Q6_K F16 BF16".split())
def test_llmq_reads_what_llama_cpp_quantized(llmq, model, words, tmp_path, kind):
    llmq("convert", model, "-o", tmp_path / "f32.gguf", "--to", "gguf", "--dtype", "f32")
    llama("llama-quantize", tmp_path / "f32.gguf", tmp_path / "q.gguf", kind, 2)
    llmq("verify", tmp_path / "q.gguf")
    assert divergence(llmq, tmp_path / "q.gguf", words, tmp_path) < 2e-3


def checkpoint(name, out):
    """A golden checkpoint with a tokenizer of the printable characters."""
    folder = shutil.copytree(ROOT / "tests/golden/arch" / name, out)
    folder.chmod(0o755)
    if name == "smollm3-nope":  # llama.cpp leaves rotations out in every fourth layer, and these are fewer
        config = json.loads((folder / "config.json").read_text())
        config |= {"no_rope_layers": [1] * config["num_hidden_layers"], "no_rope_layer_interval": 4}
        (folder / "config.json").write_text(json.dumps(config))
    vocab = {"<s>": 0, "\u0120": 1, **{chr(33 + i): 2 + i for i in range(94)}}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level, "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocab,
                                                            "merges": [], "continuing_subword_prefix": None,
                                                            "end_of_word_suffix": None, "fuse_unk": False}}))
    return folder


GROUPS_OF_24 = ("phi3-longrope", "qwen2-moe-shared", "qwen3-moe")


@pytest.mark.parametrize("dtype,bound", [("f32", 1e-5), ("q4", 2e-3)])
@pytest.mark.parametrize("name", [
    "llama3-gqa", "llama-linear-rope", "llama-yarn", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "phi3-longrope",
    "mixtral-moe", "qwen2-moe-shared", "qwen3-moe", "olmo2", "granite", "smollm3-nope"])
def test_llama_cpp_computes_each_architecture_that_llmq_writes(llmq, words, tmp_path, name, dtype, bound):
    folder = checkpoint(name, tmp_path / "m")
    if dtype == "q4":
        if name in GROUPS_OF_24:
            pytest.skip("a layer has groups of 24 inputs, for which GGUF has no blocks")
        llmq("quantize", folder, "-o", tmp_path / "q.llmq", "--method", "rtn", "--sym", "--group-size", "32")
        llmq("convert", tmp_path / "q.llmq", "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    else:
        llmq("convert", folder, "-o", tmp_path / "m.gguf", "--to", "gguf", "--dtype", "f32")
    text = tmp_path / "ascii.txt"
    text.write_text("".join(chr(c) for c in words.read_bytes() if 32 <= c < 127)[:1000])
    assert divergence(llmq, tmp_path / "m.gguf", text, tmp_path, 64, "-ctk", "f32", "-ctv", "f32") < bound


@pytest.mark.parametrize("name", ["llama2-spm-bpe", "gemma-no-prefix"])
def test_llama_cpp_tokenizes_pieces_alike(llmq, model, tmp_path, name):
    """A SentencePiece tokenizer with the weights of another model: only its words are asked for."""
    folder = shutil.copytree(model, tmp_path / "m")
    folder.chmod(0o755)
    for f in folder.glob("*token*"):
        f.unlink()
    source = ROOT / "tests/golden/tokenizers" / name
    # no real model has a token of a NUL, and JSON's reader refuses one
    (folder / "tokenizer.json").write_text((source / "tokenizer.json").read_text().replace('"\\u0000":', '"<nul>":'))
    llmq("convert", folder, "-o", tmp_path / "m.gguf", "--to", "gguf")
    cases = [json.loads(x) for x in (source / "cases.jsonl").read_text().splitlines()]
    differ = []
    for c in [c for c in cases if c["text"] and "\0" not in c["text"] and "<" not in c["text"]][::6]:
        (tmp_path / "p.txt").write_text(c["text"])
        got = llama("llama-tokenize", "-m", tmp_path / "m.gguf", "-f", tmp_path / "p.txt", "--ids", "--log-disable")
        if [int(x) for x in got.strip().strip("[]").split(",")] != c["ids"]:
            differ.append(c["text"])
    assert not differ, differ


def test_llama_cpp_tokenizes_alike(llmq, model, tmp_path):
    llmq("convert", model, "-o", tmp_path / "m.gguf", "--to", "gguf")
    (tmp_path / "p.txt").write_text(PROMPT)
    got = llama("llama-tokenize", "-m", tmp_path / "m.gguf", "-f", tmp_path / "p.txt", "--ids", "--log-disable")
    p = llmq("tokenize", model, "--fields", "ids", input=json.dumps({"text": PROMPT}))
    assert [int(x) for x in got.strip().strip("[]").split(",")] == json.loads(p.stdout)["ids"]


def embedding(model, text):
    """What it says is cut off where it ends before its log is written: it is asked again."""
    for _ in range(20):
        said = llama("llama-embedding", "-m", model, "-p", text, "--pooling", "mean", "--embd-normalize", 2, "--embd-output-format", "json")
        try:
            return np.array(json.loads(said[said.index("{"):])["data"][0]["embedding"])
        except ValueError:
            pass
    pytest.fail(f"20 answers are cut off: {said[-80:]!r}")


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "modernbert"])
def test_llama_cpp_embeds_as_llmq(llmq, tmp_path, name, dtype):
    """llama-embedding, of which a package may have none: the mean of all rows, of length 1."""
    if not os.access(os.path.join(os.environ["LLAMA_BIN"], "llama-embedding"), os.X_OK):
        pytest.skip("there is no llama-embedding")
    model = tmp_path / "m.gguf"
    llmq("convert", ROOT / "tests/golden/heads" / f"cross-{name}", "-o", model, "--to", "gguf", "--dtype", dtype)
    with Server(llmq, model, log=tmp_path / "log") as s:
        for text in ("what is a panda", "x"):
            a = embedding(model, text)
            b = np.array(s.post_json("/v1/embeddings", {"input": text, "pooling": "mean"})["data"][0]["embedding"])
            assert a.shape == b.shape and a @ b > 0.9999, float(a @ b)
