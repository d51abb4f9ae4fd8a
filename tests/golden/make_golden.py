"""Writes smollm2.json: what SmolLM2-135M-Instruct answers according to PyTorch, in f32.

Run it as `python make_golden.py MODEL.gguf` in an environment with exactly torch==2.13.0 transformers==5.24.0
tokenizers==0.23.3 gguf==0.19.0 accelerate==1.15.0 numpy==2.4.6 jinja2==3.1.6 (Python 3.11). Weights are
dequantised here from the GGUF bytes and must equal what transformers reads. Texts of messages never become
control tokens: only the template writes those.
"""

import json
import platform
import sys
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from prompts import CHATS, TOKENIZER_STRINGS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TOKENS_MAX = 48
THREADS = 1
# A greedy token whose logit leads the runner-up's by less than this is no fair test of another
# implementation's rounding: the golden answer ends before it.
LEAD_MIN = 0.001
# Probed entries of the final-position logits: a stride through the vocabulary, plus its two ends.
LOGIT_INDICES = sorted({0, 1, 2, 49151, *range(17, 49152, 830)})
assert len(LOGIT_INDICES) == 64
# The first chats have logits too.
LOGIT_CHATS = 10
SIZE_MAX_BYTES = 600_000
Q8_0, Q4_1 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1


def dequantise(tensor) -> np.ndarray:
    """Blocks of 32 weights: Q8_0 = scale · int8, Q4_1 = scale · nibble + minimum; f16 scales."""
    shape = tuple(int(n) for n in reversed(tensor.shape))
    raw = np.asarray(tensor.data)
    if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
        return raw.reshape(shape).astype(np.float32)
    if tensor.tensor_type == Q8_0:
        blocks = raw.reshape(-1, 34)
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return (scale * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(shape)
    if tensor.tensor_type == Q4_1:
        blocks = raw.reshape(-1, 20)
        scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
        minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
        nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        return (scale * nibbles.astype(np.float32) + minimum).reshape(shape)
    raise SystemExit(f"tensor {tensor.name}: type {tensor.tensor_type.name} is not expected in this file")


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores q and k for interleaved rotation (x0 x1 of a pair side by side); HF rotates halves."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def state_dict(reader: gguf.GGUFReader, heads: int, heads_kv: int) -> dict[str, torch.Tensor]:
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    state = {}
    for tensor in reader.tensors:
        values = dequantise(tensor)
        parts = tensor.name.split(".")
        if parts[0] == "token_embd":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = torch.from_numpy(values)
        elif parts[0] == "output_norm":
            state["model.norm.weight"] = torch.from_numpy(values)
        else:
            if parts[2] in ("attn_q", "attn_k"):
                values = unpermute(values, heads if parts[2] == "attn_q" else heads_kv)
            state[f"model.layers.{parts[1]}.{names[parts[2]]}.weight"] = torch.from_numpy(values)
    return state


def load_model(path: Path, reader: gguf.GGUFReader):
    field = lambda name: reader.get_field(f"llama.{name}").contents()  # noqa: E731
    config = transformers.LlamaConfig(
        vocab_size=field("vocab_size"), hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"), rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        num_key_value_heads=field("attention.head_count_kv"), max_position_embeddings=field("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.load_state_dict(state_dict(reader, config.num_attention_heads, config.num_key_value_heads))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ours = model.state_dict()
    for name, values in theirs.state_dict().items():
        assert torch.equal(values, ours[name]), f"{name}: transformers reads other weights than this script"
    assert theirs.lm_head.weight.data_ptr() == theirs.model.embed_tokens.weight.data_ptr(), "embedding is not tied"
    return model


def load_tokenizers(reader: gguf.GGUFReader) -> tuple[Tokenizer, Tokenizer, list[str]]:
    """(reads control tokens in the text, takes all text as text, the control tokens)."""
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    types = reader.get_field("tokenizer.ggml.token_type").contents()
    merges = [tuple(m.split(" ")) for m in reader.get_field("tokenizer.ggml.merges").contents()]
    assert reader.get_field("tokenizer.ggml.pre").contents() == "smollm"
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    assert control == tokens[: len(control)], "control tokens are expected to have the lowest ids"

    def build(specials: list[str]) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
        assert tokenizer.get_vocab_size() == len(tokens)
        return tokenizer

    return build(control), build([]), control


class Prompts:
    """Renders chats and encodes them; control tokens count only where the template wrote them."""

    def __init__(self, reader: gguf.GGUFReader):
        self.parsing, self.plain, self.control = load_tokenizers(reader)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self.template = environment.from_string(reader.get_field("tokenizer.chat_template").contents())

    def render(self, messages: list[dict]) -> str:
        return self.template.render(messages=messages, add_generation_prompt=True)

    def encode(self, messages: list[dict]) -> list[int]:
        """Ids of the rendered chat, in which a message's `<|im_end|>` stays ordinary text."""
        masked = []
        for message in messages:
            content = message["content"]
            for i, token in enumerate(self.control):
                content = content.replace(token, chr(0xF0000 + i))
            masked.append({**message, "content": content})
        ids, gap = [], []
        encoded = self.parsing.encode(self.render(masked)).ids
        for token in encoded:
            if token < len(self.control):
                ids += self._encode_gap(gap) + [token]
                gap = []
            else:
                gap.append(token)
        ids += self._encode_gap(gap)
        written = 2 * len(messages) + 1 + 2 * (messages[0]["role"] != "system")
        assert sum(token < len(self.control) for token in ids) == written, "a message became a control token"
        return ids

    def _encode_gap(self, gap: list[int]) -> list[int]:
        text = self.plain.decode(gap)
        for i, token in enumerate(self.control):
            text = text.replace(chr(0xF0000 + i), token)
        return self.plain.encode(text).ids


@torch.inference_mode()
def answer(model, prompt: list[int], eos: int) -> dict:
    """Greedy tokens with a KV cache, then checked and scored by one forward without it."""
    output, cache, feed, tie = [], transformers.DynamicCache(), prompt, False
    while len(output) < TOKENS_MAX and (not output or output[-1] != eos):
        best = model(torch.tensor([feed]), cache=cache, use_cache=True).logits[0, -1].topk(2)
        if (best.values[0] - best.values[1]).item() < LEAD_MIN:
            tie = True
            break
        output.append(int(best.indices[0]))
        feed = output[-1:]
    assert output, "the first token is a near tie: choose another prompt"
    logits_tv = model(torch.tensor([prompt + output]), use_cache=False).logits[0]
    scored = logits_tv[len(prompt) - 1 : len(prompt) - 1 + len(output)]
    assert scored.argmax(-1).tolist() == output, "the cached and the whole forward disagree"
    log_probs = torch.log_softmax(scored.double(), -1).gather(-1, torch.tensor(output)[:, None])[:, 0]
    top = scored.topk(2).values
    return {
        "output_ids": output,
        "tokens_max": len(output) if tie else TOKENS_MAX,
        "finish": "stop" if output[-1:] == [eos] else "length",
        "lead_min": round((top[:, 0] - top[:, 1]).min().item(), 4),
        "log_probs": [round(v, 6) for v in log_probs.tolist()],
        "logits": logits_tv[len(prompt) - 1],
    }


def logit_probe(logits_v: torch.Tensor) -> dict:
    return {
        "values": [round(v, 5) for v in logits_v[LOGIT_INDICES].tolist()],
        "log_sum_exp": round(torch.logsumexp(logits_v.double(), -1).item(), 5),
        "max": round(logits_v.max().item(), 5),
        "argmax": int(logits_v.argmax()),
    }


def chat_cases(model, prompts: Prompts, eos: int) -> list[dict]:
    cases = []
    for index, (name, messages) in enumerate(CHATS.items()):
        rendered, ids = prompts.render(messages), prompts.encode(messages)
        parsed = prompts.parsing.encode(rendered).ids
        has_control = any(token in m["content"] for m in messages for token in prompts.control)
        assert has_control or parsed == ids, f"{name}: two ways to encode one chat differ"
        result = answer(model, ids, eos)
        logits = result.pop("logits")
        case = {"name": name, "messages": messages, "prompt": rendered, "prompt_ids": ids}
        case |= {"text": prompts.parsing.decode(result["output_ids"])} | result
        if index < LOGIT_CHATS:
            case["logits"] = logit_probe(logits)
        cases.append(case)
        print(f"{name}: {len(ids)} + {len(result['output_ids'])} tokens, lead {result['lead_min']}, {case['text']!r}")
    return cases


def tokenizer_cases(prompts: Prompts) -> list[dict]:
    cases = []
    for text in TOKENIZER_STRINGS:
        ids = prompts.plain.encode(text).ids
        assert prompts.plain.decode(ids) == text, repr(text)
        assert all(token >= len(prompts.control) for token in ids), repr(text)
        cases.append({"text": text, "ids": ids})
    return cases


def main() -> None:
    path = Path(sys.argv[1])
    torch.set_num_threads(THREADS)
    reader = gguf.GGUFReader(path)
    prompts = Prompts(reader)
    eos = int(reader.get_field("tokenizer.ggml.eos_token_id").contents())
    golden = {
        "model": path.name,
        "made_with": {
            "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
            "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
        },
        "dtype": "f32", "eos_id": eos, "lead_min": LEAD_MIN, "logit_indices": LOGIT_INDICES,
        "tokenizer": tokenizer_cases(prompts),
        "chats": chat_cases(load_model(path, reader), prompts, eos),
    }  # fmt: skip
    target = Path(__file__).with_name("smollm2.json")
    lines = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    # One case a line, so that a change of one case is a change of one line.
    target.write_text(lines.replace('},{"', '},\n{"') + "\n", encoding="utf-8")
    assert json.loads(target.read_text(encoding="utf-8")) == golden
    assert target.stat().st_size < SIZE_MAX_BYTES
    print(f"{target}: {target.stat().st_size} bytes, {len(golden['chats'])} chats")


if __name__ == "__main__":
    main()
