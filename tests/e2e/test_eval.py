"""llmq eval and llmq logits against transformers (tests/golden/make_eval.py), gates, bad input."""
import json
import os
import shutil
import struct
import subprocess

import pytest

from conftest import ROOT, TEXT

CASES = json.loads((ROOT / "tests/golden/eval/expected.json").read_text())


def run_eval(llmq, args, **more):
    args = args.split()
    args = [f"models/{a}" if a.startswith("novels-") else a for a in args]
    if "--text" not in args:
        args += ["--text", TEXT]
    return llmq.json("eval", *args, **more)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["args"])
def test_figures_are_those_of_transformers(llmq, case):
    got = run_eval(llmq, case["args"])
    assert got["perplexity"] == pytest.approx(case["perplexity"], rel=2e-6)  # 46.8920 to 4 digits
    assert got["tokens"] == case["tokens"] and got["windows"] == case["windows"]
    for key in ("kl_mean", "kl_p99", "top1_agree"):
        if key in case:
            assert got[key] == pytest.approx(case[key], rel=1e-4), key


def test_windows_begin_as_the_tokenizer_begins_a_text(llmq, tmp_path):
    """Unasked; a model whose tokenizer adds no BOS has one if it is asked for."""
    bare = tmp_path / "bare"
    shutil.copytree(ROOT / "models/novels-1m", bare)
    tok = json.loads((bare / "tokenizer.json").read_text())
    (bare / "tokenizer.json").chmod(0o644)
    (bare / "tokenizer.json").write_text(json.dumps({**tok, "post_processor": None}))
    nll = {(str(m), how): run_eval(llmq, f"{m} --ctx 64 --windows 3 {how}")["nll"] for m in ("novels-1m", bare) for how in ("", "--bos", "--no-bos")}
    with_bos, without = nll["novels-1m", ""], nll["novels-1m", "--no-bos"]
    assert with_bos == nll["novels-1m", "--bos"] == nll[str(bare), "--bos"]
    assert without == nll[str(bare), ""] == nll[str(bare), "--no-bos"] != with_bos


def test_what_is_said_of_the_windows_is_so(llmq, tmp_path):
    args = ["eval", "models/novels-1m", "--text", TEXT, "--ctx", 64, "--windows", 3]
    for how, has in (([], True), (["--no-bos"], False)):
        assert ("come after BOS" in llmq(*args, *how).stdout) == has == llmq.json(*args, *how)["bos"]
        out = tmp_path / f"{has}.scores"
        llmq(*args, *how, "--shard", "1/1", "--out", out)
        assert ("come after BOS" in llmq("eval", "--merge", out).stdout) == has == llmq.json("eval", "--merge", out)["bos"]
    assert "bos" not in llmq.json(*args, "--ruler", "gptq")
    assert "--no-bos: the ruler gptq" in llmq(*args, "--ruler", "gptq", "--no-bos", code=2).stderr


@pytest.mark.parametrize("first, why", [([5, 6, 7, 8, 9], "found 5 up to 9"), ([4096], "found 1 up to 4096")], ids=["too many", "no embedding"])
def test_ids_that_no_window_can_begin_with_are_left_out_unless_asked_for(llmq, tmp_path, first, why):
    """As calibration leaves them out."""
    model = tmp_path / "model"
    shutil.copytree(ROOT / "models/novels-1m", model)
    path = model / "tokenizer.json"
    path.chmod(0o644)
    tok = json.loads(path.read_text())
    tok["added_tokens"].append({"id": 4096, "content": "<more>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                                "special": True})
    tok["post_processor"] = {"type": "TemplateProcessing",
                             "single": [*({"SpecialToken": {"id": str(i), "type_id": 0}} for i in first), {"Sequence": {"id": "A", "type_id": 0}}],
                             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                             "special_tokens": {str(i): {"id": str(i), "ids": [i], "tokens": [str(i)]} for i in first}}
    path.write_text(json.dumps(tok))
    args = ["eval", model, "--text", TEXT, "--ctx", 64, "--windows", 3]
    p = llmq(*args)
    assert why in p.stderr and "begin without BOS" in p.stderr and "come after BOS" not in p.stdout
    assert llmq.json(*args)["nll"] == llmq.json(*args, "--no-bos")["nll"]
    assert why in llmq(*args, "--bos", code=3).stderr


def test_several_lengths_give_a_row_each(llmq):
    got = run_eval(llmq, "novels-1m --ctx 64,32 --windows 3")
    assert [r["ctx"] for r in got["by_ctx"]] == [64, 32]
    assert got["perplexity"] == got["by_ctx"][0]["perplexity"]
    assert [r["tokens"] for r in got["by_ctx"]] == [189, 93]


def test_threads_change_no_digit(llmq):
    args = "novels-1m --ctx 64 --windows 3 --activations int8 --kv-cache-dtype f16 --threads "
    one, two, seven = (run_eval(llmq, args + n) for n in "127")
    assert one["nll"] == two["nll"] == seven["nll"]


def test_the_cache_type_shows_in_the_perplexity(llmq):
    """4 bits cost most, 8 bits little, 16 bits next to nothing; every type gives its own figure."""
    nll = {d: run_eval(llmq, f"novels-1m --ctx 96 --windows 4 --kv-cache-dtype {d}")["nll"]
           for d in ("f32", "f16", "bf16", "int8", "fp8", "int4")}
    off = {d: abs(v - nll["f32"]) for d, v in nll.items()}
    assert len(set(nll.values())) == 6
    assert max(off["f16"], off["bf16"]) < 1e-3 and off["int8"] < 0.01 and off["fp8"] < 0.03
    assert nll["f32"] < nll["int4"] < nll["f32"] + 0.3


@pytest.mark.parametrize("option, least, most", [
    ("--activations int8", 1e-6, 1e-3), ("--activations bf16", 0, 1e-4), ("--kv-cache-dtype int8", 1e-6, 1e-3),
    ("--kv-cache-dtype int4", 1e-3, 0.01), ("--kv-cache-dtype k=int8,v=int4", 1e-4, 0.003)])
def test_the_reference_runs_with_f32_whatever_the_model_does(llmq, tmp_path, option, least, most):
    """So the divergence from the same file is what the option costs."""
    packed = tmp_path / "packed.llmq"
    llmq("quantize", "models/novels-6m", "-o", packed, "--method", "rtn", "--bits", 4, "--group-size", 128)
    args = ["eval", packed, "--text", TEXT, "--ctx", 256, "--windows", 4]
    plain = llmq.json(*args)
    got = llmq.json(*args, *option.split(), "--ref", packed)
    assert got["ref_perplexity"] == plain["perplexity"]
    assert least < got["kl_mean"] < most


@pytest.mark.parametrize("gate,code", [
    ("--max-ppl 1000000", 0), ("--max-ppl 2", 4),
    ("--ref models/novels-1m --max-kl 0", 0), ("--ref models/novels-6m --max-kl 0.01", 4),
    ("--ref models/novels-6m --max-kl-p99 0.01", 4), ("--max-kl 1", 2), ("--ctx 1", 2),
    ("--bos --ruler gptq", 2),
])
def test_gates_decide_the_exit_code(llmq, gate, code):
    args = ["eval", "models/novels-1m", "--text", TEXT, "--windows", 2]
    if "--ctx" not in gate:
        args += ["--ctx", 32]
    p = llmq(*args, *gate.split(), code=code)
    assert bool(p.stderr) == bool(code)
    if code == 4:
        assert "expected at most" in p.stderr and "perplexity" in p.stdout


def test_bad_input_is_one_sentence(llmq, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    for text in (short, empty):
        p = llmq("eval", "models/novels-1m", "--text", text, "--ctx", 512, code=3)
        assert "at least one window of 512 tokens" in p.stderr
    p = llmq("eval", "models/novels-1m", "--text", tmp_path / "none.txt", code=3)
    assert "none.txt" in p.stderr
    p = llmq("eval", "tests/golden/arch/llama-128", "--text", TEXT, code=3)
    assert "tokenizer.json" in p.stderr


KLD = ROOT / "tests/golden/eval/novels-6m-8x2.kld"


def llama_perplexity():
    """Rows of what it printed: name -> (value, standard error or None), percents as parts."""
    rows = {}
    for line in (ROOT / "tests/golden/eval/llama-perplexity.txt").read_text().splitlines():
        if line[0] != "#":
            name, figures = line.split(":")
            of = 100 if figures.rstrip().endswith("%") else 1
            value, *error = (float(f) / of for f in figures.replace("%", "").split("±"))
            rows[" ".join(name.split())] = (value, *error)
    return rows


LLAMA_ROWS = {"Mean PPL(Q)": ("perplexity", "perplexity_error"), "Mean PPL(base)": ("ref_perplexity",),
              "Mean PPL(Q)/PPL(base)": ("perplexity_ratio", "perplexity_ratio_error"),
              "Mean PPL(Q)-PPL(base)": ("perplexity_diff", "perplexity_diff_error"),
              "Mean KLD": ("kl_mean", "kl_error"), "Maximum KLD": ("kl_max",), "99.9% KLD": ("kl_p999",),
              "99.0% KLD": ("kl_p99",), "95.0% KLD": ("kl_p95",), "90.0% KLD": ("kl_p90",), "Median KLD": ("kl_median",),
              "Mean Δp": ("dp_mean", "dp_error"), "RMS Δp": ("dp_rms", "dp_rms_error"),
              "Same top p": ("top1_agree", "top1_error")}


@pytest.mark.parametrize("how", ["a base file", "a model"])
def test_figures_are_those_of_llama_perplexity(llmq, tmp_path, how):
    """Printed to six digits, percents to three; its sums are in float. Beside a model nothing is rounded to a base's codes,
    which are a 65,535th of 16 nats apart."""
    base, windows = tmp_path / "base.kld", ["--ruler", "llama.cpp", "--ctx", 128, "--windows", 6, "--text", TEXT]
    if how == "a model":
        got = llmq.json("eval", "models/novels-1m", *windows, "--ref", "models/novels-6m")
    else:
        llmq("eval", "models/novels-6m", *windows, "--save-kl-divergence-base", base)
        got = llmq.json("eval", "models/novels-1m", "--kl-divergence-base", base)
        assert (got["ctx"], got["windows"], got["tokens"], got["ruler"]) == (128, 6, 378, "llama.cpp")
    theirs, off = llama_perplexity(), 5e-6 if how == "a base file" else 2e-5
    for name, keys in LLAMA_ROWS.items():
        for key, want in zip(keys, theirs[name]):
            assert got[key] == pytest.approx(want, rel=off, abs=16 / 65535), (name, key)


def test_a_base_file_is_the_one_that_llama_perplexity_writes(llmq, tmp_path):
    """Byte by byte but for rounding: a code may be the neighbour."""
    own = tmp_path / "own.kld"
    llmq("eval", "models/novels-6m", "--ruler", "llama.cpp", "--ctx", 8, "--windows", 2, "--text", TEXT,
         "--save-kl-divergence-base", own)
    a, b = own.read_bytes(), KLD.read_bytes()
    head, row = 20 + 4 * 16, 8 + 2 * 4096
    assert len(a) == len(b) == head + 6 * row and a[:head] == b[:head]
    for at in range(head, len(a), row):
        assert struct.unpack_from("<2f", a, at) == pytest.approx(struct.unpack_from("<2f", b, at), rel=1e-5)
        codes = zip(struct.unpack_from("<4096H", a, at + 8), struct.unpack_from("<4096H", b, at + 8))
        assert max(abs(x - y) for x, y in codes) <= 1


def test_a_base_file_of_llama_perplexity_is_read(llmq):
    same = llmq.json("eval", "models/novels-6m", "--kl-divergence-base", KLD)
    assert same["tokens"] == 6 and same["top1_agree"] == 1 and abs(same["kl_mean"]) < 16 / 65535
    assert same["perplexity"] == pytest.approx(43.9957, abs=5e-3) == pytest.approx(same["ref_perplexity"], rel=1e-3)
    first = llmq.json("eval", "models/novels-6m", "--kl-divergence-base", KLD, "--windows", 1)
    assert first["perplexity"] == pytest.approx(58.0952, abs=5e-3)
    llmq("eval", "models/novels-1m", "--kl-divergence-base", KLD, "--max-kl", 0.01, code=4)


@pytest.mark.parametrize("args, code, says", [
    (["--kl-divergence-base", KLD, "--ctx", 8], 2, "--ctx"), (["--kl-divergence-base", KLD, "--text", TEXT], 2, "--text"),
    (["--kl-divergence-base", KLD, "--ref", "models/novels-6m"], 2, "--ref"),
    (["--kl-divergence-base", KLD, "--ruler", "gptq"], 2, "llama.cpp"), ([], 2, "--text"),
    (["--kl-divergence-base", "Makefile"], 3, "_logits_"), (["--kl-divergence-base", "/nowhere"], 3, "/nowhere"),
    (["--text", TEXT, "--save-kl-divergence-base", "x"], 2, "--ruler llama.cpp"),
    (["--text", TEXT, "--ruler", "llama.cpp", "--ctx", "8,16", "--save-kl-divergence-base", "x"], 2, "one --ctx")])
def test_base_files_go_with_what_is_theirs_alone(llmq, args, code, says):
    assert says in llmq("eval", "models/novels-1m", *args, code=code).stderr


def test_a_base_of_another_vocabulary_is_refused(llmq, tmp_path):
    cut = tmp_path / "cut.kld"
    cut.write_bytes(KLD.read_bytes()[:-1])
    assert "49284 bytes, found 49283" in llmq("eval", "models/novels-6m", "--kl-divergence-base", cut, code=3).stderr
    p = llmq("eval", "tests/golden/arch/qwen3", "--kl-divergence-base", KLD, code=3)
    assert "vocabulary of 320, found 4096" in p.stderr


def test_the_table_of_the_standard_figures(llmq, tmp_path):
    """Of the script: both rulers, and the divergence from a model or from a base file."""
    env = {**os.environ, "TEXT": str(ROOT / "tests/golden/text/wikitext2-test-excerpt.txt"),
           "CTX": "256", "CHUNKS": "128", "WINDOWS": "3"}

    def table(model, **more):
        p = subprocess.run(["sh", ROOT / "scripts/standard-eval.sh", model], cwd=ROOT, env={**env, **more}, text=True,
                           capture_output=True, check=True)
        return dict(line.strip("| ").split(" | ") for line in p.stdout.splitlines()[2:])

    alone, beside = table("models/novels-1m"), table("models/novels-1m", REF="models/novels-6m")
    want = llmq.json("eval", "models/novels-1m", "--text", env["TEXT"], "--ruler", "gptq", "--join-rows", "--ctx", 256,
                     "--windows", 3)
    row = "perplexity, GPTQ's ruler, 3 x 256"
    assert alone[row] == beside[row] == f"{want['perplexity']:.4f} ± {want['perplexity_error']:.4f}"
    assert "mean KL divergence" not in alone and float(beside["KL divergence, 99.9 %"]) > 0
    base = tmp_path / "base.kld"
    llmq("eval", "models/novels-6m", "--text", env["TEXT"], "--ruler", "llama.cpp", "--ctx", 128, "--windows", 3,
         "--save-kl-divergence-base", base)
    from_file = table("models/novels-1m", BASE=str(base))
    assert from_file["same top token"] == beside["same top token"] and alone["bits per weight"].startswith("16.")
    p = subprocess.run(["sh", ROOT / "scripts/standard-eval.sh", "models/novels-1m"], cwd=ROOT, text=True,
                       env={**env, "TEXT": "none.txt"}, capture_output=True, check=False)
    assert p.returncode == 2 and "none.txt" in p.stderr


def read_f32(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    t = json.loads(data[8:8 + n])["logits"]
    begin, end = t["data_offsets"]
    assert t["dtype"] == "F32"
    return t["shape"], data[8 + n + begin:8 + n + end]


def test_logits_are_written_and_ids_come_from_either_side(llmq, tmp_path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    ids = tmp_path / "ids.txt"
    ids.write_text("1, 5\n9,\t300 2\n")
    got = llmq.json("logits", "tests/golden/arch/qwen3", "--ids", "1,5,9,300,2", "-o", a)
    assert (got["vocab"], got["tokens"]) == (320, 5)
    llmq("logits", "tests/golden/arch/qwen3", "--ids-file", ids, "--threads", 1, "-o", b)
    shape, data = read_f32(a)
    assert shape == [5, 320] and len(data) == 5 * 320 * 4
    assert (shape, data) == read_f32(b)


@pytest.mark.parametrize("args,code,says", [
    (["--ids", "1,320"], 3, "0..319"), (["--ids", "1,-2"], 2, "--ids"), (["--ids", ""], 2, "--ids"),
    ([], 2, "--ids"), (["--ids", "1", "--ids-file", "x"], 2, "--ids"),
    (["--ids-file", "/nowhere"], 3, "/nowhere"), (["--ids-file", "Makefile"], 3, "Makefile"),
])
def test_bad_ids_are_refused(llmq, tmp_path, args, code, says):
    out = tmp_path / "x.safetensors"
    p = llmq("logits", "tests/golden/arch/qwen3", *args, "-o", out, code=code)
    assert says in p.stderr and not out.exists()


def scaled_norm(model, to, scale):
    """The model with its last norm times `scale`: logits as many times as large."""
    shutil.copytree(model, to)
    data = bytearray((to / "model.safetensors").read_bytes())
    n = struct.unpack_from("<Q", data)[0]
    begin, end = json.loads(data[8:8 + n])["model.norm.weight"]["data_offsets"]
    for at in range(8 + n + begin, 8 + n + end, 2):
        value = struct.unpack("<f", b"\0\0" + data[at:at + 2])[0] * scale
        data[at:at + 2] = struct.pack("<f", value)[2:]
    (to / "model.safetensors").write_bytes(data)
    return to


def test_a_perplexity_that_is_no_number_is_an_error(llmq, draft, tmp_path):
    """A damaged model's: never printed as inf or nan."""
    bad = scaled_norm(draft, tmp_path / "bad", 1e5)
    args = ["--text", TEXT, "--ctx", 32, "--windows", 2]
    for why, command in [("the model", [bad]), ("a gate", [bad, "--max-ppl", "1e300"]),
                         ("the reference", [draft, "--ref", bad])]:
        p = llmq("eval", *command, *args, code=3)
        assert "perplexity: expected a finite number" in p.stderr and "inf" not in p.stdout, why
        assert ("reference model" in p.stderr) == (why == "the reference"), why
        assert "window" in p.stderr, why


SHARDS = [("plain", ["--ctx", "64", "--windows", "11"]), ("two lengths", ["--ctx", "64,48"]),
          ("a reference, and its windows", ["--ctx", "32", "--windows", "9", "--ref", "models/novels-6m"]),
          ("as llama-perplexity", ["--ctx", "64", "--ruler", "llama.cpp", "--ref", "models/novels-6m", "--windows", "8"])]


@pytest.mark.parametrize("why,args", SHARDS, ids=[x[0] for x in SHARDS])
def test_shards_give_the_figures_of_one_run(llmq, draft, tmp_path, why, args):
    text = tmp_path / "text"
    text.write_text(TEXT.read_text()[:6000])
    args = [draft, "--text", text, *args]
    whole = llmq.json("eval", *args)
    for n in (1, 3):
        files = [tmp_path / f"{i}of{n}" for i in range(n)]
        for i, f in enumerate(files):
            llmq("eval", *args, "--shard", f"{i + 1}/{n}", "-o", f, "--threads", i % 2 + 1)
        merged = llmq.json("eval", "--merge", *reversed(files))
        assert {**merged, "seconds": 0} == {**whole, "seconds": 0}
    shown = [llmq("eval", *x).stdout.rsplit("\n\n", 1)[0] for x in (args, ["--merge", *files])]
    assert shown[0] == shown[1]
    assert "perplexity" in llmq("eval", "--merge", *files, "--max-ppl", "2", code=4).stderr


def test_of_kl_bases_too(llmq, draft, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXT.read_text()[:3000])
    llmq("eval", "models/novels-6m", "--text", text, "--ctx", 64, "--ruler", "llama.cpp", "--save-kl-divergence-base", tmp_path / "base")
    args = [draft, "--kl-divergence-base", tmp_path / "base"]
    for i in (1, 2):
        llmq("eval", *args, "-o", tmp_path / str(i), "--shard", "2", env={**os.environ, "JOB_COMPLETION_INDEX": str(i - 1)})
    assert {**llmq.json("eval", "--merge", tmp_path / "1", tmp_path / "2"), "seconds": 0} == {**llmq.json("eval", *args), "seconds": 0}


def test_shards_that_do_not_fit_are_refused(llmq, draft, tmp_path):
    args = ["eval", draft, "--text", TEXT, "--ctx", 32, "--windows", 5]
    one, two = tmp_path / "1", tmp_path / "2"
    for i, f in ((1, one), (2, two)):
        llmq(*args, "--shard", f"{i}/2", "-o", f)
    other = tmp_path / "other"
    llmq(*args, "--activations", "bf16", "--shard", "2/2", "-o", other)
    rope = tmp_path / "rope"
    llmq(*args, "--rope-scaling", "yarn,4", "--shard", "2/2", "-o", rope)
    more = tmp_path / "more"
    llmq(*args[:-1], 6, "--shard", "2/2", "-o", more)
    bad = tmp_path / "bad"
    data = bytearray(two.read_bytes())
    data[8 + int.from_bytes(data[:8], "little") + 3] ^= 1
    bad.write_bytes(data)
    edited = [tmp_path / "edited1", tmp_path / "edited2"]
    for f, to in zip((one, two), edited):
        assert f.read_bytes().count(b'"ctx":32') == 1
        to.write_bytes(f.read_bytes().replace(b'"ctx":32', b'"ctx":64'))
    for text, code, *args in [
            ("window 2 is in none of the files", 3, "--merge", one), ("found window 0 again", 3, "--merge", one, two, one),
            ("a share of the same evaluation", 3, "--merge", one, other), ("a share of the same evaluation", 3, "--merge", one, rope),
            ("a share of the same windows", 3, "--merge", one, more),
            ("other bytes: the file is damaged", 3, "--merge", one, bad), ("other bytes: the file is damaged", 3, "--merge", *edited),
            ("expected scores", 3, "--merge", draft / "model.safetensors"),
            ("--ctx goes without --merge", 2, "--merge", one, two, "--ctx", 4), ("--max-kl and", 2, "--merge", one, two, "--max-kl", 1),
            ("unexpected argument", 2, draft, one, "--text", TEXT), ("--shard needs --out", 2, draft, "--text", TEXT, "--shard", "1/2"),
            ("--max-ppl: of all windows", 2, draft, "--text", TEXT, "--shard", "1/2", "-o", tmp_path / "x", "--max-ppl", 50),
            ("a window for each of 9 shards, found 5", 3, *args[1:], "--shard", "1/9", "-o", tmp_path / "x")]:
        assert text in llmq("eval", *args, code=code).stderr, text
    assert not (tmp_path / "x").exists()
    for what in (tmp_path / "none", tmp_path, TEXT):
        assert llmq("eval", "--merge", what, code=3).stderr.count(f"{what}: ") == 1


def test_an_adapter_is_known_by_its_contents(llmq, draft, tmp_path):
    """Not by its path, which differs between machines, or is the same where its files differ."""
    adapters, files = ROOT / "tests/golden/lora", []
    for i, adapter in enumerate(("plain", "plain", "dora")):
        at = tmp_path / str(i % 2)
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(adapters / adapter, at)
        files.append(tmp_path / f"{i}.scores")
        llmq("eval", draft, "--text", TEXT, "--ctx", 32, "--windows", 4, "--lora", at, "--shard", f"{1 + i % 2}/2", "-o", files[-1])
    llmq("eval", "--merge", files[0], files[1])
    assert "a share of the same evaluation" in llmq("eval", "--merge", files[2], files[1], code=3).stderr


def test_what_is_read_is_never_replaced(llmq, draft, tmp_path):
    model, ref, text, base = tmp_path / "model", tmp_path / "ref", tmp_path / "text", tmp_path / "base"
    shutil.copytree(draft, model)
    shutil.copytree(draft, ref)
    text.write_text(TEXT.read_text()[:3000])
    args = ["eval", model, "--text", text, "--ctx", 32]
    llmq(*args, "--ruler", "llama.cpp", "--save-kl-divergence-base", base)
    notes = tmp_path / "notes"
    notes.write_text("somebody's")
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    for *more, found in [("-o", text, "a file of its own"), ("-o", model / "model.safetensors", "--out: expected"),
                         ("--ref", ref, "-o", ref / "model.safetensors", "--out: expected"),
                         ("-o", notes, "a new name or that of scores"),
                         ("--ruler", "llama.cpp", "--save-kl-divergence-base", text, "a file of its own")]:
        assert found in llmq(*args, *more, code=2).stderr, more
    assert "a file of its own" in llmq("eval", model, "--kl-divergence-base", base, "-o", base, code=2).stderr
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before
    for option in ("-o", "--save-kl-divergence-base"):  # before the model is opened
        assert f"{text}/x: " in llmq("eval", tmp_path / "none", *args[2:], "--ruler", "llama.cpp", option, text / "x", code=2).stderr
    for _ in range(2):  # scores that are there are replaced
        llmq(*args, "-o", tmp_path / "scores")
