"""Hugging Face transformers on the CPU: reads orders as lines of JSON, answers each with one line.

Runs in its own environment. The GGUF is dequantised to f32 when it is loaded; several streams are one static batch.

    {"kind": "decode", "prompts": [[{"role": …, "content": …}]], "tokens": 128}
    {"kind": "prefill", "prompts": [[…]], "tokens": 1}
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers


class Clock(transformers.LogitsProcessor):
    """Notes when each step has its logits, and changes nothing."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.at.append(time.monotonic())
        return scores


def main() -> None:
    model_file, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    where = {"pretrained_model_name_or_path": str(model_file.parent), "gguf_file": model_file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    print(json.dumps({"ready": True, "torch": torch.__version__, "transformers": transformers.__version__}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(answer(model, tokenizer, order["prompts"], order["tokens"], order["kind"])), flush=True)


@torch.inference_mode()
def answer(model, tokenizer, prompts: list, tokens: int, kind: str) -> dict[str, float]:
    texts = [tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False) for prompt in prompts]
    clock = Clock()
    started = time.monotonic()
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    model.generate(
        **batch,
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=tokenizer.pad_token_id,
        logits_processor=transformers.LogitsProcessorList([clock]),
    )
    took = time.monotonic() - started
    prompt_tokens = int(batch["attention_mask"][0].sum())
    if kind == "prefill":
        speed = prompt_tokens / (clock.at[0] - started)
        return {"steady": speed, "end_to_end": speed, "prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    decoded = len(prompts) * (len(clock.at) - 1)
    return {
        "steady": decoded / (clock.at[-1] - clock.at[0]),
        "end_to_end": len(prompts) * tokens / took,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(prompts) * tokens,
    }


if __name__ == "__main__":
    main()
