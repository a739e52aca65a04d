"""Tiny cross-encoders with the scores of sentence-transformers 6.2.0 on transformers 5.23.0 (float32, eager attention).

usage: make_cross.py OUT [NAME... | cut]

OUT/NAME is a checkpoint with a tokenizer of single letters, and expected.json: of each pair of texts the ids, the score that
CrossEncoder.predict gives, and the logit that it is made of. Weights are random and have the values that BF16 holds.
"""
import base64
import json
import os
import string
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from tokenizers import Regex, Tokenizer, decoders as dc, models, normalizers as nm, pre_tokenizers as pt, processors as pr

from make_encoder import BERT, DEBERTA_V3, ROBERTA, fill

LETTERS = string.ascii_lowercase
PAIRS = [("what is a panda", "the giant panda is a bear"), ("what is a panda", "hi"), ("x", "y"), ("a", ""), ("", "b c"),
         ("ﬁve  is a number ", " 1   x"), ("how many people live in berlin", "berlin had a population of three million")]


def wordpiece():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocab = special + list(LETTERS) + ["##" + c for c in LETTERS]
    t = Tokenizer(models.WordPiece({w: i for i, w in enumerate(vocab)}, unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer, t.decoder = nm.BertNormalizer(), pt.BertPreTokenizer(), dc.WordPiece()
    t.post_processor = pr.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    t.add_special_tokens(special)
    return t, dict(unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")


def unigram():
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    t = Tokenizer(models.Unigram([(w, 0.0) for w in special] + [("▁", -2.0)] + [(c, -3.0 - i / 8) for i, c in enumerate(LETTERS)], 3))
    with open(os.path.join(os.path.dirname(__file__), "../tokenizers/precompiled-unigram/tokenizer.json")) as f:
        charsmap = json.load(f)["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    t.normalizer = nm.Precompiled(base64.b64decode(charsmap))
    t.pre_tokenizer, t.decoder = pt.Sequence([pt.WhitespaceSplit(), pt.Metaspace()]), dc.Metaspace()
    t.post_processor = pr.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)])
    t.add_special_tokens(special)
    return t, dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", pad_token="<pad>")


def deberta():
    """As DeBERTa-v3's published tokenizer.json is built."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    t = Tokenizer(models.Unigram([(w, 0.0) for w in special] + [("▁", -2.0)] + [(c, -3.0 - i / 8) for i, c in enumerate(LETTERS)], 3))
    with open(os.path.join(os.path.dirname(__file__), "../tokenizers/precompiled-unigram/tokenizer.json")) as f:
        charsmap = json.load(f)["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    t.normalizer = nm.Sequence([nm.Strip(), nm.Precompiled(base64.b64decode(charsmap)), nm.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer, t.decoder = pt.Sequence([pt.Metaspace()]), dc.Metaspace()
    t.post_processor = pr.TemplateProcessing("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)])
    t.add_special_tokens(special + ["[MASK]"])
    return t, dict(unk_token="[UNK]", bos_token="[CLS]", eos_token="[SEP]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]")


def bytelevel(roberta):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    t = Tokenizer(models.BPE({w: i for i, w in enumerate(special + sorted(pt.ByteLevel.alphabet()))}, []))
    t.pre_tokenizer, t.decoder = pt.ByteLevel(add_prefix_space=False), dc.ByteLevel()
    t.post_processor = pr.RobertaProcessing(("</s>", 2), ("<s>", 0)) if roberta else \
        pr.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", [("<s>", 0), ("</s>", 2)])
    t.add_special_tokens(special)
    return t, dict(unk_token="<unk>", cls_token="<s>", sep_token="</s>", pad_token="<pad>")


IDENTITY = "torch.nn.modules.linear.Identity"
DISTIL = dict(dim=32, n_layers=1, n_heads=4, hidden_dim=24, max_position_embeddings=128)
MODERN = dict(BERT, num_hidden_layers=2, global_attn_every_n_layers=2, local_attention=6, pad_token_id=1)
ONE = dict(num_labels=1, max_position_embeddings=128)
MODELS = {
    "cross-bert": ("BertForSequenceClassification", dict(BERT, **ONE), wordpiece(), {}),
    "cross-bert-raw": ("BertForSequenceClassification", dict(BERT, **ONE), wordpiece(),
                       {"sentence_transformers": {"activation_fn": IDENTITY}}),
    "cross-roberta": ("RobertaForSequenceClassification", dict(ROBERTA, **ONE), bytelevel(True), {}),
    "cross-xlm-roberta": ("XLMRobertaForSequenceClassification", dict(ROBERTA, **ONE), unigram(), {}),
    "cross-electra": ("ElectraForSequenceClassification", dict(BERT, embedding_size=32, **ONE), wordpiece(), {}),
    "cross-albert": ("AlbertForSequenceClassification", dict(BERT, embedding_size=16, **ONE), wordpiece(), {}),
    "cross-xlm-roberta-xl": ("XLMRobertaXLForSequenceClassification", dict(ROBERTA, **ONE), unigram(), {}),
    "cross-deberta-v2": ("DebertaV2ForSequenceClassification", dict(DEBERTA_V3, **ONE), deberta(),
                         {"pos_att_type": "p2c|c2p", "sentence_transformers": {"activation_fn": IDENTITY}}),
    "cross-mpnet": ("MPNetForSequenceClassification", dict(ROBERTA, **{**ONE, "max_position_embeddings": 130}), bytelevel(True), {}),
    "cross-distilbert": ("DistilBertForSequenceClassification", dict(DISTIL, num_labels=1), wordpiece(),
                         {"sbert_ce_default_activation_function": IDENTITY}),
    "cross-modernbert": ("ModernBertForSequenceClassification", dict(MODERN, **ONE), bytelevel(False), {}),
    "cross-modernbert-mean": ("ModernBertForSequenceClassification",
                              dict(MODERN, classifier_pooling="mean", classifier_bias=True, norm_bias=True, **ONE), bytelevel(False), {}),
}


def write(out, name, kind, sizes, tokenizer, more):
    """The checkpoint of random weights; its folder."""
    tok, tokens = tokenizer
    folder = os.path.join(out, name)
    cls = getattr(tf, kind)
    model = cls(cls.config_class(**{**sizes, "vocab_size": tok.get_vocab_size()}, attn_implementation="eager")).eval()
    fill(model, torch.Generator().manual_seed(3))
    for n, p in model.named_parameters():  # scores that differ
        if "classifier.weight" in n or "out_proj.weight" in n:
            p.data = (p.data * 2).bfloat16().float()
    names = ["input_ids", "token_type_ids", "attention_mask"] if kind[:7] in ("BertFor", "Electra", "AlbertF", "Deberta") else ["input_ids", "attention_mask"]
    tf.PreTrainedTokenizerFast(tokenizer_object=tok, model_input_names=names, model_max_length=100, **tokens).save_pretrained(folder)
    model.save_pretrained(folder)
    path = os.path.join(folder, "config.json")
    config = json.load(open(path)) | more
    json.dump(config, open(path, "w"), indent=2)
    weights = os.path.join(folder, "model.safetensors")
    save_file({k: v.bfloat16() for k, v in load_file(weights).items()}, weights)
    return folder


def make(out, name):
    folder = write(out, name, *MODELS[name])
    c = CrossEncoder(folder, device="cpu")
    c.model.float()
    raw = c.predict(PAIRS, activation_fn=torch.nn.Identity(), batch_size=1)
    scores = c.predict(PAIRS, batch_size=1)
    pairs = [dict(a=a, b=b, ids=c.tokenizer([a], [b])["input_ids"][0], score=float(s), raw=float(r)) for (a, b), s, r in zip(PAIRS, scores, raw)]
    json.dump(pairs, open(os.path.join(folder, "expected.json"), "w"), indent=1)
    print(name, [round(p["raw"], 3) for p in pairs], [round(p["score"], 3) for p in pairs])


CUT = {"cross-bert": 0, "cross-roberta": 2, "cross-deberta-v2": 0}  # rows of the table of positions before the first
TEXTS = ["what is a panda", "the giant panda is a bear"]


def cut(out):
    """Pairs that are cut, as tokenizers cut them, and their scores."""
    made = {}
    for name, offset in CUT.items():
        folder = os.path.join(out, name)
        tok = tf.AutoTokenizer.from_pretrained(folder)
        model = tf.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        rows = []
        for a, b, most in [(*TEXTS, 40), (*TEXTS, 30), (*TEXTS[::-1], 31), (*TEXTS, 13), (*TEXTS[::-1], 14), (TEXTS[0], TEXTS[0], 17),
                           ("x", TEXTS[1], 9), (TEXTS[1], "", 8), (*TEXTS, 5), (*TEXTS, 4), (*TEXTS, 100)]:
            enc = tok([a], [b], truncation=True, max_length=most, return_tensors="pt")
            with torch.no_grad():
                raw = float(model(**enc).logits[0][0])
            rows.append(dict(a=a, b=b, most=most, ids=enc["input_ids"][0].tolist(), raw=raw))
        made[name] = dict(context=model.config.max_position_embeddings - offset, short=len(tok("a b", "c")["input_ids"]), rows=rows)
    json.dump(made, open(os.path.join(out, "cut.json"), "w"), indent=1)


if __name__ == "__main__":
    if sys.argv[2:] == ["cut"]:
        sys.exit(cut(sys.argv[1]))
    for n in sys.argv[2:] or MODELS:
        make(sys.argv[1], n)
