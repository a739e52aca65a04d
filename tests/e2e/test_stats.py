"""llmq quantize --stats-only, llmq stats merge, quantize --stats: the same sums from any number of shards."""
import json
import os
import pathlib
import struct

import pytest

from test_quantize import digest

ARCH = pathlib.Path(__file__).resolve().parents[1] / "golden/arch"
TEXT = ["--calib-samples", "18", "--calib-len", "64"]


def shards(llmq, model, tmp_path, n, *args):
    files = [tmp_path / f"{i}of{n}.stats" for i in range(1, n + 1)]
    for i, f in enumerate(files):
        llmq("quantize", model, "--stats-only", "--shard", f"{i + 1}/{n}", "-o", f, *args)
    return files


@pytest.mark.parametrize("folder,args", [("", ["-m", "gptq", *TEXT]), ("qwen2-moe-shared", ["-m", "awq", "-g", "16"]), ("jamba", ["-m", "int8"])])
def test_the_sums_do_not_depend_on_the_number_of_shards(llmq, draft, tmp_path, folder, args):
    model = ARCH / folder if folder else draft
    if folder:
        (tmp_path / "c.ids").write_text(" ".join(str(i * 7919 % 61) for i in range(256)))
        args = [*args, "--calib", tmp_path / "c.ids", "--calib-samples", "16", "--calib-len", "16"]
    made = set()
    for n in (1, 2, 3):
        files = shards(llmq, model, tmp_path, n, *args)
        llmq("stats", "merge", *reversed(files), "-o", tmp_path / "all.stats")
        made.add(digest(tmp_path / "all.stats"))
    assert len(made) == 1
    llmq("quantize", model, "--stats", tmp_path / "all.stats", "-o", tmp_path / "merged", *args)
    llmq("quantize", model, *(x for f in files for x in ("--stats", f)), "-o", tmp_path / "apart", *args)
    assert digest(tmp_path / "merged") == digest(tmp_path / "apart")
    kept = llmq.json("inspect", tmp_path / "merged")["provenance"]
    assert kept["calibration"]["inputs"] == "source"


def test_one_part_of_text_has_the_sums_of_calibration(llmq, draft, tmp_path):
    """With one window there is one part, and of the first layer nothing is rounded before. Sums in files know no original to match."""
    args = ["-m", "gptq", "--calib-samples", "1", "--calib-len", "128", "--no-check", "--skip", r"layers\.[1-9]"]
    llmq("quantize", draft, "--stats-only", "-o", tmp_path / "s", *args)
    llmq("quantize", draft, "--stats", tmp_path / "s", "-o", tmp_path / "by-file", *args)
    llmq("quantize", draft, "-o", tmp_path / "by-text", *args, "--no-match")
    tensors = [{t["name"]: t["xxh3"] for t in llmq.json("inspect", tmp_path / x)["tensors"]} for x in ("by-file", "by-text")]
    assert tensors[0] == tensors[1]


ENV = [("an array of Slurm", ["--shard", "auto"], {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "4"}),
       ("an array of Slurm in steps", ["--shard", "auto"], {"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "2",
                                           "SLURM_ARRAY_TASK_STEP": "4"}),
       ("an Indexed Job", ["--shard", "3"], {"JOB_COMPLETION_INDEX": "1"})]


def test_more_parts_allow_more_shards(llmq, draft, tmp_path):
    args = ["-m", "gptq", "--calib-samples", "40", "--calib-len", "16", "--stats-parts", "33"]
    made = set()
    for n in (2, 33):
        files = shards(llmq, draft, tmp_path, n, *args)
        llmq("stats", "merge", *files, "-o", tmp_path / "all.stats")
        made.add(digest(tmp_path / "all.stats"))
    assert len(made) == 1
    llmq("quantize", draft, "--stats", tmp_path / "all.stats", "-o", tmp_path / "q", *args[:-2])
    other = tmp_path / "other"
    llmq("quantize", draft, "--stats-only", "--shard", "2/2", "-o", other, *args[:-2])
    assert "of the same model, text and options" in llmq("stats", "merge", tmp_path / "1of2.stats", other, "-o", tmp_path / "x", code=3).stderr
    assert "--stats-parts needs --stats-only" in llmq("quantize", draft, "-o", tmp_path / "x", *args, code=2).stderr


def test_what_was_made_is_said_in_json(llmq, draft, tmp_path):
    said = llmq.json("quantize", draft, "--stats-only", "--shard", "2/3", "-o", tmp_path / "s", "-m", "gptq", *TEXT)
    assert said == {"out": str(tmp_path / "s"), "shard": 2, "shards": 3, "parts": 16, "windows": 18, "tokens": 18 * 64}


@pytest.mark.parametrize("why,more,env", ENV, ids=[x[0] for x in ENV])
def test_the_shard_is_found_in_the_environment(llmq, draft, tmp_path, why, more, env):
    args = ["quantize", draft, "--stats-only", "-m", "gptq", *TEXT]
    llmq(*args, "--shard", "2/3", "-o", tmp_path / "said")
    llmq(*args, *more, "-o", tmp_path / "found", env={**os.environ, **env})
    assert digest(tmp_path / "said") == digest(tmp_path / "found")


def test_an_array_of_an_outer_job_takes_no_share_unasked(llmq, draft, tmp_path):
    env = {**os.environ, "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "3"}
    args = ["quantize", draft, "--stats-only", "-m", "gptq", *TEXT]
    assert llmq.json(*args, "-o", tmp_path / "s", env=env)["shards"] == 1
    text = tmp_path / "text"
    text.write_text("It was the best of times, it was the worst of times. " * 40)
    scores = ["eval", draft, "--text", text, "--ctx", "64", "--windows", "3"]
    llmq(*scores, "-o", tmp_path / "inside.scores", env=env)
    llmq(*scores, "-o", tmp_path / "outside.scores")
    assert digest(tmp_path / "inside.scores") == digest(tmp_path / "outside.scores")


NOT_SHARDS = [("no array", {}, "--shard auto: expected an array of Slurm (SLURM_ARRAY_TASK_ID), found none"),
              ("no count", {"SLURM_ARRAY_TASK_ID": "2"}, "of how many"),
              ("no number", {"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "3"}, "SLURM_ARRAY_TASK_ID: expected a number"),
              ("between the steps", {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "0",
                                     "SLURM_ARRAY_TASK_STEP": "2"}, "in steps of 2"),
              ("a job's index is no number", {"JOB_COMPLETION_INDEX": "x"}, "JOB_COMPLETION_INDEX: expected a number"),
              ("a job's index is too large", {"JOB_COMPLETION_INDEX": "3"}, "expected 1 to 3 of 3, found 4")]


@pytest.mark.parametrize("why,env,text", NOT_SHARDS, ids=[x[0] for x in NOT_SHARDS])
def test_an_environment_that_says_no_shard_is_refused(llmq, draft, tmp_path, why, env, text):
    shard = "3" if "JOB_COMPLETION_INDEX" in env else "auto"
    args = ["quantize", draft, "--stats-only", "--shard", shard, "-m", "gptq", *TEXT, "-o", tmp_path / "x"]
    assert text in llmq(*args, env={**os.environ, **env}, code=2).stderr
    assert not (tmp_path / "x").exists()


def test_what_does_not_fit_is_refused(llmq, draft, model, tmp_path):
    args = ["-m", "gptq", *TEXT]
    one, two = shards(llmq, draft, tmp_path, 2, *args)
    stats = ["--stats", one, "--stats", two]
    (tmp_path / "link").hardlink_to(one)
    notes = tmp_path / "notes"
    notes.write_text("somebody's")
    for text, code, *command in [
            ("part 8 is in none", 3, "stats", "merge", one, "-o", tmp_path / "x"),
            ("found part 0 again", 3, "stats", "merge", one, two, one, "-o", tmp_path / "x"),
            ("expected statistics", 3, "stats", "merge", draft / "model.safetensors", "-o", tmp_path / "x"),
            ("expected merge", 2, "stats", "split", one, "-o", tmp_path / "x"),
            ("found another source", 3, "quantize", model, *stats, "-o", tmp_path / "x", *args),
            ("found another calibration", 3, "quantize", draft, *stats, "-o", tmp_path / "x", *args, "--seed", "7"),
            ("found another rotation", 3, "quantize", draft, *stats, "-o", tmp_path / "x", *args, "--rotate"),
            ("--out: expected a file of its own", 2, "quantize", draft, *stats, "-o", one.parent / "." / one.name, *args),
            ("--out: expected a file of its own", 2, "stats", "merge", one, two, "-o", tmp_path / "link"),
            ("--out: expected a new name or that of statistics", 2, "stats", "merge", one, two, "-o", notes),
            ("--report: --stats-only makes no model", 2, "quantize", draft, "--stats-only", "--report", tmp_path / "r", "-o", tmp_path / "x", *args),
            ("expected a method that goes by text", 2, "quantize", draft, *stats, "-o", tmp_path / "x", "-m", "rtn"),
            ("--shard: expected 1 to 2 of 2", 2, "quantize", draft, "--stats-only", "--shard", "3/2", "-o", tmp_path / "x", *args),
            ("at most 16 shards", 2, "quantize", draft, "--stats-only", "--shard", "3/17", "-o", tmp_path / "x", *args),
            ("--shard: expected --stats-only, or a method without calibration", 2, "quantize", draft, "--shard", "1/2", "-o", tmp_path / "x", *args),
            ("--shard goes without --model-free", 2, "quantize", draft, "--shard", "1/2", "--model-free", "-o", tmp_path / "x"),
            ("--report goes without --shard", 2, "quantize", draft, "-m", "rtn", "--shard", "1/2", "--report", tmp_path / "r.html", "-o", tmp_path / "x"),
            ("--no-resume goes without --shard", 2, "quantize", draft, "-m", "rtn", "--shard", "1/2", "--no-resume", "-o", tmp_path / "x")]:
        assert text in llmq(*command, code=code).stderr, command
    assert not (tmp_path / "x").exists() and notes.read_text() == "somebody's"


def test_sums_are_of_the_weights_that_are_rounded(llmq, draft, tmp_path):
    """Rotated or in GGUF's order the inputs are others, though the source is the same."""
    (tmp_path / "c.ids").write_text(" ".join(str(i * 7919 % 61) for i in range(256)))
    few = ["--calib", tmp_path / "c.ids", "--calib-samples", "4", "--calib-len", "16", "--no-check"]
    for model, what, args in [(draft, "rotation", ["-m", "gptq", "--rotate", "--seed", "3"]),
                              (ARCH / "falcon-h1", "form", ["-m", "gptq", "--to", "gguf:Q8_0"])]:
        llmq("quantize", model, "--stats-only", "-o", tmp_path / what, *args, *few)
        llmq("quantize", model, "--stats", tmp_path / what, "-o", tmp_path / f"{what}.made", *args, *few)
        plain = [x for x in args if x not in ("--rotate", "--to", "gguf:Q8_0")]
        run = llmq("quantize", model, "--stats", tmp_path / what, "-o", tmp_path / "x", *plain, *few, code=3)
        assert f"found another {what}" in run.stderr


def test_a_damaged_file_is_refused(llmq, draft, tmp_path):
    """A byte of any part, and a cut; the result of such sums would look like any other."""
    args = ["-m", "gptq", *TEXT]
    one, two = shards(llmq, draft, tmp_path, 2, *args)
    right = one.read_bytes()
    head = struct.unpack("<Q", right[:8])[0]
    table = json.loads(right[8:8 + head])
    for part in ("h", "sums", "max", "count", "xxh3"):
        at = 8 + head + table[f"3.1.0.-1.{part}"]["data_offsets"][0] + 2
        one.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1:])
        assert "part 3: expected what was written" in llmq("stats", "merge", one, two, "-o", tmp_path / "x", code=3).stderr, part
        run = llmq("quantize", draft, "--stats", one, "--stats", two, "-o", tmp_path / "x", *args, code=3)
        assert f"{one}: layer 1, part 3: expected what was written" in run.stderr, part
    one.write_bytes(right.replace(b"0.1.0.-1.max", b"0.1.0.-1.mbx", 1))
    assert "tensors of sums, found" in llmq("stats", "merge", one, two, "-o", tmp_path / "x", code=3).stderr
    one.write_bytes(right[:-1])
    assert f"{one}: tensor 'about': data_offsets" in llmq("stats", "merge", one, two, "-o", tmp_path / "x", code=3).stderr
    assert not (tmp_path / "x").exists()


def made_file(path, tensors, **about):
    text = json.dumps({"format": "llmq-stats-1", "leaves": 1, "have": [0], "record": {"a": 1}, **about}).encode()
    table, data = {}, b""
    for name, dtype, shape, n in [("about", "U8", [len(text)], len(text)), *tensors]:
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + n]}
        data += text if name == "about" else bytes(n)
    head = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


MADE = [("a width that no sums have", [("0.0.0.-1.max", "U8", [1 << 20], 1 << 20), ("0.0.0.-1.h", "F32", [1], 4)], {}, "expected 0.0.0.-1.h of 262144"),
        ("a width beyond all files", [("0.0.0.-1.max", "F32", [1 << 40, 0], 0)], {}, "expected some, found none"),
        ("no record", [], {"record": None}, "expected a record"),
        ("a part that is no number", [], {"have": ["x"]}, "expected parts below 1")]


@pytest.mark.parametrize("why,tensors,about,text", MADE, ids=[x[0] for x in MADE])
def test_a_made_up_file_is_refused_before_anything_is_written(llmq, tmp_path, why, tensors, about, text):
    s = made_file(tmp_path / "s", tensors, **about)
    run = llmq("stats", "merge", s, "-o", tmp_path / "x", code=3)
    assert text in run.stderr
    assert not (tmp_path / "x").exists()


def test_records_are_compared_in_the_time_of_their_text(llmq, tmp_path):
    """Not in 2 to the power of their depth."""
    record = {}
    for _ in range(50):
        record = {"a": record}
    files = [made_file(tmp_path / str(k), [], leaves=2, have=[k], record=record) for k in range(2)]
    assert "expected some, found none" in llmq("stats", "merge", *files, "-o", tmp_path / "x", code=3, timeout=60).stderr
