"""Golden values and gradients of every training objective, from PyTorch: `python objectives.py > objectives.json`.

Each case is a batch of three samples over a vocabulary of six: four response tokens with one observation, one token,
and one sample without action tokens. Every loss is written here on its own, from probabilities where the engine works
from log-probs, and differentiated by autograd with respect to the student's logits, in f64 and in f32.
"""

import json

import torch
import torch.nn.functional as F

LENGTHS = [4, 1, 2]
MASK = [1, 0, 1, 1, 1, 0, 0]
VOCABULARY, K = 6, 3

generator = torch.Generator().manual_seed(11)


def draw(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


N = len(MASK)
STUDENT, TEACHER, ROLLOUT = 1.5 * draw(N, VOCABULARY), 1.5 * draw(N, VOCABULARY), draw(N, VOCABULARY)
ROLLOUT = STUDENT + 0.7 * ROLLOUT
SAMPLED = torch.randint(0, VOCABULARY, (N,), generator=generator)
ADVANTAGES = draw(N)
ALTERNATIVES = ROLLOUT.topk(K).indices


def at(table, ids):
    return table.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def shares(reduction, mask, weights=None):
    """What each token counts."""
    parts, start = [], 0
    for index, length in enumerate(LENGTHS):
        part = torch.tensor(mask[start : start + length], dtype=torch.float64)
        start += length
        total = {
            "token-sum": 1.0,
            "sample-token-mean": len(LENGTHS) * max(part.sum().item(), 1.0),
            "global-token-mean": float(sum(mask)),
        }[reduction]
        parts.append(part / total * (1.0 if weights is None else weights[index]))
    return torch.cat(parts)


def kl(a, b):
    return (a * (a / b).log()).sum(-1)


def divergence(kind, beta, p, t):
    if kind == "forward":
        return kl(t, p)
    if kind == "reverse":
        return kl(p, t)
    m = beta * t + (1 - beta) * p
    return beta * kl(t, m) + (1 - beta) * kl(p, m)


def sampled(kind, beta, p, t):
    """The value of the estimate with the gradient of the divergence's own estimator."""
    r, logp = (t / p).detach(), p.log()
    score = logp - logp.detach()
    if kind == "forward":
        return r * r.log() + (1 - r) * score
    if kind == "reverse":
        return -r.log() - r.log() * score
    m = beta * r + (1 - beta)
    slope = -(1 - beta) * m.log()
    return beta * r * (r / m).log() + slope + slope * score


def importance(kind, cap, logp, logq, counted):
    ratio = (logp - logq).detach().exp().clamp(max=cap)
    if kind == "off":
        return torch.ones_like(ratio)
    if kind == "token":
        return ratio
    means, start = [], 0
    for length in LENGTHS:
        part, used = ratio[start : start + length], counted[start : start + length]
        start += length
        means.append((part * used).sum().div(used.sum().clamp(min=1)).expand(length))
    return torch.cat(means)


def distill(case, dtype, logits):
    p, t = logits.softmax(-1), TEACHER.to(dtype).softmax(-1)
    kind, beta, support = case["divergence"], case["beta"], case["support"]
    if support == "sampled":
        token = sampled(kind, beta, at(p, SAMPLED), at(t, SAMPLED))
    else:
        if support != "exact":
            ids = p.detach().topk(K).indices
            p, t = p.gather(1, ids), t.gather(1, ids)
        if support == "top-k-renormalised":
            p, t = p / p.sum(-1, keepdim=True), t / t.sum(-1, keepdim=True)
        if support == "top-k-tail":
            p = torch.cat([p, 1 - p.sum(-1, keepdim=True)], -1)
            t = torch.cat([t, 1 - t.sum(-1, keepdim=True)], -1)
        token = divergence(kind, beta, p, t)
    mask, start = [], 0
    for length in LENGTHS:
        mask += [m if i >= case["skip"] else 0 for i, m in enumerate(MASK[start : start + length])]
        start += length
    logp, logq = at(logits.log_softmax(-1), SAMPLED), at(ROLLOUT.to(dtype).log_softmax(-1), SAMPLED)
    weight = importance(case["importance"], case["cap"], logp, logq, torch.tensor(mask, dtype=dtype))
    return (shares("sample-token-mean", mask, case["weights"]).to(dtype) * weight * token).sum()


def weighting(case, r):
    return {
        "reinforce": lambda: torch.ones_like(r),
        "ratio": lambda: r,
        "truncated": lambda: r.clamp(max=1.2),
        "masked": lambda: torch.where((r > 0.7) & (r < 1.4), r, torch.zeros_like(r)),
    }[case["weight"]]()


def policy_gradient(case, dtype, logits):
    logp_v = logits.log_softmax(-1)
    logp, logq = at(logp_v, SAMPLED), at(ROLLOUT.to(dtype).log_softmax(-1), SAMPLED)
    advantages = ADVANTAGES.to(dtype)
    if case["weight"] == "ppo":
        r = (logp - logq).exp()
        token = torch.maximum(-r * advantages, -r.clamp(0.8, 1.28) * advantages)
    else:
        token = -weighting(case, (logp - logq).detach().exp()) * advantages * logp
    if case["kl"]:
        d = at(TEACHER.to(dtype).log_softmax(-1), SAMPLED) - logp
        token = token + case["kl"] * (d.exp() - d - 1)
    if case["entropy"]:
        token = token + case["entropy"] * (logp_v.exp() * logp_v).sum(-1)
    if case["score_centering"]:
        p_v, q_v = logp_v.double().detach().exp(), ROLLOUT.softmax(-1).to(dtype).double()
        p, q = p_v.gather(1, ALTERNATIVES), q_v.gather(1, ALTERNATIVES)
        rho = (1 - q.sum(-1, keepdim=True)).clamp(min=1e-6) / (1 - p.sum(-1, keepdim=True)).clamp(min=1e-6)
        coefficient = q * weighting(case, p / q) - rho * weighting(case, 1 / rho) * p
        centre = (coefficient * logp_v.double().gather(1, ALTERNATIVES)).sum(-1)
        token = token + advantages * centre.to(dtype)
    return (shares(case["reduction"], MASK).to(dtype) * token).sum()


def nll(case, dtype, logits):
    token = F.cross_entropy(logits, SAMPLED, reduction="none")
    return (shares("sample-token-mean", MASK).to(dtype) * token).sum()


def distill_top_k(case, dtype, logits):
    logp = logits.log_softmax(-1).gather(1, ALTERNATIVES)
    logq = ROLLOUT.to(dtype).log_softmax(-1).gather(1, ALTERNATIVES)
    logt = TEACHER.to(dtype).log_softmax(-1).gather(1, ALTERNATIVES)
    advantage = (logt - logq).clamp(-case["advantage_max"], case["advantage_max"]) * logq.softmax(-1)
    r = (logp - logq).exp()
    token = torch.maximum(-r * advantage, -r.clamp(0.8, 1.28) * advantage).sum(-1)
    return (shares("sample-token-mean", MASK).to(dtype) * token).sum()


OBJECTIVES = {"distill": distill, "policy-gradient": policy_gradient, "nll": nll, "distill-top-k": distill_top_k}


def cases():
    kinds = [("forward", 0.5), ("reverse", 0.5), ("jensen-shannon", 0.5), ("jensen-shannon", 0.3)]
    supports = ["exact", "top-k-renormalised", "top-k-tail", "sampled"]
    corrections = [("off", 1.0), ("token", 1.1), ("sequence", 1.1)]
    index = 0
    for kind, beta in kinds:
        for support in supports:
            (importance, cap), weights = corrections[index % 3], [[1.0, 1.0, 1.0], [0.5, 2.0, 1.0], [1.0, 0.0, 3.0]]
            yield {"objective": "distill", "divergence": kind, "beta": beta, "support": support, "cap": cap,
                   "importance": importance, "weights": weights[index % 3], "skip": index % 2}
            index += 1
    reductions = ["token-sum", "sample-token-mean", "global-token-mean"]
    for index, weight in enumerate(["reinforce", "ratio", "truncated", "masked", "ppo"]):
        for extra in range(3):
            plain = {"objective": "policy-gradient", "weight": weight, "reduction": reductions[(index + extra) % 3],
                     "kl": 0.0, "entropy": 0.0, "score_centering": False}
            if extra == 1:
                plain |= {"kl": 0.1, "entropy": 0.01}
            if extra == 2:
                if weight == "ppo":
                    continue
                plain |= {"score_centering": True}
            yield plain
    yield {"objective": "nll"}
    for advantage_max in [1.0, 0.25]:
        yield {"objective": "distill-top-k", "advantage_max": advantage_max}


def measured(case, dtype):
    logits = STUDENT.to(dtype).clone().requires_grad_(True)
    loss = OBJECTIVES[case["objective"]](case, dtype, logits)
    loss.backward()
    digits = 16 if dtype == torch.float64 else 9
    short = lambda number: float(f"{number:.{digits}g}")
    return {"loss": short(loss.item()), "gradient": [short(g) for g in logits.grad.flatten().tolist()]}


golden = {
    "torch": torch.__version__,
    "lengths": LENGTHS,
    "mask": MASK,
    "vocabulary": VOCABULARY,
    "k": K,
    "student": STUDENT.flatten().tolist(),
    "teacher": TEACHER.flatten().tolist(),
    "rollout": ROLLOUT.flatten().tolist(),
    "sampled": SAMPLED.tolist(),
    "alternatives": ALTERNATIVES.flatten().tolist(),
    "advantages": ADVANTAGES.tolist(),
}
lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in golden.items()]
each = [case | {"f64": measured(case, torch.float64), "f32": measured(case, torch.float32)} for case in cases()]
lines.append('  "cases": [\n' + ",\n".join(f"    {json.dumps(case)}" for case in each) + "\n  ]")
print("{\n" + ",\n".join(lines) + "\n}")
