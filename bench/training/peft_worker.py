"""One policy-gradient step after another by PyTorch, transformers and peft; prints the figures as one line of JSON.

The step is that of `reef bench --training`: the same file, LoRA, tokens, loss and optimizer.
    python peft_worker.py MODEL THREADS SAMPLESxPROMPT+RESPONSE STEPS whole|cut
`whole` passes the batch at once and takes the logits of every position, as a plain training loop does. `cut` passes it
in parts of 256 tokens and takes the logits of the response alone, as Reef does.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from pathlib import Path

import peft
import torch
import transformers

# Tokens of a part.
PART_TOKENS = 256
TEXT = "The quick brown fox jumps over the lazy dog and runs along the shore."
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def resident_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1000


def load(file: Path) -> tuple[torch.nn.Module, list[int]]:
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    base = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    return peft.get_peft_model(base, config).train(), tokenizer(TEXT)["input_ids"]


def batch(ids: list[int], samples: int, length: int) -> torch.Tensor:
    return torch.tensor([[ids[(index + place) % len(ids)] for place in range(length)] for index in range(samples)])


def step(model: torch.nn.Module, tokens_bt: torch.Tensor, prompt: int, optimizer: torch.optim.Optimizer, cut: bool) -> None:
    samples, length = tokens_bt.shape
    rows = max(1, PART_TOKENS // length) if cut else samples
    optimizer.zero_grad(set_to_none=True)
    for part_bt in tokens_bt.split(rows):
        # The last position predicts nothing.
        keep = {"logits_to_keep": length - prompt + 1} if cut else {}
        logits = model(input_ids=part_bt, use_cache=False, **keep).logits[:, -(length - prompt + 1) : -1]
        logp = torch.log_softmax(logits.float(), -1).gather(-1, part_bt[:, prompt:, None]).squeeze(-1)
        # Advantage 1: the mean over samples of the mean over their response tokens.
        (-logp.mean(1).sum() / samples).backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()


def main() -> None:
    file, threads, shape, steps, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
    samples, (prompt, response) = int(shape.split("x")[0]), map(int, shape.split("x")[1].split("+"))
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, ids = load(file)
    # The peak is that of training: what reading the file took at its most does not count.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    loaded = resident_mb("VmRSS")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    tokens_bt, rates = batch(ids, samples, prompt + response), []
    for _ in range(steps + 1):
        began = time.perf_counter()
        step(model, tokens_bt, prompt, optimizer, how == "cut")
        rates.append(tokens_bt.numel() / (time.perf_counter() - began))
    # The first step makes the caches of the kernels and is not told.
    told = {"tokens_per_second": statistics.median(rates[1:]), "steps": rates[1:], "resident_mb_loaded": loaded, "resident_mb_peak": resident_mb("VmHWM")}
    print(json.dumps({**told, "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}}))


if __name__ == "__main__":
    main()
