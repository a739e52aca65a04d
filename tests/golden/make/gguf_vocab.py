"""Cuts llama.cpp's vocabularies down to what their own test strings need.

usage: gguf_vocab.py FOLDER OUT     (FOLDER: llama.cpp's models/, with ggml-vocab-NAME.gguf, .inp and .out)

Writes OUT/NAME.gguf, with the tokens of the expected ids, the tokens they are merged from, a few special
ones, and every merge among them, and OUT/NAME.jsonl, lines of {"text", "ids"}. A merge that is left out is
none that the strings use, so the ids are those of the whole vocabulary, counted anew. Needs PyPI gguf.
"""
import json
import pathlib
import sys
import unicodedata

from gguf import GGUFReader, GGUFWriter

IDS = ["bos", "eos", "unknown", "padding", "separator", "seperator", "cls"]  # the last but one as llama.cpp spells it
KEPT_SPECIAL = 24
# Of Qwen 3.5 three strings have 'e' + U+0301 and the like. The model's own tokenizer.json composes them first (NFC),
# as does llmq; llama.cpp does not, and gives other ids.
COMPOSED = ["qwen35"]


def value(reader, key):
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def used(reader, ids):
    tokens = value(reader, "tokenizer.ggml.tokens")
    merges = [m.replace(" ", "\0", 1) if not m.startswith(" ") else " " + m[1:].replace(" ", "\0", 1)
              for m in value(reader, "tokenizer.ggml.merges") or []]
    by_text = {t: i for i, t in reversed(list(enumerate(tokens)))}
    pairs = {}
    for m in merges:
        a, _, b = m.partition("\0")
        pairs.setdefault(a + b, []).append((a, b))
    need, queue = set(), [tokens[i] for i in ids]
    while queue:
        t = queue.pop()
        if t in need or t not in by_text:
            continue
        need.add(t)
        if merges:
            queue += [x for p in pairs.get(t, []) for x in p]
        else:
            queue += [x for k in range(1, len(t)) for x in (t[:k], t[k:])]
    return tokens, by_text, need


def write(name, source, out):
    reader = GGUFReader(source)
    texts = (source.parent / (source.name + ".inp")).read_bytes().decode().split("\n__ggml_vocab_test__\n")
    want = [[int(x) for x in line.split()] for line in
            (source.parent / (source.name + ".out")).read_text().split("\n")[:len(texts)]]
    cases = [(t, w) for t, w in zip(texts, want) if name not in COMPOSED or unicodedata.is_normalized("NFC", t)]
    types = value(reader, "tokenizer.ggml.token_type")
    tokens, by_text, need = used(reader, {i for _, ids in cases for i in ids})
    special = [i for i, t in enumerate(types) if t != 1 and tokens[i] not in need]
    keep = {by_text[t] for t in need} | set(special[:KEPT_SPECIAL]) | {i for i, t in enumerate(types) if t == 6}
    for k in IDS:
        i = value(reader, f"tokenizer.ggml.{k}_token_id")
        if i is not None and i < len(tokens):
            keep.add(i)
    if value(reader, "tokenizer.ggml.model") == "gpt2":
        keep |= {by_text[t] for t in by_text if len(t) == 1}
    keep = sorted(keep)
    new = {i: n for n, i in enumerate(keep)}
    w = GGUFWriter(out / f"{name}.gguf", "llama")
    w.add_tokenizer_model(value(reader, "tokenizer.ggml.model"))
    if value(reader, "tokenizer.ggml.pre"):
        w.add_tokenizer_pre(value(reader, "tokenizer.ggml.pre"))
    w.add_token_list([tokens[i] for i in keep])
    w.add_token_types([types[i] for i in keep])
    scores = value(reader, "tokenizer.ggml.scores")
    if scores:
        w.add_token_scores([float(scores[i]) for i in keep])
    kept = {tokens[i] for i in keep}
    merges = [m for m in value(reader, "tokenizer.ggml.merges") or []
              if all(x in kept for x in (m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:], m[:m.index(" ", 1)] +
                                         m[m.index(" ", 1) + 1:]))]
    if merges:
        w.add_token_merges(merges)
    for k in IDS:
        i = value(reader, f"tokenizer.ggml.{k}_token_id")
        if i in new:
            w.add_uint32(f"tokenizer.ggml.{k}_token_id", new[i])
    for k in ["add_bos_token", "add_eos_token", "add_space_prefix"]:
        if value(reader, f"tokenizer.ggml.{k}") is not None:
            w.add_bool(f"tokenizer.ggml.{k}", bool(value(reader, f"tokenizer.ggml.{k}")))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    with open(out / f"{name}.jsonl", "w", encoding="utf-8") as f:
        for t, ids in cases:
            print(json.dumps({"text": t, "ids": [new[i] for i in ids]}, ensure_ascii=False), file=f)


def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for source in sorted(folder.glob("ggml-vocab-*.gguf")):
        name = source.stem[len("ggml-vocab-"):]
        if (folder / (source.name + ".out")).exists():
            write(name, source, out)


main()
