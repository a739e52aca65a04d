"""`llmq plan`: arithmetic that can be checked by hand."""
import json

import pytest

from harness import ROOT
from ranks import by_sockets

# models/novels-6m: 6 layers, hidden 256, 2 KV heads of 64, ffn 768, vocabulary 4096, tied.
LAYER = 256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768
HEAD = 4096 * 256


@pytest.fixture(autouse=True)
def _there(llmq):
    if "plan" not in llmq.commands():
        pytest.skip("no command plan in this build")


def plan(llmq, *args):
    return llmq.json("plan", *args, "--bandwidth", "10", "--gflops", "100")


def test_weights_and_cache_of_the_demo_model(llmq, model):
    p = plan(llmq, model)
    norms = (2 * 6 + 1) * 256 * 4
    assert p["weights_bytes"] == (6 * LAYER + 2 * HEAD) * 2 + norms
    assert p["kv_bytes_per_token"] == 2 * 6 * 2 * 64 * 2  # f16 or bf16, whatever is fast
    assert plan(llmq, model, "--kv-cache-dtype", "f32")["kv_bytes_per_token"] == 2 * 6 * 2 * 64 * 4
    assert p["max_len"] == 1024


@pytest.mark.parametrize("dtype, row", [("bf16", 128), ("int8", 4 + 64), ("fp8", 4 + 64), ("int4", 4 + 32)])
def test_narrow_caches_count_their_scales(llmq, model, dtype, row):
    assert plan(llmq, model, "--kv-cache-dtype", dtype)["kv_bytes_per_token"] == 2 * 6 * 2 * row


@pytest.mark.parametrize("types, row", [("k=int8,v=int4", 4 + 64 + 4 + 32), ("v=int4,k=f16", 128 + 4 + 32),
                                        ("k=int8,v=int8", 2 * (4 + 64)), ("v=int8", 128 + 4 + 64)])
def test_keys_and_values_may_have_types_of_their_own(llmq, model, types, row):
    assert plan(llmq, model, "--kv-cache-dtype", types)["kv_bytes_per_token"] == 6 * 2 * row


@pytest.mark.parametrize("types", ["int5", "", "k=", "k=int8,", "k=int8,k=int4", "k=int8 v=int4", "q=int8", "k=int8,v"])
def test_what_is_no_type_of_a_cache_is_refused(llmq, model, types):
    for command in (["plan", model], ["eval", model, "--text", "Makefile"]):
        p = llmq(*command, "--kv-cache-dtype", types, code=2)
        assert "--kv-cache-dtype" in p.stderr and "int4" in p.stderr


def test_a_draft_is_counted(llmq, model, draft):
    alone, small, both = plan(llmq, model), plan(llmq, draft), plan(llmq, model, "--speculative-model", draft)
    assert both["draft_weights_bytes"] == small["weights_bytes"] > 0
    assert both["draft_kv_bytes_per_token"] == small["kv_bytes_per_token"] > 0
    assert both["scratch_bytes"] == alone["scratch_bytes"] + small["scratch_bytes"]
    for key in ("weights_bytes", "kv_bytes_per_token", "decode_tok_s_limit"):
        assert both[key] == alone[key]
    left = 64 << 20
    tight = plan(llmq, model, "--speculative-model", draft, "--memory", str(
        left + both["weights_bytes"] + both["draft_weights_bytes"] + both["scratch_bytes"]))
    assert tight["max_tokens"] == left // (both["kv_bytes_per_token"] + both["draft_kv_bytes_per_token"])


def test_an_eagle_draft_of_another_model_is_refused(llmq, model):
    p = llmq("plan", model, "--speculative-model", ROOT / "tests/golden/eagle3", code=3)
    assert "EAGLE-3 draft: expected the model's vocabulary of 4096 ids, found one for 64" in p.stderr


def test_what_a_server_takes_is_what_it_says_itself(llmq, draft, tmp_path):
    """The same sum as serve --dry-run, also of a config alone; none where nothing fits."""
    def same(planned, *args):
        dry = llmq.json("serve", *args, "--dry-run")
        free = dry.pop("memory_bytes"), planned["serve"].pop("memory_bytes")
        assert planned["serve"] == dry and min(free) > dry["held_bytes"]
        return dry
    alone = same(plan(llmq, draft), draft)
    both = same(plan(llmq, draft, "--speculative-model", draft), draft, "--speculative-model", draft)
    assert both["running_bytes"] > alone["running_bytes"]
    (tmp_path / "config.json").write_bytes((draft / "config.json").read_bytes())
    assert same(plan(llmq, tmp_path / "config.json"), tmp_path / "config.json") == alone
    text = llmq("plan", draft, "--bandwidth", "10", "--gflops", "100").stdout
    assert "requests to llmq serve" in text and "1088 that run or wait" in text
    tight = ("--memory", str(alone["weights_bytes"] + (1 << 20)))
    assert "serve" not in plan(llmq, draft, *tight)
    assert "llmq serve" not in llmq("plan", draft, "--bandwidth", "10", "--gflops", "100", *tight).stdout


def test_a_config_alone_gives_the_same_plan(llmq, model, tmp_path):
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    keys = ["weights_bytes", "kv_bytes_per_token", "scratch_bytes", "decode_tok_s_limit"]
    whole = plan(llmq, model)
    for path in [tmp_path / "config.json", tmp_path]:
        alone = plan(llmq, path)
        assert [alone[k] for k in keys] == [whole[k] for k in keys], path


def test_the_roofline_follows_from_bandwidth_and_arithmetic(llmq, model):
    p = plan(llmq, model, "--ctx", "512")
    step = (6 * LAYER + HEAD) * 2
    assert p["decode_tok_s_limit"] == pytest.approx(10e9 / step)
    assert p["decode_tok_s_limit_full"] == pytest.approx(10e9 / (step + 512 * p["kv_bytes_per_token"]))
    assert p["prefill_tok_s_limit"] == pytest.approx(100e9 / (step / 2 * 2))
    assert p["optimal_batch"] == 10  # 2 bytes / 10 GB/s = 10 rows of 2 operations / 100 GFLOP/s


def test_arithmetic_may_be_the_limit_of_one_sequence(llmq, model):
    p = llmq.json("plan", model, "--bandwidth", "1000", "--gflops", "10")
    assert p["decode_tok_s_limit"] == p["decode_tok_s_limit_full"] == p["prefill_tok_s_limit"] and p["optimal_batch"] == 1
    assert "1 sequence: arithmetic" in llmq("plan", model, "--bandwidth", "1000", "--gflops", "10").stdout


def test_a_gpus_limits_follow_from_what_its_maker_says(llmq, model):
    p = plan(llmq, model, "--ctx", "512", "--gpu", "h100-sxm")
    step = (6 * LAYER + HEAD) * 2
    assert (p["gpu"], p["gpu_memory_bytes"], p["gpu_layers"]) == ("h100-sxm", 80e9, 6)
    assert (p["gpu_bandwidth_bytes_s"], p["gpu_flops"]) == (3.35e12, 989e12)
    assert p["gpu_decode_tok_s_limit"] == pytest.approx(3.35e12 / step)
    assert p["gpu_decode_tok_s_limit_full"] == pytest.approx(3.35e12 / (step + 512 * p["kv_bytes_per_token"]))
    assert p["gpu_prefill_tok_s_limit"] == pytest.approx(989e12 / step)
    assert p["gpu_optimal_batch"] == 296  # 989 / 3.35 = 295.2
    alone = plan(llmq, model, "--ctx", "512")
    cpu = ["device", "bandwidth_bytes_s", "flops", "decode_tok_s_limit", "decode_tok_s_limit_full", "prefill_tok_s_limit",
           "optimal_batch"]
    assert [p[k] for k in cpu] == [alone[k] for k in cpu] and not [k for k in alone if k.startswith("gpu")]
    half = plan(llmq, model, "--gpu", "NVIDIA h100 80GB_HBM3", "--tensor-parallel-size", "2", "--ctx", "512")
    for key in ("decode_tok_s_limit", "decode_tok_s_limit_full", "prefill_tok_s_limit"):
        assert half["gpu_" + key] == pytest.approx(2 * p["gpu_" + key])
    assert half["gpu_optimal_batch"] == 296
    small = plan(llmq, model, "--gpu", "RTX4090", "--gpu-memory", "64M", "--gpu-bandwidth", "500")
    assert (small["gpu"], small["gpu_memory_bytes"], small["gpu_bandwidth_bytes_s"], small["gpu_flops"]) == \
        ("rtx-4090", 64 << 20, 5e11, 165.2e12)
    text = llmq("plan", model, "--bandwidth", "10", "--gflops", "100", "--gpu", "h100-sxm").stdout
    assert "6 of 6 layers on h100-sxm:\n" in text and "bandwidth and arithmetic by NVIDIA's datasheet" in text
    told = llmq("plan", model, "--bandwidth", "10", "--gflops", "100", "--gpu", "h100-sxm", "--gpu-bandwidth", "9").stdout
    assert "datasheet" not in told


def test_layers_on_both_sides_take_the_time_of_both(llmq, model):
    args = ["--ctx", "512", "--gpu-memory", "1G", "--gpu-bandwidth", "100", "--gpu-gflops", "3000", "--gpu-layers", "2"]
    p = plan(llmq, model, *args)
    there, here, kv = (2 * LAYER + HEAD) * 2, 4 * LAYER * 2, 512 * p["kv_bytes_per_token"]
    assert p["gpu_layers"] == 2 and p["gpu_kv_bytes_per_token"] * 3 == p["kv_bytes_per_token"]
    assert 1 / p["gpu_decode_tok_s_limit"] == pytest.approx(there / 100e9 + here / 10e9)
    assert 1 / p["gpu_decode_tok_s_limit_full"] == pytest.approx((there + kv / 3) / 100e9 + (here + kv * 2 / 3) / 10e9)
    assert 1 / p["gpu_prefill_tok_s_limit"] == pytest.approx(there / 3000e9 + here / 100e9)
    assert p["gpu_optimal_batch"] == 30 and p["optimal_batch"] == 10  # each device's own
    slow = plan(llmq, model, *args[:5], "10", *args[6:], "--gpu-bandwidth", "1e4", "--gpu-gflops", "1")
    assert 1 / slow["gpu_decode_tok_s_limit"] == pytest.approx(there / 1e9 + here / 10e9)  # arithmetic there, memory here
    text = llmq("plan", model, *args, "--bandwidth", "10", "--gflops", "100").stdout
    assert "2 of 6 layers on the GPU, the others on the CPU, one side after the other:" in text
    none = plan(llmq, model, *args[:2], "--gpu", "h200", "--gpu-layers", "0")
    assert not [k for k in none if k.startswith("gpu")]


@pytest.mark.parametrize("arch", ["mixtral-moe", "deepseek-v2-mla", "opt-350m-postnorm", "llama3-gqa", "qwen3-next", "mamba2"])
def test_a_gpu_no_faster_than_the_cpu_changes_no_limit(llmq, arch):
    """Of experts those used count, wherever they are, and states where their layers are."""
    path = ROOT / "tests/golden/arch" / arch
    want = plan(llmq, path)
    same = ["--gpu-memory", "1G", "--gpu-bandwidth", "10", "--gpu-gflops", "100", "--gpu-layers"]
    for n in ("1", "all"):
        p = plan(llmq, path, *same, n)
        for key in ("decode_tok_s_limit", "decode_tok_s_limit_full", "prefill_tok_s_limit"):
            assert p["gpu_" + key] == pytest.approx(want[key]), (n, key)


def test_latent_attention_caches_one_row_for_all_heads(llmq):
    """kv_lora_rank + qk_rope_head_dim numbers of f16 for each of two layers, on the CPU and on a GPU, or on each of several."""
    for gpus in ("1", "2"):
        p = plan(llmq, ROOT / "tests/golden/arch/glm4-moe-lite", "--kv-cache-dtype", "f16", "--gpu-memory", "1G", "--gpu-bandwidth", "10",
                 "--tensor-parallel-size", gpus)
        assert p["kv_bytes_per_token"] == p["gpu_kv_bytes_per_token"] == 2 * (16 + 4) * 2


def test_a_gpu_has_the_factors_of_latent_attention(llmq):
    """In place of kv_b, which may be codes: of each head [kv_lora, nope] and [v, kv_lora], in 16 bits, under f32 in 32; rows of 16."""
    args = ["--scheme", "u4-g16", "--gpu-memory", "1G", "--gpu-bandwidth", "10"]
    half, whole = (plan(llmq, ROOT / "tests/golden/arch/deepseek-v2-mla", *args, "--activations", acts) for acts in ("bf16", "f32"))
    assert whole["gpu_weights_bytes"] - half["gpu_weights_bytes"] == 2 * 4 * (32 * 32 + 16 * 32) * 2  # inputs up to a multiple of 32


def test_an_indexers_keys_are_cached_beside_the_latents(llmq):
    """Of three layers the one in the middle has no indexer."""
    p = plan(llmq, ROOT / "tests/golden/arch/glm-moe-dsa", "--kv-cache-dtype", "f16")
    assert p["kv_bytes_per_token"] == (3 * (16 + 4) + 2 * 6) * 2


def test_four_bits_read_about_a_quarter(llmq, model):
    p = plan(llmq, model, "--scheme", "u4-g128")
    codes = 6 * LAYER / 2 + 6 * LAYER / 128 * 2
    norms = (2 * 6 + 1) * 256 * 4
    assert p["weights_bytes"] == codes + 2 * HEAD * 2 + norms


def test_what_does_not_fit_is_said(llmq, model):
    p = plan(llmq, model, "--memory", "8M")
    assert not p["fits"] and p["max_batch"] == 0
    assert "does not fit" in llmq("plan", model, "--memory", "8M", "--bandwidth", "10", "--gflops",
                                  "100").stdout


@pytest.mark.parametrize("args, code, says", [
    (["--ctx", "2000"], 2, "--ctx: expected at most 1024"),
    (["--memory", "1e-300"], 2, "--memory: expected a size"),
    (["--kernels", "sse9"], 2, "--kernels: expected auto or one of: ref"),
    (["--scheme", "u5-g128"], 2, "--scheme"),
    (["--gpu", "h100"], 2, "--gpu: expected one of b200, gb200, h200, h200-nvl, h100-sxm, "),
    (["--gpu", "rtx-4090-laptop"], 2, "rtx-3080; found 'rtx-4090-laptop'"),
    (["--scheme", "u4-g100"], 3, "group size 100 does not divide"),
])
def test_refusals(llmq, model, args, code, says):
    assert says in llmq("plan", model, *args, code=code).stderr


def test_what_quantizing_would_take(llmq, model, tmp_path):
    p = plan(llmq, model, "--threads", "2")["quantize"]
    assert list(p) == ["rtn", "nf4", "awq", "gptq", "auto"]
    for method, need in p.items():
        dry = llmq.json("quantize", model, "-m", method, "--dry-run", "--threads", "2")
        assert need == {"memory_bytes": dry["predicted_rss"], "least_memory_limit": dry["least_memory_limit"],
                        "disk_bytes": dry["predicted_disk"]}, method
    assert "to quantize it here" in llmq("plan", model).stdout
    llmq("quantize", model, "-o", tmp_path / "q", "-m", "rtn")
    assert "quantize" not in plan(llmq, tmp_path / "q")


def test_gates_on_streams_count_as_tiles_behind_the_layers_too(llmq, tmp_path):
    """Two a layer and one behind them, each [rank, 3 x 16] and back: a rank of 17 has 16 rows, or 32 columns, more."""
    config = json.loads((ROOT / "tests/golden/arch/qwen4-exp/config.json").read_text())
    bytes_of = {}
    for rank in (15, 16, 17):
        (tmp_path / "config.json").write_text(json.dumps({**config, "hc_lowrank": rank}))
        bytes_of[rank] = plan(llmq, tmp_path / "config.json")["weights_bytes"]
    assert bytes_of[15] == bytes_of[16] == bytes_of[17] - (2 * config["num_hidden_layers"] + 1) * 16 * 64 * 2


def test_projections_of_a_narrow_embedding_count_as_they_are_stored(llmq, tmp_path):
    config = json.loads((ROOT / "tests/golden/arch/opt-350m-postnorm/config.json").read_text())
    bytes_of, hidden, vocab = {}, config["hidden_size"], config["vocab_size"]
    for narrow in (16, 32):
        (tmp_path / "config.json").write_text(json.dumps({**config, "word_embed_proj_dim": narrow}))
        bytes_of[narrow] = plan(llmq, tmp_path / "config.json")["weights_bytes"]
    # 16 columns of the embedding; of the projection back, 16 rows; inputs of 16 and of 32 are one step of tiles
    assert bytes_of[32] - bytes_of[16] == (16 * vocab + 16 * hidden) * 2


# What was published of them, as their config.json says it.
PUBLISHED = {
    "GPT-3 175B": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 12288, "n_layer": 96,
                   "n_head": 96, "n_positions": 2048, "vocab_size": 50257},
    "BLOOM": {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 14336, "n_layer": 70,
              "n_head": 112, "vocab_size": 250880, "seq_length": 2048},
    "Llama-2-70B": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
                    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096,
                    "rms_norm_eps": 1e-5, "hidden_act": "silu"},
    "Llama-2-13B": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 5120,
                    "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
                    "num_key_value_heads": 40, "vocab_size": 32000, "max_position_embeddings": 4096,
                    "rms_norm_eps": 1e-5, "hidden_act": "silu"},
    "Falcon-40B": {"model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 8192,
                   "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
                   "new_decoder_architecture": True, "vocab_size": 65024, "alibi": False, "bias": False,
                   "parallel_attn": True, "multi_query": True, "max_position_embeddings": 2048},
    "OctoCoder": {"model_type": "gpt_bigcode", "architectures": ["GPTBigCodeForCausalLM"], "n_embd": 6144,
                  "n_inner": 24576, "n_layer": 40, "n_head": 48, "n_positions": 16384, "vocab_size": 49152,
                  "multi_query": True, "activation_function": "gelu_pytorch_tanh"},
}


def published(llmq, tmp_path, name, *args, **more):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**PUBLISHED[name], "torch_dtype": "bfloat16", **more}))
    return llmq.json("plan", path, "--bandwidth", "1555", "--gflops", "312000", *args)  # of an A100


@pytest.mark.parametrize("name, gigabytes", [("GPT-3 175B", 350), ("BLOOM", 352), ("Llama-2-70B", 140),
                                             ("Falcon-40B", 80), ("OctoCoder", 31)])
def test_weights_of_published_models(llmq, tmp_path, name, gigabytes):
    """To 4 %: the names round (Falcon-40B has 41.3 billion parameters). A tied head is one more copy."""
    p = published(llmq, tmp_path, name)
    assert 2e-9 * p["params"] == pytest.approx(gigabytes, rel=0.04)
    assert 1 <= p["weights_bytes"] / (2 * p["params"]) < 1.03


def test_narrow_weights_of_octocoder(llmq, tmp_path):
    """15.5 billion parameters at 16, 8 and 4 bits; embedding and head, a copy of it, stay in 16."""
    weights = {s: published(llmq, tmp_path, "OctoCoder", "--scheme", s)["weights_bytes"]
               for s in ("bf16", "i8-row", "u4-g128")}
    embed = 2 * 2 * 49152 * 6144 + 4 * 16384 * 6144  # positions are kept in f32
    linear = 15.5e9 - (49152 + 8192) * 6144  # published with 8192 positions
    assert weights["bf16"] == pytest.approx(2 * linear + embed, rel=0.01)
    assert weights["i8-row"] == pytest.approx(linear + embed, rel=0.01)
    assert weights["u4-g128"] == pytest.approx(linear * 4.125 / 8 + embed, rel=0.02)


def test_caches_of_published_models(llmq, tmp_path):
    llama = published(llmq, tmp_path, "Llama-2-13B")["kv_bytes_per_token"]
    assert llama * 4096 == 2 * 2 * 40 * 5120 * 4096  # 3.36 GB for one sequence
    many, one = (published(llmq, tmp_path, "OctoCoder", multi_query=m)["kv_bytes_per_token"] for m in (False, True))
    assert many // 2 * 16000 == 7_864_320_000 and one * 16000 < 400e6 and many == 48 * one
    grouped = published(llmq, tmp_path, "Llama-2-70B")["kv_bytes_per_token"]
    assert published(llmq, tmp_path, "Llama-2-70B", num_key_value_heads=64)["kv_bytes_per_token"] == 8 * grouped


def test_the_batch_that_keeps_an_a100_busy(llmq, tmp_path):
    """FLOP/s over twice the bandwidth where a weight is a byte: 312e12 / (2 * 1.555e12) = 100."""
    got = published(llmq, tmp_path, "Llama-2-13B", "--scheme", "i8-row")["optimal_batch"]
    assert got == pytest.approx(312e12 / (2 * 1.555e12), rel=0.03)
    assert published(llmq, tmp_path, "Llama-2-13B")["optimal_batch"] == pytest.approx(2 * 100.3, rel=0.01)


# config.json of repositories as they stand, less what is of images; text parameters in billions, by their cards or by hand.
CONFIGS = json.loads((ROOT / "tests/golden/configs.json").read_text())


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_of_todays_repositories_are_understood(llmq, tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]["config"]))
    got = llmq.json("plan", tmp_path, "--scheme", "u4-g128", "--bandwidth", "10", "--gflops", "100")
    assert got["params"] == pytest.approx(1e9 * CONFIGS[name]["billions"], rel=0.01)


def test_layers_with_a_window_take_a_window(llmq):
    """Gemma 3's golden: 4 of 6 layers see 16 positions. Of 128 tokens a sequence keeps 15 + 31 + a step's 16 of these."""
    model = ROOT / "tests/golden/arch/gemma3"
    p = plan(llmq, model, "--kv-cache-dtype", "f32", "--max-num-batched-tokens", "16")
    assert p["window_kv_bytes_per_token"] == p["kv_bytes_per_token"] * 4 // 6
    assert p["window_bytes_per_sequence"] == 5 * 16 * p["window_kv_bytes_per_token"]
    assert "window_bytes_per_sequence" not in plan(llmq, model, "--max-num-batched-tokens", "128")
    one = llmq.json("serve", model, "--dry-run", "--max-num-seqs", "1", "--max-num-batched-tokens", "16",
                    "--kv-cache-dtype", "f32")
    whole = llmq.json("serve", model, "--dry-run", "--max-num-seqs", "1", "--kv-cache-dtype", "f32")
    assert one["window_slots"] == 5 and "window_slots" not in whole
    assert whole["kv_bytes"] - one["kv_bytes"] == pytest.approx(3 * one["window_slot_bytes"], rel=0.02)


def test_what_ranks_take_is_counted(llmq, model, tmp_path):
    """A layer's sites have 256, 256, 256 and 768 inputs: their rows, a quarter of them once more, and rows of 256 at each that are
    compared; H of both, and M."""
    T, sites, H, weights = 128 * 512, 3 * 256 + 768, 3 * 256**2 + 768**2, LAYER * 4.25 / 8
    one, two, three = plan(llmq, model, "--ranks", "3")["quantize_ranks"]
    assert [x["ranks"] for x in (one, two, three)] == [1, 2, 3]
    assert one["received_bytes"] == 0 and one["efficiency"] == 1
    assert two["received_bytes"] == 6 * (4 * T // 2 * (sites * 5 // 4 + 4 * 256) + 2 * H + 2 * 256 * sites + weights // 2)
    assert 0.85 < two["efficiency"] <= 1 and two["memory_bytes"] < one["memory_bytes"]
    assert two["multiply_adds"] * 2 >= one["multiply_adds"] > two["multiply_adds"] > three["multiply_adds"]


def test_what_autos_passes_back_take_of_ranks_is_counted(llmq, model, tmp_path):
    """48 steps of a window and 64 windows of curvature, four at a time, whose states fit: forward and back, outputs and inputs of all products and
    heads; codes and scales of each step."""
    one, two, three = (x["auto_adds"] for x in plan(llmq, model, "--ranks", "3")["quantize_ranks"])
    config = json.loads((model / "config.json").read_text())
    D, F, q = config["hidden_size"], config["intermediate_size"], config["hidden_size"]
    kv = q * config["num_key_value_heads"] // config["num_attention_heads"]
    outputs, inputs = q + 2 * kv + D + 2 * F + D, 3 * D + q + 2 * D + F
    tokens = (48 + 64) * 512
    assert one["received_bytes"] == 0 and one["efficiency"] == 1
    assert two["received_bytes"] == 6 * (4 * tokens * (outputs + inputs + 2 * q + 2 * kv) + 48 * LAYER * (1 + 4 / 128)) // 2
    assert 1 > two["efficiency"] > 0.9 > three["efficiency"]
    assert one["multiply_adds"] > two["multiply_adds"] > three["multiply_adds"]
    assert "auto_adds" not in plan(llmq, ROOT / "tests/golden/arch/recurrent-gemma", "--ranks", "2")["quantize_ranks"][1]


def test_of_a_factor_that_ranks_share_each_receives_its_columns_and_its_rows(llmq, model, tmp_path):
    """An MLP of 2048 instead of 768: H of its down projection alone is that wide."""
    T, sites, H = 128 * 512, 3 * 256 + 2048, 3 * 256**2 + 2048**2
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 2048}))
    two = plan(llmq, tmp_path / "config.json", "--ranks", "2")["quantize_ranks"][1]
    weights = (LAYER + 3 * 256 * (2048 - 768)) * 4.25 / 8
    rows, sums = sites * 5 // 4 + 4 * 256, 2 * H + 2 * 256 * sites
    assert two["received_bytes"] == 6 * (4 * T // 2 * rows + sums + 3 * 2048**2 + weights // 2)


def test_the_memory_of_a_rank_is_about_what_a_dry_run_of_it_says(llmq, model, tmp_path):
    planned = {x["ranks"]: x["memory_bytes"] for x in plan(llmq, model, "--ranks", "3")["quantize_ranks"]}
    args = ["quantize", model, "-m", "gptq", "--no-check", "--dry-run", "--json", "--threads", "1", "--calib-samples", "128"]
    for n, out in ((1, llmq(*args).stdout), (3, by_sockets(llmq, 3, *args).out[0])):
        assert 0.8 < planned[n] / json.loads(out)["predicted_rss"] < 1.25, n


# One of experts, and one whose factors of 28672 inputs all ranks make together.
LARGE = [("moe", dict(hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, n_routed_experts=256, num_experts_per_tok=8,
                      num_hidden_layers=61, num_attention_heads=128, num_key_value_heads=128, q_lora_rank=1536, kv_lora_rank=512,
                      qk_nope_head_dim=128, qk_rope_head_dim=64, qk_head_dim=192, v_head_dim=128, vocab_size=129280,
                      first_k_dense_replace=3, n_group=8, topk_group=4), 671e9, 0.98),
         ("dense", dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=8192, intermediate_size=28672,
                        num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, vocab_size=128256, head_dim=128), 70.6e9, 0.9)]


@pytest.mark.parametrize("name,config,params,at_8", LARGE, ids=[x[0] for x in LARGE])
def test_ranks_are_planned_from_a_config_alone(llmq, tmp_path, name, config, params, at_8):
    like = json.loads((ROOT / "tests/golden/arch/deepseek-v3/config.json").read_text()) if name == "moe" else {"rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps({**like, "max_position_embeddings": 4096, **config}))
    p = plan(llmq, tmp_path / "config.json", "--ranks", "64")
    assert abs(p["params"] / params - 1) < 0.01
    rows = {x["ranks"]: x for x in p["quantize_ranks"]}
    assert list(rows) == [1, 2, 4, 8, 16, 32, 64] and rows[8]["efficiency"] > at_8
    for a, b in zip(p["quantize_ranks"], p["quantize_ranks"][1:]):
        several = name == "dense" and a["ranks"] == 1  # one process has one factor at a time, two have those of their pieces
        assert (b["memory_bytes"] < a["memory_bytes"] or several) and b["multiply_adds"] < a["multiply_adds"]
        assert b["efficiency"] <= a["efficiency"]
