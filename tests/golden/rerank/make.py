"""A tiny random Qwen3 checkpoint and the scores that transformers (5.23.0, float32, eager) gives to pairs of
a query and a document, in the prompt that Qwen3-Reranker's authors document.

usage: make.py OUT

OUT/: config.json, model.safetensors (bf16; the reference computes in f32 from those values) and
expected.json: {"labels": [yes, no], "pairs": [{"instruction", "query", "document", "ids", "score",
"raw"}]}. The tokenizer is ../tokenizers/qwen2-nfc, whose vocabulary has no "yes": the labels are "y"
and "n".
"""
import json
import pathlib
import sys

import torch
import transformers as tf
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
PREFIX = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
          "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n")
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"
PAIRS = [
    (None, "What is the capital of China?", "The capital of China is Beijing."),
    (None, "What is the capital of China?", "Gravity is a force that attracts two bodies towards each other."),
    (None, "중국의 수도는?", "베이징은 중국의 수도이다.\n\n 두 번째 문단."),
    ("Find code that does what is asked", "sort a list", "  xs.sort()  "),
    (None, "q", ""),
]


def main(out):
    torch.manual_seed(5)
    tok = tf.PreTrainedTokenizerFast(tokenizer_file=str(HERE / "../tokenizers/qwen2-nfc/tokenizer.json"))
    c = tf.Qwen3Config(vocab_size=len(tok), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                       num_key_value_heads=1, head_dim=8, intermediate_size=32, max_position_embeddings=1024,
                       tie_word_embeddings=True, bos_token_id=0, eos_token_id=2, attn_implementation="eager")
    m = tf.Qwen3ForCausalLM(c).float().eval()
    with torch.no_grad():
        for name, p in m.named_parameters():
            p.copy_((1 + 0.1 * torch.randn_like(p) if p.dim() == 1 else 0.4 * torch.randn_like(p)).bfloat16())
    out.mkdir(parents=True, exist_ok=True)
    save_file({k: v.bfloat16().contiguous() for k, v in m.state_dict().items() if k != "lm_head.weight"},
              out / "model.safetensors")
    c.architectures, c.dtype = ["Qwen3ForCausalLM"], "bfloat16"
    (out / "config.json").write_text(c.to_json_string())
    yes, no = (tok.convert_tokens_to_ids(t) for t in "yn")
    pairs = []
    for task, query, document in PAIRS:
        body = f"<Instruct>: {task or TASK}\n<Query>: {query}\n<Document>: {document}"
        ids = tok(PREFIX + body + SUFFIX, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            last = m(torch.tensor([ids])).logits[0, -1]
        both = torch.nn.functional.log_softmax(torch.stack([last[no], last[yes]]), dim=0)
        pairs.append({"instruction": task, "query": query, "document": document, "ids": ids,
                      "score": both[1].exp().item(), "raw": (last[yes] - last[no]).item()})
    (out / "expected.json").write_text(json.dumps({"labels": [yes, no], "pairs": pairs}, ensure_ascii=False) + "\n")


main(pathlib.Path(sys.argv[1]))
