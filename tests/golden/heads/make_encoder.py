"""Tiny encoders with the hidden states of transformers 5.23.0 (float32, eager attention), laid out as the other folders here.

usage: make_encoder.py OUT [NAME...]

transformers writes NomicBERT with the names of its published files; its config.json is written here as those have it.
Weights are random and have the values that BF16 holds.
"""
import json
import os
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

V, H, T = 64, 32, 16
BERT = dict(vocab_size=V, hidden_size=H, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=40, pad_token_id=0)
ROBERTA = dict(BERT, pad_token_id=1, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5)
DEBERTA = dict(BERT, num_hidden_layers=2, relative_attention=True, position_biased_input=False, type_vocab_size=0, layer_norm_eps=1e-7)
DEBERTA_V3 = dict(DEBERTA, position_buckets=8, max_relative_positions=-1, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p")
NOMIC = dict(architectures=["NomicBertModel"], model_type="nomic_bert", activation_function="swiglu", causal=False, n_embd=H,
             n_head=4, n_inner=24, n_layer=1, n_positions=128, max_trained_positions=64, layer_norm_epsilon=1e-12, prenorm=False,
             mlp_fc1_bias=False, mlp_fc2_bias=False, qkv_proj_bias=False, parallel_block=False, rotary_emb_base=1000,
             rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None,
             scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, type_vocab_size=2, use_flash_attn=True,
             use_rms_norm=False, vocab_size=V, torch_dtype="float32")
MODELS = {
    "bert": ("BertModel", BERT),
    "xlm-roberta": ("XLMRobertaModel", ROBERTA),
    "roberta-masked": ("RobertaForMaskedLM", ROBERTA),
    "electra": ("ElectraModel", dict(BERT, embedding_size=H)),
    "electra-small": ("ElectraModel", dict(BERT, embedding_size=16)),
    "albert": ("AlbertModel", dict(BERT, embedding_size=16, num_hidden_layers=4, num_hidden_groups=2)),
    "xlm-roberta-xl": ("XLMRobertaXLModel", dict(ROBERTA, num_hidden_layers=2)),
    "deberta-v2": ("DebertaV2Model", DEBERTA_V3),
    # every distance has a row of its own, farther than 6 share one; keys and queries of their own
    "deberta-v2-apart": ("DebertaV2ForMaskedLM", dict(DEBERTA, max_relative_positions=6, pos_att_type=["c2p", "p2c"], type_vocab_size=2,
                                                      position_biased_input=True, legacy=False)),
    "mpnet": ("MPNetModel", dict(ROBERTA, num_hidden_layers=2)),
    "distilbert": ("DistilBertModel", dict(vocab_size=V, dim=H, n_layers=1, n_heads=4, hidden_dim=24, max_position_embeddings=40)),
    "nomic-bert": ("NomicBertModel", dict(BERT, max_position_embeddings=128)),
    "modernbert": ("ModernBertModel", dict(BERT, num_hidden_layers=3, max_position_embeddings=128, local_attention=6)),
    "eurobert": ("EuroBertModel", dict(BERT, num_key_value_heads=2, rope_parameters=dict(rope_type="default", rope_theta=250000.0))),
}


def fill(model, g):
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if p.dim() < 2:
            r = r * 0.1 + (1 if "norm" in name.lower() and name.endswith("weight") else 0)
        elif "embeddings" not in name:
            r = r * (1.5 / p.shape[-1] ** 0.5)
        p.data = r.bfloat16().float()


def make(out, name):
    kind, sizes = MODELS[name]
    cls = getattr(tf, kind)
    torch.manual_seed(0)
    model = cls(cls.config_class(**sizes, attn_implementation="eager")).eval()
    g = torch.Generator().manual_seed(1)
    fill(model, g)
    folder = os.path.join(out, name)
    ids = torch.randint(3, V, (2, T), generator=g)
    with torch.no_grad():
        body = getattr(model, model.base_model_prefix, model)
        hidden = body(input_ids=ids).last_hidden_state
    model.save_pretrained(folder)
    if name == "nomic-bert":
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(NOMIC, f, indent=2)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    save_file({k: v.bfloat16() for k, v in tensors.items()}, os.path.join(folder, "model.safetensors"))
    save_file({"input_ids": ids.int(), "hidden": hidden.contiguous()}, os.path.join(folder, "expected.safetensors"))


if __name__ == "__main__":
    for n in sys.argv[2:] or MODELS:
        make(sys.argv[1], n)
