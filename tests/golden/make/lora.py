"""Makes tests/golden/lora: adapters to models/novels-1m, and what peft makes of them.

    python tests/golden/make/lora.py models/novels-1m tests/golden/lora LLAMA_CPP

    plain     LoRA on every linear, f16, rank 2
    dora      DoRA and rsLoRA on some, f32, with ranks and alphas of their own
    plain.gguf  plain, by convert_lora_to_gguf.py of the folder LLAMA_CPP
    expected.json  ids, and of every row each STEPth logit: of the model alone and with each adapter

Random: B too, so that each changes what the model says. Made with peft 0.21.2, transformers 5.17.0,
torch 2.13.0 and llama.cpp of 2026-08.
"""

import json
import pathlib
import subprocess
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

IDS, STEP, SIZE = [1, 5, 9, 20, 33, 70, 300, 2001], 61, 0.06
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "plain": (torch.float16, dict(r=2, lora_alpha=6, target_modules=ALL)),
    "dora": (torch.float32, dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "down_proj"],
                                 use_dora=True, use_rslora=True,
                                 rank_pattern={"layers.1.self_attn.q_proj": 3},
                                 alpha_pattern={"down_proj": 5})),
}


def load(base):
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()


def logits(model):
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([IDS])).logits[0, :, ::STEP]
    return [[float(x) for x in row] for row in rows]


def make(base, out, dtype, config):
    """A folder as PEFT saves it, of random numbers that `dtype` holds."""
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **config))
    for name, p in model.named_parameters():
        if "magnitude" in name:
            p.data *= torch.empty_like(p).uniform_(0.8, 1.2)
        elif "lora_" in name:
            p.data = (torch.randn_like(p) * SIZE).to(dtype).float()
    model.save_pretrained(out)
    file = out / "adapter_model.safetensors"
    save_file({n: t.to(dtype) for n, t in load_file(file).items()}, file, metadata={"format": "pt"})
    (out / "README.md").unlink()
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "novels-1m"
    config["target_modules"].sort()
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main():
    base, out, llama = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    torch.manual_seed(7)
    expected = {"ids": IDS, "step": STEP, "base": logits(load(base))}
    for name, (dtype, config) in ADAPTERS.items():
        make(base, out / name, dtype, config)
        expected[name] = logits(PeftModel.from_pretrained(load(base), out / name).eval())
    subprocess.run([sys.executable, llama / "convert_lora_to_gguf.py", "--base", base, "--outtype", "f16",
                    "--outfile", out / "plain.gguf", out / "plain"], check=True)
    (out / "expected.json").write_text(json.dumps(expected) + "\n")


main()
