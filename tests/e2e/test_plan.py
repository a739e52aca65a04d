"""`llmq plan`: arithmetic that can be checked by hand."""
import pytest

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
    assert p["kv_bytes_per_token"] == 2 * 6 * 2 * 64 * 2  # f16 is the default of a run
    assert plan(llmq, model, "--kv-cache-dtype", "f32")["kv_bytes_per_token"] == 2 * 6 * 2 * 64 * 4
    assert p["max_len"] == 1024


@pytest.mark.parametrize("dtype, row", [("bf16", 128), ("int8", 4 + 64), ("fp8", 4 + 64), ("int4", 4 + 32)])
def test_narrow_caches_count_their_scales(llmq, model, dtype, row):
    assert plan(llmq, model, "--kv-cache-dtype", dtype)["kv_bytes_per_token"] == 2 * 6 * 2 * row


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
    (["--scheme", "u5-g128"], 2, "--scheme"),
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
