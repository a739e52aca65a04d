"""Tiny classifiers with the probabilities of transformers 5.23.0 (float32, eager attention).

usage: make_class.py OUT [NAME...]

OUT/NAME is a checkpoint as make_cross.py writes them, and expected.json: of each text the scores and what the pipeline's rule
makes of them: softmax, sigmoid of each (multi_label_classification), or the scores themselves (regression).
"""
import json
import os
import sys

import torch
import transformers as tf

from make_cross import BERT, DISTIL, ROBERTA, bytelevel, deberta, wordpiece, write
from make_encoder import DEBERTA

TEXTS = ["what is a panda", "", "x", "the giant panda is a bear", "ﬁve  is a number ", "한"]
SIZES = dict(max_position_embeddings=128)
MODELS = {
    "class-bert": ("BertForSequenceClassification", dict(BERT, **SIZES, num_labels=3, id2label={0: "negative", 1: "so so", 2: "positive \u2665"}),
                   wordpiece(), {}),
    "class-deberta-v2": ("DebertaV2ForSequenceClassification",
                         dict(DEBERTA, **SIZES, position_buckets=6, max_relative_positions=20, pos_att_type=["p2c"], type_vocab_size=2,
                              num_labels=3, id2label={0: "contradiction", 1: "neutral", 2: "entailment"}), deberta(), {}),
    "class-distilbert": ("DistilBertForSequenceClassification", dict(DISTIL, num_labels=4), wordpiece(),
                         {"problem_type": "multi_label_classification"}),
    "class-roberta": ("RobertaForSequenceClassification", dict(ROBERTA, **SIZES, num_labels=2, id2label={0: "length", 1: "weight"}), bytelevel(True),
                      {"problem_type": "regression"}),
}


def make(out, name):
    folder = write(out, name, *MODELS[name])
    tok = tf.AutoTokenizer.from_pretrained(folder)
    model = tf.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    rows = []
    for text in TEXTS:
        enc = tok(text, return_tensors="pt")
        with torch.no_grad():
            scores = model(**enc).logits[0]
        kind = model.config.problem_type
        probs = scores if kind == "regression" else scores.sigmoid() if kind else scores.softmax(0)
        rows.append(dict(text=text, ids=enc["input_ids"][0].tolist(), label=model.config.id2label[int(probs.argmax())],
                         probs=[float(x) for x in probs], scores=[float(x) for x in scores]))
    json.dump(rows, open(os.path.join(folder, "expected.json"), "w"), indent=1)
    print(name, [(r["label"], [round(x, 3) for x in r["probs"]]) for r in rows])


for n in sys.argv[2:] or MODELS:
    make(sys.argv[1], n)
