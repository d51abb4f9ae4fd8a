/**
 * sao: one scored answer per prompt as they arrive, a critic as baseline, a ratio that masks what drifted too far.
 * The same decisions as recipes-wasm/sao, which explains the maths; sdk/tests/same.py compares the two.
 */
import {
  Key, Optimizer, Samples, Trainer, Weight, manifest, metrics, models, policyGradient, promote, recipe, reject, skip, state,
  weights, type Batch, type Retirement,
} from "reef-recipe";

/** Scores beyond this make returns that nothing can be fitted to. */
const SCORE_ABS_MAX = 1e6;
/** State key: warm-up steps done. */
const WARMED_UP = "critic_warmup_done";
/** Names under which the trainer's measurements are published; others go under `policy/`. */
const PUBLISHED: Record<string, string> = { masked_share: "pg_clipfrac", logprob_abs_diff: "train_rollout_logprob_abs_diff" };

const BATCH_SIZE = Key.count("batch_size", 32, "scored answers per step").within(1, 512);
const GAMMA = Key.number("gamma", 1, "discount per action token").within(0, 1);
const LAMBDA = Key.number("lambda", 1, "GAE decay of the advantages; 0 = by response length, see alpha").within(0, 1);
const ALPHA = Key.number("alpha", 1.5, "length-adaptive lambda is 1 - 1/(alpha * response length)").within(0.01, 1000);
const EPS_LOW = Key.number("eps_low", 0.3, "tokens count while the ratio is above 1 - eps_low; coding: 0.8").within(0.01, 1);
const EPS_HIGH = Key.number("eps_high", 5, "tokens count while the ratio is below 1 + eps_high; coding: 3").within(0.01, 1000);
const POLICY_LR = Key.number("policy_lr", 5e-4, "learning rate of the LoRA; full weights need about 1e-6").within(1e-12, 1);
const CRITIC_LR = Key.number("critic_lr", 5e-3, "learning rate of the critic's linear head").within(1e-12, 1);
const WARMUP_STEPS = Key.count("critic_warmup_steps", 1, "steps that fit only the critic before the first policy update").within(0, 1000);
const WARMUP_UPDATES = Key.count("critic_warmup_updates", 50, "critic updates in a warm-up step; the head starts at zero").within(1, 64);
const ACTOR_UPDATES = Key.count("critic_steps_per_actor", 2, "critic updates per policy update").within(1, 64);
const NORM_MAX = Key.number("gradient_norm_max", 1, "the gradient is clipped to this norm; 0 = off").within(0, 1e6);
const EVALUATE_TASKS = Key.count("evaluate_tasks", 32, "held-out tasks per evaluation; 0 = none").within(0, 10000);
const KEEP_TOLERANCE = Key.number("keep_tolerance", 0.05, "held-out score points that a candidate may lose").within(0, 1);

export const strategy = recipe({
  manifest: manifest.weights("sao", "0.1.0", {
    needsScore: true,
    asks: ["experience", "training", "state", "log", "metrics", "models"],
    keys: [
      BATCH_SIZE, GAMMA, LAMBDA, ALPHA, EPS_LOW, EPS_HIGH, POLICY_LR, CRITIC_LR, WARMUP_STEPS, WARMUP_UPDATES,
      ACTOR_UPDATES, NORM_MAX, EVALUATE_TASKS, KEEP_TOLERANCE,
    ],
  }),

  select(ctx, pool) {
    const [references, scores, lags] = [pool.referenceCounts(), pool.scores(), pool.lags()];
    const usable: number[] = [];
    const retire: Retirement[] = [];
    pool.handles.forEach((sample, index) => {
      const reason = objection(references[index]!, scores[index]!, lags[index]!, ctx.maxStaleness);
      if (reason === undefined) usable.push(sample);
      else retire.push({ sample, reason });
    });
    return { ...new Samples(usable).first(BATCH_SIZE.get()), retire };
  },

  propose(_ctx, batch) {
    const [trainer, scores, masks] = [Trainer.open(), [...batch.scores()], batch.masks()];
    const [gamma, fixed, alpha] = [GAMMA.get(), LAMBDA.get(), ALPHA.get()];
    const values = batch.parts([...trainer.values(batch)]);
    const advantages = values.map((value, index) => {
      const mask = masks[index]!;
      const decay = fixed !== 0 ? fixed : Math.min(Math.max(1 - 1 / (alpha * mask.length), 0), 1);
      return gae(value, mask, scores[index]!, gamma, decay);
    });
    // The critic's targets have λ = 1, whatever the advantages have.
    const targets = values.map((value, index) => {
      const mask = masks[index]!;
      return gae(value, mask, scores[index]!, gamma, 1).map((advantage, place) => (mask[place] ? advantage + value[place]! : advantage));
    });
    report(batch, scores, { masks, values, advantages, targets });

    const [done, steps] = [state.getU32(WARMED_UP) ?? 0, WARMUP_STEPS.get()];
    const warming = done < steps;
    if (warming) state.setU32(WARMED_UP, done + 1);
    const updates = warming ? WARMUP_UPDATES.get() : ACTOR_UPDATES.get();
    const fit = trainer.fitValues(batch, targets.flat(), CRITIC_LR.get(), updates);
    if (fit.value_loss !== undefined) metrics.gauge("critic/value_loss", fit.value_loss);
    if (warming) {
      trainer.checkpoint();
      return skip(`critic warm-up ${done + 1} of ${steps}`);
    }

    const column = advantages.flat();
    // As the host gets them.
    if (column.every((advantage) => Math.fround(advantage) === 0)) {
      trainer.checkpoint();
      metrics.gauge("zero_advantage_batch", 1);
      return skip("every advantage of the batch is zero: nothing to learn from");
    }
    const dis = Weight.masked(1 - EPS_LOW.get(), 1 + EPS_HIGH.get());
    const optimizer = Optimizer.adamw(POLICY_LR.get(), { gradientNormMax: NORM_MAX.get() });
    const measured = trainer.train(batch, policyGradient(dis, { perToken: column }), optimizer);
    for (const [name, value] of Object.entries(measured)) metrics.gauge(PUBLISHED[name] ?? `policy/${name}`, value);
    const candidate = trainer.checkpoint();
    return measured.skipped === 1 ? skip("the gradient of the batch is zero: nothing to learn from") : weights(candidate);
  },

  evaluate() {
    const [tolerance, count] = [KEEP_TOLERANCE.get(), Math.min(models.heldOutCount(), EVALUATE_TASKS.get())];
    if (count === 0) return promote("no held-out task to compare on: left to the operator's gate");
    const candidate = [...models.heldOutScores("candidate", 0, count)];
    const served = [...models.heldOutScores("served", 0, count)];
    const [now, before] = [mean(candidate), mean(served)];
    const told = `held-out ${fourPlaces(before)} → ${fourPlaces(now)} on ${count} tasks`;
    const numbers = {
      held_out_candidate: now,
      held_out_served: before,
      wins: candidate.filter((score, task) => score > served[task]!).length,
      losses: candidate.filter((score, task) => score < served[task]!).length,
    };
    return now >= before - tolerance ? promote(told, numbers) : reject(`${told}: more than ${tolerance} lost`, numbers);
  },
});

/** Why a sample can never be used, if so. */
function objection(references: number, score: number, lag: number, maxStaleness: number): string | undefined {
  if (references !== 1) return `its report references ${references} records; this recipe learns from exactly one`;
  if (!Number.isFinite(score)) return "its report has no score";
  if (Math.abs(score) > SCORE_ABS_MAX) return "its score is beyond ±1,000,000";
  if (lag > maxStaleness) return `sampled ${lag} releases ago, max_staleness is ${maxStaleness}`;
  return undefined;
}

/** A_t = δ_t + γλ·A_next, "next" being the next action token; the reward is on the last one; 0 on observations. */
function gae(values: number[], mask: ArrayLike<number>, score: number, gamma: number, decay: number): number[] {
  const advantages = new Array<number>(mask.length).fill(0);
  let [reward, nextValue, nextAdvantage] = [score, 0, 0];
  for (let place = mask.length - 1; place >= 0; place -= 1) {
    if (!mask[place]) continue;
    const value = values[place]!;
    nextAdvantage = reward + gamma * nextValue - value + gamma * decay * nextAdvantage;
    advantages[place] = nextAdvantage;
    [reward, nextValue] = [0, value];
  }
  return advantages;
}

interface Columns {
  masks: ArrayLike<number>[];
  values: number[][];
  advantages: number[][];
  targets: number[][];
}

function report(batch: Batch, scores: number[], { masks, values, advantages, targets }: Columns): void {
  const lags = [...batch.lags()];
  const actions = (parts: number[][]) => parts.flatMap((part, index) => part.filter((_, place) => masks[index]![place]));
  const wanted = actions(targets);
  const numbers = {
    reward_mean: mean(scores),
    reward_max: Math.max(...scores),
    advantage_abs_mean: mean(actions(advantages).map(Math.abs)),
    lag_mean: mean(lags),
    lag_max: Math.max(...lags),
    effective_token_rate: wanted.length / Math.max(masks.reduce((sum, mask) => sum + mask.length, 0), 1),
    "critic/explained_variance": explainedVariance(wanted, actions(values)),
  };
  for (const [name, value] of Object.entries(numbers)) metrics.gauge(name, value);
}

/** 1 − Var(R − V)/Var(R); 0 when there is nothing to explain. */
function explainedVariance(wanted: number[], values: number[]): number {
  const spread = variance(wanted);
  if (spread === 0) return 0;
  return 1 - variance(wanted.map((target, place) => target - values[place]!)) / spread;
}

const total = (values: number[]) => values.reduce((sum, value) => sum + value, 0);

const mean = (values: number[]) => (values.length > 0 ? total(values) / values.length : 0);

function variance(values: number[]): number {
  const centre = mean(values);
  return total(values.map((value) => (value - centre) * (value - centre))) / Math.max(values.length, 1);
}

/** Four decimal places. A tie goes to the even digit, as elsewhere: only odd multiples of 1/32 have one, at 3125 or 9375. */
function fourPlaces(value: number): string {
  const [tie, lower] = [Math.abs(value * 32) % 2 === 1, Math.floor(value * 1e4)];
  return tie && lower % 2 === 0 ? (lower / 1e4).toFixed(4) : value.toFixed(4);
}
