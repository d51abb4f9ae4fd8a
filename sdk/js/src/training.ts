/** The trainer: forward and backward passes on a private copy of the scenario's adapter. */
import type {
  Advantages, Distillation, KlPenalty, Objective, Optimizer as OptimizerValue, Policy as PolicyValue, RatioSource,
  Reduction, Term, Weight as WeightValue,
} from "reef:recipe/training@0.2.0";
import type { Candidate, Measurement } from "reef:recipe/types@0.2.0";
import { training } from "./host";
import type { Samples } from "./samples";

/** The detached factor f(r) in the loss −f(r)·A·log π, where r is the ratio of the policies. */
export const Weight = {
  /** f = 1. */
  reinforce: (): WeightValue => ({ tag: "reinforce" }),
  /** f = r. */
  ratio: (): WeightValue => ({ tag: "ratio" }),
  /** f = min(r, cap). */
  truncated: (cap: number): WeightValue => ({ tag: "truncated", val: cap }),
  /** f = r inside the bounds, else 0. */
  masked: (low: number, high: number): WeightValue => ({ tag: "masked", val: { low, high } }),
  /** The clipped surrogate. */
  ppo: (low: number, high: number): WeightValue => ({ tag: "ppo", val: { low, high } }),
};

/** Whose distribution a forward pass reads. */
export const Policy = {
  current: (): PolicyValue => ({ tag: "current" }),
  base: (): PolicyValue => ({ tag: "base" }),
  ema: (): PolicyValue => ({ tag: "ema" }),
  named: (binding: string): PolicyValue => ({ tag: "named", val: binding }),
};

/** Advantages: one number a sample, or one a response token (concatenated). */
export type PerSampleOrToken = { perSample: number[] } | { perToken: number[] };

/** What a policy gradient may say beside its weight and advantages. */
export interface PolicyGradientOptions {
  old?: RatioSource;
  reduction?: Reduction;
  kl?: KlPenalty;
  entropy?: number;
  scoreCentering?: boolean;
}

/** −f(r)·A·log π; mean over the action tokens of a sample, then over samples, unless said otherwise. */
export function policyGradient(weight: WeightValue, of: PerSampleOrToken, options: PolicyGradientOptions = {}): Objective {
  const advantages: Advantages =
    "perSample" in of ? { tag: "per-sample", val: of.perSample } : { tag: "per-token", val: of.perToken };
  return {
    tag: "policy-gradient",
    val: {
      weight,
      old: options.old ?? "rollout",
      advantages,
      reduction: options.reduction ?? "sample-token-mean",
      kl: options.kl ?? null,
      entropy: options.entropy ?? 0,
      scoreCentering: options.scoreCentering ?? false,
    },
  };
}

/** Negative log-likelihood of the action tokens. */
export const nll = (): Objective => ({ tag: "nll" });

/** Distillation. */
export const distill = (distillation: Distillation): Objective => ({ tag: "distill", val: distillation });

/** How a gradient becomes a step. */
export const Optimizer = {
  /** AdamW without weight decay: β 0.9 and 0.95, ε 1e-8, gradient norm clipped to 1. */
  adamw: (learningRate: number, change: Partial<OptimizerValue> = {}): OptimizerValue => ({
    learningRate, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weightDecay: 0, gradientNormMax: 1, ...change,
  }),
};

const terms = (what: Objective | Term[]): Term[] => (Array.isArray(what) ? what : [{ factor: 1, what }]);

const named = (measurements: Measurement[]): Record<string, number> =>
  Object.fromEntries(measurements.map(({ name, value }) => [name, value]));

/** A trainer that started from the head release. Valid for this call. */
export class Trainer {
  private constructor(readonly handle: number) {}

  /** Opens one: adapter, optimizer state and critic of the head release. */
  static open(): Trainer {
    return new Trainer(training.open());
  }

  /** Log-probs of the response tokens, concatenated; `samples.parts(…)` cuts them. */
  forward(which: PolicyValue, samples: Samples): number[] {
    return training.forward(this.handle, which, samples.handles);
  }

  /** One optimizer step on an objective, or on a weighted sum of them. */
  train(samples: Samples, what: Objective | Term[], how: OptimizerValue): Record<string, number> {
    return named(training.train(this.handle, samples.handles, terms(what), how));
  }

  /** Adds the gradient of the objective to the trainer's gradient. */
  forwardBackward(samples: Samples, what: Objective | Term[]): Record<string, number> {
    return named(training.forwardBackward(this.handle, samples.handles, terms(what)));
  }

  /** Adds the gradient of a loss of the recipe's own: dL/d(log π), one per response token, concatenated. */
  backward(samples: Samples, gradients: number[]): Record<string, number> {
    return named(training.backward(this.handle, samples.handles, gradients));
  }

  /** One step on the trainer's gradient, which is then 0. */
  optimizerStep(how: OptimizerValue): Record<string, number> {
    return named(training.optimizerStep(this.handle, how));
  }

  /** Moves the moving average towards the adapter. */
  updateEma(rate: number): void {
    training.updateEma(this.handle, rate);
  }

  /** The critic's values of the response tokens, concatenated. */
  values(samples: Samples): number[] {
    return training.values(this.handle, samples.handles);
  }

  /** Regresses the critic on returns, concatenated. */
  fitValues(samples: Samples, returns: number[], learningRate: number, updates = 1): Record<string, number> {
    return named(training.fitValues(this.handle, samples.handles, returns, { learningRate, updates }));
  }

  /** Freezes the state as a candidate. */
  checkpoint(): Candidate {
    return training.checkpoint(this.handle);
  }
}
