"""A tiny DeciLM (Llama-3.3-Nemotron-Super): Llamas' layers of different sizes, some of them without attention or without an MLP.
Its code is not in transformers; the layers and all else here are transformers' (5.23.0, float32, eager attention).

usage: make_deci.py OUT; files as make_v5.py writes them.
"""
import copy
import os
import sys

import torch
import transformers as tf
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from make_v5 import V, T, fill, rename, save

H, HEADS = 16, 4
ATTN = dict(no_op=False, replace_with_linear=False, sparsify=None, window_length=None, num_sink_tokens=None)
FFN = dict(no_op=False, replace_with_linear=False, sparsify=None)
NO_ATTN, NO_FFN = dict(ATTN, no_op=True, n_heads_in_group=None), dict(FFN, no_op=True, ffn_mult=None)
BLOCKS = [dict(attention=dict(ATTN, n_heads_in_group=2), ffn=NO_FFN), dict(attention=NO_ATTN, ffn=dict(FFN, ffn_mult=1.25)),
          dict(attention=dict(ATTN, n_heads_in_group=4), ffn=NO_FFN)]


class Block(LlamaDecoderLayer):
    """What is missing has no norm either."""

    def __init__(self, config, i):
        b, own = BLOCKS[i], copy.deepcopy(config)
        own.num_key_value_heads = HEADS // (b["attention"]["n_heads_in_group"] or 1)
        own.intermediate_size = -(-int(2 * (b["ffn"]["ffn_mult"] or 1) * H / 3) // 256) * 256
        super().__init__(own, i)
        if b["attention"]["no_op"]:
            del self.self_attn, self.input_layernorm
        if b["ffn"]["no_op"]:
            del self.mlp, self.post_attention_layernorm

    def forward(self, x, **more):
        if hasattr(self, "self_attn"):
            x = x + self.self_attn(hidden_states=self.input_layernorm(x), **more)[0]
        return x + self.mlp(self.post_attention_layernorm(x)) if hasattr(self, "mlp") else x


def config(j):
    out = ("num_key_value_heads", "intermediate_size", "rope_parameters", "head_dim")
    return dict({k: v for k, v in j.items() if k not in out}, architectures=["DeciLMForCausalLM"], model_type="nemotron-nas",
                num_key_value_heads=None, intermediate_size=None, rope_theta=10000.0, rope_scaling=None, block_configs=BLOCKS)


c = tf.LlamaConfig(vocab_size=V, hidden_size=H, num_hidden_layers=len(BLOCKS), num_attention_heads=HEADS, intermediate_size=16,
                   max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0, attn_implementation="eager")
model = tf.LlamaForCausalLM(c).float().eval()
model.model.layers = torch.nn.ModuleList([Block(model.config, i) for i in range(len(BLOCKS))])
g = torch.Generator().manual_seed(5)
fill(model, g)
ids = torch.randint(3, V, (2, T), generator=g)
with torch.no_grad():
    logits, greedy, margin = model(ids, use_cache=False).logits, ids, []
    for _ in range(16):
        best = model(greedy, use_cache=False).logits[:, -1].topk(2, -1)
        margin.append(best.values[:, 0] - best.values[:, 1])
        greedy = torch.cat([greedy, best.indices[:, :1]], 1)
folder = os.path.join(sys.argv[1], "deci")
save(model, folder, dict(input_ids=ids.int(), logits=logits.contiguous(), greedy=greedy.int().contiguous(),
                         margin=torch.stack(margin, 1).contiguous()))
rename(folder, lambda t: t, config)
