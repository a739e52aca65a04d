"""llmq quantize (and logits) on several ranks: the same bytes as on one, whatever happens to one of them."""
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import time

import pytest

from harness import until
from ranks import LAUNCHERS, Ended, by_mpi, by_sockets, rank_env, start_rank
from shim import stopped
from test_bad_input import read_st
from test_published import write_st
from test_quantize import QUICK, digest, least_memory, leftovers

ARCH = pathlib.Path(__file__).resolve().parents[1] / "golden/arch"
HARD = "LLMQ_HARD" in os.environ
RANKS = [2, 3, 4, 8] if HARD else [3]
GPTQ = ["-m", "gptq", "--no-check", *QUICK]
# One chunk of 16 windows, which ranks cut; three chunks of four, which they share.
SHORT, LONG = ["--calib-samples", "16", "--calib-len", "16"], ["--calib-samples", "11", "--calib-len", "512"]

DENSE = [("each tensor by a rank", ["rtn", "--check"]), ("stages, pieces of rows", ["gptq", *LONG]),
         ("folding", ["awq", *QUICK]), ("curvature, training, text of its own", ["auto", "--tune", "2", "--self-samples", "2", *QUICK]),
         ("steps of one window, of codes too", ["auto", "--tune", "8", "--self-samples", "0", *SHORT]),
         ("training within a limit", ["auto", "--tune", "2", "--self-samples", "3", "--memory-limit", "78M", *LONG]),
         ("columns of outliers", ["int8", *QUICK]), ("bits that are shared out", ["gptq", "--bpw", "4.5", *QUICK]),
         ("within a limit", ["gptq", "--memory-limit", "least", *LONG])]
SPARSE = [("experts apart", "mixtral-moe", ["gptq"]), ("folding for experts", "mixtral-moe", ["awq", "--group-size", "16"]),
          ("experts in one tensor, biases", "gpt-oss-sinks", ["awq", "--group-size", "16"]),
          ("experts within a limit", "qwen2-moe-shared", ["gptq", "--memory-limit", "least"]),
          ("experts that are trained", "dots1", ["auto", "--tune", "2", "--self-samples", "0", "--group-size", "16"]),
          ("several residual streams", "gemma3n", ["auto", "--tune", "2", "--self-samples", "0", "--group-size", "16"]),
          ("states of Mamba that are trained", "jamba", ["auto", "--tune", "2", "--self-samples", "0", "--group-size", "16"]),
          ("positions that an indexer chooses", "glm-moe-dsa", ["auto", "--tune", "2", "--self-samples", "0", "--group-size", "16"]),
          ("values that are not as wide as keys", "mimo-v2-flash", ["auto", "--tune", "2", "--self-samples", "0", "--group-size", "16"]),
          ("bits of experts, embedding and head", "mixtral-moe",
           ["gptq", "--bpw", "6", "--embed", "auto", "--lm-head", "auto"]),
          ("states, attention and experts", "jamba", ["gptq"]), ("states beside attention", "falcon-h1", ["awq", "--group-size", "16"])]


def same_on_all(llmq, tmp_path, model, *args):
    args = ["quantize", model, "-m", *args, "--threads", "1"]
    if "least" in args:
        args[args.index("least")] = least_memory(llmq, *args[:args.index("--memory-limit")], *args[args.index("least") + 1:])
    llmq(*args, "-o", tmp_path / "one")
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    for n in RANKS:
        by_sockets(llmq, n, *args, "-o", tmp_path / "many", TMPDIR=str(tmp))
        assert digest(tmp_path / "many") == digest(tmp_path / "one"), f"{n} ranks"
        (tmp_path / "many").unlink()
        assert leftovers(tmp_path) == ["one", "tmp"] and leftovers(tmp) == []


@pytest.mark.parametrize("why,args", DENSE, ids=[x[0] for x in DENSE])
def test_a_dense_model_has_the_same_bytes_on_any_number_of_ranks(llmq, draft, tmp_path, why, args):
    same_on_all(llmq, tmp_path, draft, *args)


@pytest.fixture
def ids(tmp_path_factory):
    path = tmp_path_factory.mktemp("calib") / "c.ids"
    path.write_text(" ".join(str(i * 7919 % 61) for i in range(16 * 16)))
    return ["--calib", path, *SHORT]


@pytest.mark.parametrize("why,folder,args", SPARSE, ids=[x[0] for x in SPARSE])
def test_a_mixture_of_experts_and_a_hybrid_have_the_same_bytes_on_any_number_of_ranks(llmq, ids, tmp_path, why, folder, args):
    same_on_all(llmq, tmp_path, ARCH / folder, *args, *ids)


def random_weights(folder, config, shapes):
    """A model of bf16 weights between 2^-7 and 2^-5."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    bits, tensors = random.Random(1), {}
    for name, shape in shapes.items():
        b = bytearray(bits.randbytes(2 * math.prod(shape)))
        b[1::2] = bytes(x & 0x80 | 0x3C for x in b[1::2])
        tensors[name] = "BF16", shape, bytes(b)
    write_st(folder / "model.safetensors", tensors)
    return folder


FACTORS = [("in stages", ["gptq", "--no-fold"]),
           *[("one for each matrix", ["auto", "--tune", "0", "--no-fold"]),
             ("those of a layer at once", ["gptq", "--fold", "--no-match"])] * HARD]


@pytest.mark.parametrize("why,args", FACTORS, ids=[x[0] for x in FACTORS])
def test_ranks_share_the_factor_of_many_inputs(llmq, ids, tmp_path, tmp_path_factory, why, args):
    """2048 inputs, of q, k and v, and of gate and up; of q pieces of 512 rows and of what is left."""
    H, I, Q = 2048, 64, 576
    config = json.loads((ARCH / "llama3-gqa/config.json").read_text())
    config.update(hidden_size=H, intermediate_size=I, num_hidden_layers=1, num_attention_heads=Q // 32, num_key_value_heads=1, head_dim=32)
    at, V = "model.layers.0.", config["vocab_size"]
    shapes = {"model.embed_tokens.weight": [V, H], "model.norm.weight": [H], "lm_head.weight": [V, H],
              at + "input_layernorm.weight": [H], at + "post_attention_layernorm.weight": [H],
              **{f"{at}self_attn.{k}_proj.weight": [n, H] for k, n in (("q", Q), ("k", 32), ("v", 32))},
              at + "self_attn.o_proj.weight": [H, Q],
              **{f"{at}mlp.{k}_proj.weight": [I, H] for k in ("gate", "up")}, at + "mlp.down_proj.weight": [H, I]}
    same_on_all(llmq, tmp_path, random_weights(tmp_path_factory.mktemp("wide") / "model", config, shapes), *args, *ids)


def test_products_have_room_for_inputs_that_are_far_wider_than_a_ranks_part(llmq, tmp_path):
    """An MLP of 2048 beside 64: of four ranks each has 512 outputs, and reads all 2048."""
    wide = tmp_path / "wide"
    shutil.copytree(ARCH / "gpt2", wide)
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps({**config, "n_inner": 2048}))
    header, data = read_st(wide / "model.safetensors")
    tensors = {k: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for k, t in header.items() if k != "__metadata__"}
    for k, (dtype, shape, b) in tensors.items():
        if ".mlp." in k and 256 in shape:
            shape = [2048 if x == 256 else x for x in shape]
            tensors[k] = dtype, shape, b * 8
    write_st(wide / "model.safetensors", tensors)
    for n in (1, 4):
        by_sockets(llmq, n, "logits", wide, "--ids", "1,5", "--threads", 1, "-o", tmp_path / f"{n}.safetensors")
    assert (tmp_path / "4.safetensors").read_bytes() == (tmp_path / "1.safetensors").read_bytes()


def wide_gemma4(folder, hidden=64, ffn=64, expert=64):
    """Random weights: layers with 2 KV heads of 8 and with one of 16, an MLP beside experts."""
    shutil.copytree(ARCH / "gemma4-moe", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": hidden, "intermediate_size": ffn, "moe_intermediate_size": expert}))
    header, _ = read_st(folder / "model.safetensors")
    sizes = {"experts.down_proj": [4, hidden, expert], "experts.gate_up_proj": [4, 2 * expert, hidden], "mlp.down_proj.weight": [hidden, ffn],
             "mlp.gate_proj.weight": [ffn, hidden], "mlp.up_proj.weight": [ffn, hidden]}
    rng, tensors = random.Random(1), {}
    for k, t in header.items():
        if k == "__metadata__":
            continue
        shape = next((s for end, s in sizes.items() if k.endswith(end)), None) or [hidden if x == 32 else x for x in t["shape"]]
        if k.endswith("q_proj.weight"):
            shape = [t["shape"][0], hidden]
        if k.endswith("o_proj.weight"):
            shape = [hidden, t["shape"][1]]
        n = math.prod(shape)
        data = [rng.gauss(1 if len(shape) == 1 else 0, 0.2) for _ in range(n)]
        tensors[k] = "F32", shape, struct.pack(f"<{n}f", *data)
    write_st(folder / "model.safetensors", tensors)
    return folder


def wide_moe(folder, name, hidden, ffn):
    """Random weights: experts of several tiles of a product."""
    shutil.copytree(ARCH / name, folder)
    config = json.loads((folder / "config.json").read_text())
    was = config["intermediate_size"]
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": hidden, "intermediate_size": ffn, "head_dim": 16}))
    header, _ = read_st(folder / "model.safetensors")
    to, rng, tensors = {64: hidden, was: ffn}, random.Random(1), {}
    for k, t in header.items():
        if k == "__metadata__":
            continue
        shape = [to.get(x, 2 * ffn if "gate_up" in k and x == 2 * was else x) for x in t["shape"]]
        if "q_proj" in k:  # heads are as many as before
            shape[0] = t["shape"][0]
        if k.endswith("o_proj.weight"):
            shape[1] = t["shape"][1]
        if k.endswith("sinks"):
            shape = t["shape"]
        n = math.prod(shape)
        data = [rng.gauss(1 if len(shape) == 1 else 0, 0.1) for _ in range(n)]
        tensors[k] = "F32", shape, struct.pack(f"<{n}f", *data)
    write_st(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("name", ["mixtral-moe", "gpt-oss-sinks"])
def test_experts_that_are_trained_are_shared_by_tiles(llmq, ids, tmp_path, name):
    """Of one, ranks make columns of products and step rows; gate and up in one matrix all step alike."""
    (tmp_path / "out").mkdir()
    same_on_all(llmq, tmp_path / "out", wide_moe(tmp_path / "wide", name, 256, 384), "auto", "--tune", "2", "--self-samples", "0", "--group-size", "64",
                "--no-check", *ids)


def test_layers_of_different_sizes_are_divided_each_by_its_own(llmq, tmp_path):
    models = [(wide_gemma4(tmp_path / "wide"), (2, 3, 4)), *((ARCH / x, (2,)) for x in ("gemma4-dense", "gemma4-ple", "gemma4-unified"))]
    for model, ranks in models:
        for n in (1, *ranks):
            by_sockets(llmq, n, "logits", model, "--ids", ",".join(str(i * 7 % 40 + 3) for i in range(24)), "--threads", 1, "-o", tmp_path / str(n))
            assert (tmp_path / str(n)).read_bytes() == (tmp_path / "1").read_bytes(), (model.name, n)


@pytest.mark.parametrize("launcher", LAUNCHERS or ["mpirun"])
def test_mpirun_starts_them_and_rank_0_speaks(llmq, draft, tmp_path, launcher):
    if not LAUNCHERS:
        pytest.skip("no mpirun here")
    llmq("quantize", draft, "-o", tmp_path / "one", *GPTQ)
    p = by_mpi(llmq, launcher, 2, "quantize", draft, "-o", tmp_path / "two", *GPTQ, "--json")
    assert json.loads(p.stdout)["method"] == "gptq" and p.stderr.count("ranks: 2 (") == 1
    assert digest(tmp_path / "two") == digest(tmp_path / "one")
    p = by_mpi(llmq, launcher, 2, "quantize", draft, "-o", tmp_path / "no", "-m", "gptq", "--calib", tmp_path / "none", code=3)
    assert p.stderr.count("llmq: quantize:") == 1 and not (tmp_path / "no").exists()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_all_and_another_number_of_ranks_goes_on(llmq, draft, tmp_path, monkeypatch, victim):
    args, out = ["quantize", draft, "-o", tmp_path / "q", *GPTQ], tmp_path / "q"
    llmq("quantize", draft, "-o", tmp_path / "one", *GPTQ)
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    for k, v in {**rank_env(0, 3, tmp_path), "TMPDIR": str(tmp)}.items():
        monkeypatch.setenv(k, v)
    others = [start_rank(llmq, i, 3, tmp_path, *args) for i in (1, 2)]
    with stopped(llmq, "part-00001.llmq", *args) as first:
        if victim:
            others[0].kill()
            first.send_signal(signal.SIGCONT)
            assert first.wait(60) == 1
    for k in rank_env(0, 3, tmp_path):
        monkeypatch.delenv(k)
    r = Ended(others)
    assert r.codes == [-9, 1] if victim else r.codes == [1, 1], str(r)
    assert not out.exists() and [x[:10] for x in leftovers(tmp)] == ["llmq-rank-"] * victim
    r = by_sockets(llmq, 2, *args, "--json")  # removes what the killed one left
    assert json.loads(r.out[0])["resumed_parts"] >= 1 and r.out[1] == ""
    assert digest(out) == digest(tmp_path / "one") and leftovers(tmp_path) == ["one", "q", "tmp"] and leftovers(tmp) == []


def test_a_rank_that_stands_still_is_lost_and_the_run_goes_on_later(llmq, draft, tmp_path, monkeypatch):
    args = ["quantize", draft, "-o", tmp_path / "q", *GPTQ]
    llmq("quantize", draft, "-o", tmp_path / "one", *GPTQ)
    for k, v in {**rank_env(0, 3, tmp_path), "LLMQ_RANK_TIMEOUT": "2"}.items():
        monkeypatch.setenv(k, v)
    others = [start_rank(llmq, i, 3, tmp_path, *args) for i in (1, 2)]
    with stopped(llmq, "part-00001.llmq", *args):
        r = Ended(others)
    assert r.codes == [1, 1] and any("rank 0 of 3 is lost: expected a sign of it within 2 s" in e for e in r.err), str(r)
    for k in [*rank_env(0, 3, tmp_path), "LLMQ_RANK_TIMEOUT"]:
        monkeypatch.delenv(k)
    r = by_sockets(llmq, 2, *args, "--json")
    assert json.loads(r.out[0])["resumed_parts"] >= 1
    assert digest(tmp_path / "q") == digest(tmp_path / "one") and leftovers(tmp_path) == ["one", "q"]


def test_ranks_that_are_suspended_together_go_on_together(llmq, draft, tmp_path):
    """As Slurm does to a job whose nodes another needs."""
    llmq("quantize", draft, "-o", tmp_path / "one", *GPTQ)
    ranks = [start_rank(llmq, i, 2, tmp_path, "quantize", draft, "-o", tmp_path / "q", *GPTQ, LLMQ_RANK_TIMEOUT="2") for i in range(2)]
    until(lambda: (tmp_path / "q.resume/part-00000.llmq").exists() or ranks[0].poll() is not None)
    for sig, seconds in ((signal.SIGSTOP, 6), (signal.SIGCONT, 0)):
        for p in ranks:
            p.send_signal(sig)
        time.sleep(seconds)
    r = Ended(ranks)
    assert r.codes == [0, 0], str(r)
    assert digest(tmp_path / "q") == digest(tmp_path / "one")


ALONE = [("a text that is not there", {1: ["--calib", "nowhere.txt"]}, "nowhere.txt", 3),
         ("other kernels", {2: ["--kernels", "ref"]}, "kernels of rank 0, found another provenance", 3),
         ("a usage error", {2: ["--bits", "99"]}, "--bits: expected 2..8, found '99'", 2),
         ("a usage error of two", {1: ["--group-size", "x"], 2: ["--bits", "99"]}, "--group-size", 2),
         ("another option", {1: ["--bits", "3"]}, "found another recipe", 3),
         ("weights that are rotated, whose head is no longer tied", {1: ["--rotate"]}, "tensors as rank 0 has", 3),
         ("a check", {2: ["--check"]}, "expected 0 windows for the check as rank 0 has, found", 3)]


@pytest.mark.parametrize("why,only,text,code", ALONE, ids=[x[0] for x in ALONE])
def test_what_is_wrong_with_one_rank_is_said_once_and_ends_all(llmq, draft, tmp_path, why, only, text, code):
    r = by_sockets(llmq, 3, "quantize", draft, "-o", tmp_path / "q", *GPTQ, code=code, only=only)
    said = [x for e in r.err for x in e.splitlines() if x.startswith("llmq: quantize:")]
    assert len(said) == 1 and text in said[0] and f"rank {[*only][0]} of 3" in said[0], str(r)
    assert leftovers(tmp_path) == []


def test_what_is_wrong_with_all_is_said_by_rank_0(llmq, draft, tmp_path):
    for more, text, code in ([["--device", "auto"], "--device: expected cpu with 2 ranks", 3],
                             [["--model-free"], "--model-free: expected one process, found 2 ranks", 3],
                             [["--shard", "1/2"], "--shard: expected one process, found 2 ranks", 3],
                             [["--stats-only"], "--stats-only: expected one process, found 2 ranks", 3],
                             [["--calib", "nowhere.txt"], "nowhere.txt", 3]):
        method = ["-m", "rtn"] if more[0] in ("--model-free", "--shard") else GPTQ
        r = by_sockets(llmq, 2, "quantize", draft, "-o", tmp_path / "q", *method, *more, code=code)
        assert text in r.err[0] and "llmq: quantize" not in r.err[1], str(r)
    r = by_sockets(llmq, 2, "eval", "--merge", tmp_path / "scores", code=3)
    assert "--merge: expected one process, found 2 ranks (LLMQ_RANKS)" in r.err[0] and "llmq: eval" not in r.err[1], str(r)


def test_a_wrong_time_until_a_rank_is_lost_is_a_usage_error(llmq, draft, tmp_path):
    for wrong in ("soon", "-1", "2000000"):
        r = by_sockets(llmq, 2, "quantize", draft, "-o", tmp_path / "q", *GPTQ, code=2, LLMQ_RANK_TIMEOUT=wrong)
        assert f"LLMQ_RANK_TIMEOUT: expected seconds from 0 (no limit) to 1000000, found {wrong}" in "".join(r.err), str(r)
    assert leftovers(tmp_path) == []


BAD_RANKS = [("LLMQ_RANK", "2", "LLMQ_RANK: expected 0 to 1, found 2"), ("LLMQ_RANK", "one", "LLMQ_RANK: expected 0 to 1, found one"),
             ("LLMQ_RANKS", "many", "LLMQ_RANKS: expected 1 to 1024, found many"),
             ("LLMQ_RANK_SOCKETS", "", "LLMQ_RANK_SOCKETS: expected a value beside LLMQ_RANKS, found none")]


@pytest.mark.parametrize("name,value,text", BAD_RANKS, ids=[x[1] or "none" for x in BAD_RANKS])
def test_a_wrong_rank_is_a_usage_error(llmq, draft, tmp_path, name, value, text):
    env = {**os.environ, **rank_env(0, 2, tmp_path), name: value}
    assert text in llmq("quantize", draft, "-o", tmp_path / "q", "-m", "rtn", code=2, env=env).stderr
    assert leftovers(tmp_path) == []


ONE = [["convert", "models/novels-1m", "-o", "OUT", "--to", "llmq"], ["inspect", "models/novels-1m"], ["verify", "models/novels-1m"], ["plan", "models/novels-1m"],
       ["tokenize", "models/novels-1m"], ["stats", "merge", "x", "-o", "OUT"], ["chat", "models/novels-1m"], ["pull", "a/b", "-o", "OUT"]]


@pytest.mark.parametrize("args", ONE, ids=[x[0] for x in ONE])
def test_a_command_for_one_process_refuses_several(llmq, tmp_path, args):
    r = by_sockets(llmq, 2, *[tmp_path / "out" if x == "OUT" else x for x in args], code=3)
    assert f"llmq: {args[0]}: expected one process, found 2 ranks (LLMQ_RANKS)" in r.err[0] and r.err[1] == "", str(r)
    assert r.codes == [3, 3] and r.out == ["", ""] and leftovers(tmp_path) == []


def test_help_is_rank_0s_and_what_is_of_the_machine_everyones(llmq, tmp_path):
    r = by_sockets(llmq, 2, "quantize", "--help")
    assert "usage:" in r.out[0] and r.out[1] == ""
    assert all("compiler" in x for x in by_sockets(llmq, 2, "version").out)


@pytest.mark.parametrize("folder, args", [("", ["rtn"]), ("", ["hqq", "--rotate"]), ("", ["nf4"]), ("qwen2-moe-shared", ["rtn", "-g", "16"]),
                                          ("gpt-oss-sinks", ["hqq", "-g", "16"])], ids=lambda a: "-".join(a) if isinstance(a, list) else a)
def test_shards_of_layers_make_the_file_of_one_run(llmq, draft, tmp_path, folder, args):
    """Side by side, one of them twice; a part is lost and a share never ran: what is not there is made at the end."""
    args = ["quantize", ARCH / folder if folder else draft, "-m", *args]
    whole = llmq.json(*args, "-o", tmp_path / "one")
    command = [*args, "-o", tmp_path / "many"]
    done = Ended([llmq.start(*command, "--shard", f"{i}/4", stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in (1, 2, 3, 1)])
    assert done.codes == [0] * 4 and not (tmp_path / "many").exists(), str(done)
    assert llmq.json(*command, "--shard", "4", env={**os.environ, "JOB_COMPLETION_INDEX": "1"}) == {
        "out": str(tmp_path / "many"), "method": args[3], "shard": 2, "shards": 4}
    llmq(*command, "--shard", "3/4", "--no-check")  # a share has none
    assert "--check goes without --shard" in llmq(*command, "--shard", "3/4", "--check", code=2).stderr
    (tmp_path / "many.resume/part-00000.llmq").unlink()
    assert "another run" in llmq(*command, "--shard", "4/4", "--embed", "keep", code=2).stderr
    said = llmq.json(*command)
    assert digest(tmp_path / "many") == digest(tmp_path / "one") and leftovers(tmp_path) == ["many", "one"]
    assert said["resumed_parts"] >= 1 and said["tensors"] == whole["tensors"]


@pytest.mark.parametrize("to, name", [("gptq_v2", "out"), ("compressed-tensors", "out"), ("gguf:Q4_0", "out.gguf")])
def test_shards_of_a_layout_make_the_bytes_of_one_run_and_leave_nothing(llmq, draft, tmp_path, to, name):
    args = ["quantize", draft, "-m", "rtn", "--to", to]
    for run in ("one", "many"):
        (tmp_path / run).mkdir()
    llmq(*args, "-o", tmp_path / "one" / name)
    command = [*args, "-o", tmp_path / "many" / name]
    for i in (1, 2):
        llmq(*command, "--shard", f"{i}/2")
    assert leftovers(tmp_path / "many") == [f"{name}.resume"]
    assert llmq.json(*command)["resumed_parts"] >= 2
    made = [sorted((p.name, p.read_bytes()) for p in (tmp_path / run).rglob("*") if p.is_file()) for run in ("one", "many")]
    assert made[0] == made[1] and leftovers(tmp_path / "many") == [name]


def test_layers_of_shares_serve_another_layout_of_the_same_recipe(llmq, draft, tmp_path):
    """gptq_v2 or compressed-tensors, not gguf, whose codes are others, or none, whose embedding has codes: then the option is named."""
    args, out = ["quantize", draft, "-m", "rtn", "-o"], tmp_path / "out"
    for first, later in (([], ["--to", "gptq"]), ([], ["--to", "gguf:Q4_0"]), (["--to", "gptq"], [])):
        llmq(*args, out, *first, "--shard", "1/2")
        names = [x[-1].split(":")[0] if x else "llmq" for x in (first, later)]
        said = llmq(*args, out, *later, code=2).stderr
        assert f'{out}.resume: holds finished layers of another run (--to: "{names[0]}", now "{names[1]}"; recipe.' in said, said
        assert leftovers(tmp_path) == ["out.resume"]
        shutil.rmtree(tmp_path / "out.resume")
    for i in (1, 2):
        llmq(*args, out, "--to", "gptq_v2", "--shard", f"{i}/2")
    assert llmq.json(*args, out, "--to", "compressed-tensors")["resumed_parts"] >= 2 and leftovers(tmp_path) == ["out"]
    llmq(*args, tmp_path / "one", "--to", "compressed-tensors")
    made = [sorted((p.name, p.read_bytes()) for p in (tmp_path / run).rglob("*") if p.is_file()) for run in ("one", "out")]
    assert made[0] == made[1]


def test_a_share_of_another_run_is_refused_before_a_layer_is_finished(llmq, draft, tmp_path):
    """Shares that are at work on their first layer have none there; their folder is another run's all the same."""
    command = ["quantize", draft, "-m", "rtn", "-o", tmp_path / "many"]
    llmq(*command, "--shard", "9/9")  # has no layer
    state = tmp_path / "many.resume/state.json"
    before = state.read_bytes()
    for more in (["--embed", "keep"], ["-g", "64"]):
        refused = llmq(*command, "--shard", "1/9", *more, code=2).stderr
        assert f"{tmp_path}/many.resume: holds layers, finished or at work, of another run (recipe." in refused and "remove this folder" in refused
    assert state.read_bytes() == before and leftovers(tmp_path / "many.resume") == ["state.json", "state.lock"]
    llmq(*command)
    llmq(*command[:-1], tmp_path / "one")
    assert digest(tmp_path / "many") == digest(tmp_path / "one") and leftovers(tmp_path) == ["many", "one"]
