"""A small Llama model with an adapter, both written by the real `transformers` and `peft`, and the log-probs that they find.

`python peft.py` writes `peft/`. `python peft.py FOLDER` loads the adapter in FOLDER, e.g. one that Reef wrote, and
tells how far its log-probs are from those of the golden adapter: 0 if both are the same.
"""

import json
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent / "peft"
# Apart: transformers takes up an adapter that lies beside a model.
MODEL, ADAPTER = HERE / "model", HERE / "adapter"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 17, 23]
SHAPE = LlamaConfig(
    vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=True, eos_token_id=23, bos_token_id=None,
)
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def log_probs(model):
    """Of each token after those before it, f32 [tokens - 1]."""
    with torch.no_grad():
        logp = model(torch.tensor([TOKENS])).logits[0, :-1].log_softmax(-1)
    return logp.gather(1, torch.tensor(TOKENS[1:]).unsqueeze(1)).squeeze(1)


def base():
    return LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


def write():
    torch.manual_seed(5)
    model = LlamaForCausalLM(SHAPE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(MODEL)
    (MODEL / "generation_config.json").unlink(missing_ok=True)
    shape = LoraConfig(r=2, lora_alpha=6, target_modules=MODULES, task_type="CAUSAL_LM")
    adapted = get_peft_model(base(), shape)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.peft_config["default"].base_model_name_or_path = "model"
    adapted.save_pretrained(ADAPTER)
    (ADAPTER / "README.md").unlink(missing_ok=True)
    golden = {"tokens": TOKENS, "base": log_probs(base()).tolist(), "adapted": log_probs(adapted.eval()).tolist()}
    (HERE / "logprobs.json").write_text(json.dumps(golden) + "\n")


def compare(folder):
    golden = json.loads((HERE / "logprobs.json").read_text())
    found = log_probs(PeftModel.from_pretrained(base(), folder).eval())
    print("log-probs apart at most:", (found - torch.tensor(golden["adapted"])).abs().max().item())
    ours, theirs = (load_file(pathlib.Path(at) / "adapter_model.safetensors") for at in (folder, ADAPTER))
    print("same tensors:", ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours))


compare(sys.argv[1]) if len(sys.argv) > 1 else write()
