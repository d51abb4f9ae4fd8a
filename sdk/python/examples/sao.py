"""sao: one scored answer per prompt as they arrive, a critic as baseline, a ratio that masks what drifted too far.

The same decisions as recipes-wasm/sao, which explains the maths; sdk/tests/same.py compares the two.
"""

import math
import struct

from reef_recipe import (
    Key, Manifest, Optimizer, PolicyGradient, Recipe, Retirement, Samples, Trainer, Weight,
    models, metrics, promote, recipe, reject, skip, state, weights,
)

# Scores beyond this make returns that nothing can be fitted to.
SCORE_ABS_MAX = 1e6
# State key: warm-up steps done.
WARMED_UP = "critic_warmup_done"
ALL_ZERO = "every advantage of the batch is zero: nothing to learn from"

BATCH_SIZE = Key.count("batch_size", 32, "scored answers per step").within(1, 512)
GAMMA = Key.number("gamma", 1.0, "discount per action token").within(0, 1)
LAMBDA = Key.number("lambda", 1.0, "GAE decay of the advantages; 0 = by response length, see alpha").within(0, 1)
ALPHA = Key.number("alpha", 1.5, "length-adaptive lambda is 1 - 1/(alpha * response length)").within(0.01, 1000)
EPS_LOW = Key.number("eps_low", 0.3, "tokens count while the ratio is above 1 - eps_low; coding: 0.8").within(0.01, 1)
EPS_HIGH = Key.number("eps_high", 5.0, "tokens count while the ratio is below 1 + eps_high; coding: 3").within(0.01, 1000)
POLICY_LR = Key.number("policy_lr", 5e-4, "learning rate of the LoRA; full weights need about 1e-6").within(1e-12, 1)
CRITIC_LR = Key.number("critic_lr", 5e-3, "learning rate of the critic's linear head").within(1e-12, 1)
WARMUP_STEPS = Key.count("critic_warmup_steps", 1, "steps that fit only the critic before the first policy update").within(0, 1000)
WARMUP_UPDATES = Key.count("critic_warmup_updates", 50, "critic updates in a warm-up step; the head starts at zero").within(1, 64)
ACTOR_UPDATES = Key.count("critic_steps_per_actor", 2, "critic updates per policy update").within(1, 64)
NORM_MAX = Key.number("gradient_norm_max", 1.0, "the gradient is clipped to this norm; 0 = off").within(0, 1e6)
EVALUATE_TASKS = Key.count("evaluate_tasks", 32, "held-out tasks per evaluation; 0 = none").within(0, 10000)
KEEP_TOLERANCE = Key.number("keep_tolerance", 0.05, "held-out score points that a candidate may lose").within(0, 1)


@recipe
class Sao(Recipe):
    manifest = Manifest.weights(
        "sao", "0.1.0", needs_score=True, asks=["experience", "training", "state", "log", "metrics", "models"],
        keys=[
            BATCH_SIZE, GAMMA, LAMBDA, ALPHA, EPS_LOW, EPS_HIGH, POLICY_LR, CRITIC_LR, WARMUP_STEPS, WARMUP_UPDATES,
            ACTOR_UPDATES, NORM_MAX, EVALUATE_TASKS, KEEP_TOLERANCE,
        ],
    )

    def select(self, ctx, pool):
        usable, retired = [], []
        for sample, references, score, lag in zip(pool, pool.reference_counts(), pool.scores(), pool.lags()):
            reason = objection(references, score, lag, ctx.max_staleness)
            if reason is None:
                usable.append(sample)
            else:
                retired.append(Retirement(sample, reason))
        selection = Samples(usable).first(BATCH_SIZE.get())
        selection.retire = retired
        return selection

    def propose(self, ctx, batch):
        trainer, scores, masks = Trainer.open(), batch.scores(), batch.masks()
        gamma, fixed, alpha = GAMMA.get(), LAMBDA.get(), ALPHA.get()
        values = batch.parts(trainer.values(batch))
        advantages, targets = [], []
        for value, mask, score in zip(values, masks, scores):
            decay = fixed if fixed != 0.0 else min(max(1.0 - 1.0 / (alpha * len(mask)), 0.0), 1.0)
            advantages.append(gae(value, mask, score, gamma, decay))
            # The critic's targets have λ = 1, whatever the advantages have.
            targets.append(returns(gae(value, mask, score, gamma, 1.0), value, mask))
        report(batch, scores, masks, values, advantages, targets)

        done, steps = state.get_u32(WARMED_UP) or 0, WARMUP_STEPS.get()
        warming = done < steps
        if warming:
            state.set_u32(WARMED_UP, done + 1)
        updates = WARMUP_UPDATES.get() if warming else ACTOR_UPDATES.get()
        fit = trainer.fit_values(batch, joined(targets), CRITIC_LR.get(), updates)
        if "value_loss" in fit:
            metrics.gauge("critic/value_loss", fit["value_loss"])
        if warming:
            trainer.checkpoint()
            return skip(f"critic warm-up {done + 1} of {steps}")

        column = joined(advantages)
        if all(as_f32(advantage) == 0.0 for advantage in column):
            trainer.checkpoint()
            metrics.gauge("zero_advantage_batch", 1.0)
            return skip(ALL_ZERO)
        dis = Weight.masked(1.0 - EPS_LOW.get(), 1.0 + EPS_HIGH.get())
        optimizer = Optimizer.adamw(POLICY_LR.get(), gradient_norm_max=NORM_MAX.get())
        measured = trainer.train(batch, PolicyGradient(dis, per_token=column), optimizer)
        for name, value in measured.items():
            metrics.gauge(PUBLISHED.get(name, f"policy/{name}"), value)
        candidate = trainer.checkpoint()
        if measured.get("skipped") == 1.0:
            return skip("the gradient of the batch is zero: nothing to learn from")
        return weights(candidate)

    def evaluate(self, ctx, candidate):
        tolerance, count = KEEP_TOLERANCE.get(), min(models.held_out_count(), EVALUATE_TASKS.get())
        if count == 0:
            return promote("no held-out task to compare on: left to the operator's gate")
        new, old = models.held_out_scores("candidate", 0, count), models.held_out_scores("served", 0, count)
        told = f"held-out {mean(old):.4f} → {mean(new):.4f} on {count} tasks"
        numbers = {
            "held_out_candidate": mean(new),
            "held_out_served": mean(old),
            "wins": sum(a > b for a, b in zip(new, old)),
            "losses": sum(a < b for a, b in zip(new, old)),
        }
        if mean(new) >= mean(old) - tolerance:
            return promote(told, numbers)
        return reject(f"{told}: more than {tolerance:g} lost", numbers)


# Names under which the trainer's measurements are published; others go under `policy/`.
PUBLISHED = {"masked_share": "pg_clipfrac", "logprob_abs_diff": "train_rollout_logprob_abs_diff"}


def objection(references, score, lag, max_staleness):
    """Why a sample can never be used, if so."""
    if references != 1:
        return f"its report references {references} records; this recipe learns from exactly one"
    if not math.isfinite(score):
        return "its report has no score"
    if abs(score) > SCORE_ABS_MAX:
        return "its score is beyond ±1,000,000"
    if lag > max_staleness:
        return f"sampled {lag} releases ago, max_staleness is {max_staleness}"
    return None


def gae(values, mask, reward, gamma, decay):
    """A_t = δ_t + γλ·A_next, "next" being the next action token; the reward is on the last one; 0 on observations."""
    advantages, next_value, next_advantage = [0.0] * len(mask), 0.0, 0.0
    for place in reversed(range(len(mask))):
        if mask[place]:
            delta = reward + gamma * next_value - values[place]
            advantages[place] = delta + gamma * decay * next_advantage
            reward, next_value, next_advantage = 0.0, values[place], advantages[place]
    return advantages


def returns(advantages, values, mask):
    """What the critic should have said; 0 on observations."""
    return [advantage + value if action else advantage for advantage, value, action in zip(advantages, values, mask)]


def report(batch, scores, masks, values, advantages, targets):
    lags = [float(lag) for lag in batch.lags()]

    def actions(parts):
        return [number for part, mask in zip(parts, masks) for number, action in zip(part, mask) if action]

    wanted = actions(targets)
    numbers = {
        "reward_mean": mean(scores),
        "reward_max": max(scores, default=0.0),
        "advantage_abs_mean": mean([abs(advantage) for advantage in actions(advantages)]),
        "lag_mean": mean(lags),
        "lag_max": max(lags, default=0.0),
        "effective_token_rate": len(wanted) / max(sum(len(mask) for mask in masks), 1),
        "critic/explained_variance": explained_variance(wanted, actions(values)),
    }
    for name, value in numbers.items():
        metrics.gauge(name, value)


def explained_variance(wanted, values):
    """1 − Var(R − V)/Var(R); 0 when there is nothing to explain."""
    spread = variance(wanted)
    if spread == 0.0:
        return 0.0
    return 1.0 - variance([target - value for target, value in zip(wanted, values)]) / spread


def total(values):
    """From the first to the last, as the other languages add: `sum` is more exact from Python 3.12 on."""
    whole = 0.0
    for value in values:
        whole += value
    return whole


def mean(values):
    return total(values) / len(values) if values else 0.0


def variance(values):
    centre = mean(values)
    return total([(value - centre) * (value - centre) for value in values]) / max(len(values), 1)


def joined(parts):
    return [number for part in parts for number in part]


def as_f32(number):
    """As the host gets it."""
    return struct.unpack("f", struct.pack("f", number))[0]
