"""`llmq quantize X.gguf --refine --ref SRC`: a GGUF file keeps types, size and metadata, and gets better codes."""
import json
import shutil
import struct

import numpy as np
import pytest

from conftest import ROOT
from shim import stopped
from test_quantize_to import wide_model

QUICK = ["-m", "gptq", "--calib-samples", "8", "--calib-len", "128"]


class Gguf:
    """Where things are in a GGUF file: tensors as name -> (type, place, bytes of its number), and where they begin."""
    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, path):
        self.bytes = bytearray(path.read_bytes())
        _, _, n, pairs = struct.unpack_from("<IIQQ", self.bytes)
        self.at, align = 24, 32
        for _ in range(pairs):
            key, kind = self.text(), self.int("<I")
            if key == "general.alignment":
                align = struct.unpack_from("<I", self.bytes, self.at)[0]
            self.value(kind)
        self.tensors = {}
        for _ in range(n):
            name, dims = self.text(), self.int("<I")
            self.at += 8 * dims
            where, kind, off = self.at, self.int("<I"), self.int("<Q")
            self.tensors[name] = (kind, off, where)
        self.data = -(-self.at // align) * align

    def int(self, form):
        self.at += struct.calcsize(form)
        return struct.unpack_from(form, self.bytes, self.at - struct.calcsize(form))[0]

    def text(self):
        n = self.int("<Q")
        self.at += n
        return self.bytes[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 9:
            kind, n = self.int("<I"), self.int("<Q")
            for _ in range(n):
                self.value(kind)
        elif kind == 8:
            self.text()
        else:
            self.at += self.SIZES[kind]


@pytest.fixture(scope="module")
def plain(llmq, draft, tmp_path_factory):
    """The draft model to nearest, as its owner might have got it."""
    out = tmp_path_factory.mktemp("plain") / "plain.gguf"
    llmq("quantize", draft, "-o", out, "--to", "gguf:Q3_K_M", "-m", "rtn")
    return out


def test_codes_are_better_and_all_else_is_as_it_was(llmq, draft, plain, tmp_path):
    out = tmp_path / "better.gguf"
    r = llmq.json("quantize", plain, "--refine", "--ref", draft, "-o", out, *QUICK)
    assert r["check"]["kl_mean"] < 0.7 * r["kl_before"]
    assert [p.name for p in tmp_path.iterdir()] == ["better.gguf"] and r["bytes_out"] == out.stat().st_size
    was, now = Gguf(plain), Gguf(out)
    assert len(was.bytes) == len(now.bytes) and was.bytes[:was.data] == now.bytes[:was.data]
    e = [llmq.json("eval", m, "-t", ROOT / "README.md", "-c", "128", "--windows", "4", "--ref", draft)["kl_mean"] for m in (plain, out)]
    assert e[1] < 0.7 * e[0], e
    said = llmq("quantize", plain, "--refine", "--ref", draft, "-o", out, *QUICK).stdout
    assert "refined: mean KL to the original" in said


def test_the_source_may_be_a_gguf_file_and_rounding_again_changes_nothing(llmq, draft, plain, tmp_path):
    """To nearest again: every byte as it was."""
    source = tmp_path / "f16.gguf"
    llmq("convert", draft, "-o", source, "--to", "gguf")
    llmq("quantize", plain, "--refine", "--ref", source, "-o", tmp_path / "same.gguf", "-m", "rtn")
    assert (tmp_path / "same.gguf").read_bytes() == plain.read_bytes()


def test_a_killed_run_goes_on_to_the_same_bytes_at_any_number_of_threads(llmq, draft, plain, tmp_path):
    args = ["quantize", plain, "--refine", "--ref", draft, *QUICK, "--no-check", "--log-level", "error"]
    llmq(*args, "-o", tmp_path / "1.gguf", "--threads", 1)
    out = tmp_path / "q.gguf"
    with stopped(llmq, "part-00000.llmq", *args, "-o", out, "--threads", 2):
        pass
    assert llmq.json(*args, "-o", out, "--resume", "--threads", 2)["resumed_parts"] > 0
    assert out.read_bytes() == (tmp_path / "1.gguf").read_bytes()


def ternary(w):
    """Rows of TQ2_0: 256 weights -1, 0 or 1 times an f16."""
    out = b""
    for block in w.reshape(-1, 256):
        d = np.float16(1.2 * np.abs(block).mean())
        q = np.clip(np.rint(block / np.float32(d)), -1, 1).astype(np.uint8) + 1
        q = q.reshape(2, 4, 32)
        out += (q[:, 0] | q[:, 1] << 2 | q[:, 2] << 4 | q[:, 3] << 6).astype(np.uint8).tobytes() + d.tobytes()
    return out


def test_a_type_that_no_method_makes_is_copied_and_named(llmq, tmp_path):
    """IQ2_XXS's block has as many bytes as that of TQ2_0."""
    random = np.random.default_rng(1)
    values = {}

    def draw(n):
        values["all"] = (random.standard_normal(n // 2) * 0.05).astype(np.float16)
        return values["all"].tobytes()

    model = wide_model(tmp_path / "w", 2, False, draw)
    x, out = tmp_path / "x.gguf", tmp_path / "out.gguf"
    llmq("quantize", model, "-o", x, "--to", "gguf:IQ2_XXS", "-m", "rtn")
    data = (model / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    place = json.loads(data[8:8 + n])["model.layers.9.mlp.down_proj.weight"]["data_offsets"]
    g = Gguf(x)
    kind, off, where = g.tensors["blk.9.ffn_down.weight"]
    blocks = ternary(np.frombuffer(data[8 + n + place[0]:8 + n + place[1]], np.float16).astype(np.float32))
    assert kind == 16 and len(blocks) == 256 * 66
    g.bytes[where:where + 4] = struct.pack("<I", 35)
    g.bytes[g.data + off:g.data + off + len(blocks)] = blocks
    x.write_bytes(g.bytes)
    said = llmq("quantize", x, "--refine", "--ref", model, "-o", out, "-m", "rtn").stderr
    assert "blk.9.ffn_down.weight: no method makes TQ2_0: copied" in said
    assert out.read_bytes() == x.read_bytes()  # to nearest again, beside what was copied


def altered(draft, path, change):
    shutil.copytree(draft, path)
    change(path)
    return path


def other_weights(path):
    f = path / "model.safetensors"
    data = bytearray(f.read_bytes())
    n = struct.unpack("<Q", data[:8])[0]
    at = 8 + n + json.loads(data[8:8 + n])["model.layers.1.self_attn.o_proj.weight"]["data_offsets"][0]
    for i in range(at + 1, at + 8192, 2):
        data[i] ^= 0x80  # the sign
    f.write_bytes(data)


def other_tokens(path):
    f = path / "tokenizer.json"
    doc = json.loads(f.read_text())
    vocab = doc["model"]["vocab"]
    a, b = [t for t, i in vocab.items() if i in (700, 701)]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    f.write_text(json.dumps(doc, ensure_ascii=False))


@pytest.mark.parametrize("change, says", [(other_weights, "layers.1.self_attn.o_proj.weight: expected about the weights of"),
                                          (other_tokens, "token 700: expected ")])
def test_a_source_that_it_was_not_made_of_is_refused(llmq, draft, plain, tmp_path, change, says):
    source = altered(draft, tmp_path / "m", change)
    r = llmq("quantize", plain, "--refine", "--ref", source, "-o", tmp_path / "q.gguf", *QUICK, code=2)
    assert r.stderr.startswith("llmq: quantize: --ref: ") and says in r.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("args, says", [
    (["--refine"], "--refine needs --ref"),
    (["--ref", "DRAFT"], "--ref needs --refine"),
    (["--refine", "--ref", "DRAFT", "--bits", "3"], "the file says every scheme: expected no --bits"),
    (["--refine", "--ref", "DRAFT", "--to", "gguf:Q4_0"], "expected no --to"),
    (["--refine", "--ref", "DRAFT", "-m", "awq"], "--refine: expected a method that makes blocks"),
    (["--refine", "--ref", "MODEL"], "expected the tensors of"),
])
def test_what_cannot_be_is_refused(llmq, draft, model, plain, tmp_path, args, says):
    args = [draft if a == "DRAFT" else model if a == "MODEL" else a for a in args]
    assert says in llmq("quantize", plain, "-o", tmp_path / "q.gguf", *args, code=2).stderr and not list(tmp_path.iterdir())


def test_a_quantized_source_is_refused_as_one(llmq, plain, tmp_path):
    """Also where its values cannot be read."""
    r = llmq("quantize", plain, "--refine", "--ref", plain, "-o", tmp_path / "q.gguf", "-m", "rtn", code=3)
    assert r.stderr.startswith(f"llmq: quantize: --ref: {plain}: model.") and "expected unquantized weights, found " in r.stderr
    g = Gguf(plain)
    at = g.data + g.tensors["blk.1.attn_k.weight"][1]
    g.bytes[at:at + 2] = b"\xff\xff"  # the scale of the first block
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(g.bytes)
    r = llmq("quantize", plain, "--refine", "--ref", bad, "-o", tmp_path / "q.gguf", "-m", "rtn", code=3)
    assert "self_attn.k_proj.weight: scales: expected finite numbers" in r.stderr


def test_only_quantized_gguf_files_are_refined(llmq, draft, packed, tmp_path):
    llmq("convert", draft, "-o", tmp_path / "f.gguf", "--to", "gguf")
    for what, says in ((packed, "expected a GGUF file, found llmq"), (tmp_path / "f.gguf", "no tensor has a type that a method makes")):
        assert says in llmq("quantize", what, "--refine", "--ref", draft, "-o", tmp_path / "q.gguf", code=2).stderr
