/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/training@0.2.0' {
  /**
   * A trainer that starts from the head release: adapter, optimizer state and critic.
   */
  export function open(): Trainer;
  /**
   * A sample of this call with another prompt, another response or both: token ids. A new response is all
   * action tokens and has no recorded log-probs (they read as 0), so only `nll` and `forward` make sense on it.
   * None keeps the sample's own. The new handle is valid for this call.
   */
  export function derive(item: Sample, prompt: Array<number> | null, response: Array<number> | null): Sample;
  /**
   * Log-probs of the response tokens, concatenated.
   */
  export function forward(on: Trainer, which: Policy, items: Array<number>): Array<number>;
  /**
   * `forward-backward` and `optimizer-step` in one.
   * Metrics: loss, gradient_norm, masked_share, first_step_kl, logprob_abs_diff, tokens, entropy, skipped.
   */
  export function train(on: Trainer, items: Array<number>, what: Array<Term>, how: Optimizer): Array<Measurement>;
  /**
   * Adds the gradient of the sum of the terms to the trainer's gradient. Metrics as in `train`, of this call.
   */
  export function forwardBackward(on: Trainer, items: Array<number>, what: Array<Term>): Array<Measurement>;
  /**
   * Adds the gradient of any loss that is a function of the response log-probs: `gradients` is dL/d(log π), one
   * per response token, concatenated; used as given, on observations too. Metrics: tokens, gradient_norm of the
   * trainer's gradient so far.
   */
  export function backward(on: Trainer, items: Array<number>, gradients: Array<number>): Array<Measurement>;
  /**
   * One step on the trainer's gradient, which is then 0. Metrics: gradient_norm before clipping, skipped (1 when
   * the gradient was exactly 0, and nothing changed).
   */
  export function optimizerStep(on: Trainer, how: Optimizer): Array<Measurement>;
  /**
   * Moves the exponential moving average towards the adapter: ema ← (1 − rate)·ema + rate·adapter, rate in [0, 1].
   */
  export function updateEma(on: Trainer, rate: number): void;
  /**
   * Critic values of the response tokens, concatenated; 0 before the first fit.
   */
  export function values(on: Trainer, items: Array<number>): Array<number>;
  /**
   * Regresses the critic on returns (concatenated, mean squared error over action tokens). Metrics: value_loss,
   * explained_variance.
   */
  export function fitValues(on: Trainer, items: Array<number>, returns: Array<number>, how: CriticOptimizer): Array<Measurement>;
  /**
   * Freezes the trainer's state as a candidate.
   */
  export function checkpoint(on: Trainer): Candidate;
  export type Sample = import('reef:recipe/types@0.2.0').Sample;
  export type Trainer = import('reef:recipe/types@0.2.0').Trainer;
  export type Candidate = import('reef:recipe/types@0.2.0').Candidate;
  export type Measurement = import('reef:recipe/types@0.2.0').Measurement;
  export type TrainingError = TrainingErrorUnknownSample | TrainingErrorUnknownTrainer | TrainingErrorInvalid | TrainingErrorBudget | TrainingErrorUnsupported | TrainingErrorCancelled | TrainingErrorOther;
  export interface TrainingErrorUnknownSample {
    tag: 'unknown-sample',
    val: number,
  }
  export interface TrainingErrorUnknownTrainer {
    tag: 'unknown-trainer',
    val: number,
  }
  /**
   * An argument has the wrong length, is not finite or is out of range; names it.
   */
  export interface TrainingErrorInvalid {
    tag: 'invalid',
    val: string,
  }
  export interface TrainingErrorBudget {
    tag: 'budget',
    val: string,
  }
  /**
   * The host's trainer cannot do this; names it.
   */
  export interface TrainingErrorUnsupported {
    tag: 'unsupported',
    val: string,
  }
  /**
   * The step was cancelled by the host.
   */
  export interface TrainingErrorCancelled {
    tag: 'cancelled',
  }
  export interface TrainingErrorOther {
    tag: 'other',
    val: string,
  }
  /**
   * Whose distribution a forward pass reads.
   */
  export type Policy = PolicyCurrent | PolicyBase | PolicyEma | PolicyNamed;
  /**
   * The trainer's adapter as it is now.
   */
  export interface PolicyCurrent {
    tag: 'current',
  }
  /**
   * The frozen base model.
   */
  export interface PolicyBase {
    tag: 'base',
  }
  /**
   * The exponential moving average of the trainer's adapter.
   */
  export interface PolicyEma {
    tag: 'ema',
  }
  /**
   * A model binding of the operator.
   */
  export interface PolicyNamed {
    tag: 'named',
    val: string,
  }
  /**
   * Strict bounds of the ratio: kept iff low < r < high.
   */
  export interface Bounds {
    low: number,
    high: number,
  }
  /**
   * The detached factor f(r) in the loss −f(r)·A·log π.
   */
  export type Weight = WeightReinforce | WeightRatio | WeightTruncated | WeightMasked | WeightPpo;
  /**
   * f = 1.
   */
  export interface WeightReinforce {
    tag: 'reinforce',
  }
  /**
   * f = r.
   */
  export interface WeightRatio {
    tag: 'ratio',
  }
  /**
   * f = min(r, cap).
   */
  export interface WeightTruncated {
    tag: 'truncated',
    val: number,
  }
  /**
   * f = r inside the bounds, else 0 (DIS).
   */
  export interface WeightMasked {
    tag: 'masked',
    val: Bounds,
  }
  /**
   * The clipped surrogate −min(r·A, clip(r, low, high)·A).
   */
  export interface WeightPpo {
    tag: 'ppo',
    val: Bounds,
  }
  /**
   * What π_old is.
   * # Variants
   *
   * ## `"rollout"`
   *
   * The log-probs recorded when the tokens were sampled.
   * ## `"recomputed"`
   *
   * The log-probs of the head release, computed by the trainer.
   */
  export type RatioSource = 'rollout' | 'recomputed';
  /**
   * How token losses become one number.
   * # Variants
   *
   * ## `"token-sum"`
   *
   * ## `"sample-token-mean"`
   *
   * Mean over the action tokens of a sample, then mean over samples.
   * ## `"global-token-mean"`
   *
   * Mean over all action tokens of the batch.
   */
  export type Reduction = 'token-sum' | 'sample-token-mean' | 'global-token-mean';
  /**
   * One number a sample, or one a response token.
   */
  export type Advantages = AdvantagesPerSample | AdvantagesPerToken;
  export interface AdvantagesPerSample {
    tag: 'per-sample',
    val: Array<number>,
  }
  /**
   * Concatenated; ignored where the mask is 0.
   */
  export interface AdvantagesPerToken {
    tag: 'per-token',
    val: Array<number>,
  }
  /**
   * Adds coefficient·k3 to every token's loss, k3 = exp(d) − d − 1, d = log π_reference − log π (Schulman).
   */
  export interface KlPenalty {
    coefficient: number,
    reference: Policy,
  }
  export interface PolicyGradient {
    weight: Weight,
    old: RatioSource,
    advantages: Advantages,
    reduction: Reduction,
    kl: KlPenalty | null,
    /**
     * Coefficient of the entropy bonus: adds −coefficient·H(π) to every token's loss, H over the whole vocabulary.
     */
    entropy: number,
    /**
     * Score centering over the recorded top-K (arXiv 2609.20807); needs `top-k` in the manifest.
     */
    scoreCentering: boolean,
  }
  /**
   * # Variants
   *
   * ## `"forward"`
   *
   * ## `"reverse"`
   *
   * ## `"jensen-shannon"`
   */
  export type DivergenceKind = 'forward' | 'reverse' | 'jensen-shannon';
  /**
   * D(teacher, student) per token.
   */
  export interface Divergence {
    kind: DivergenceKind,
    /**
     * β of Jensen-Shannon, in (0, 1); ignored otherwise.
     */
    beta: number,
  }
  /**
   * Which part of the vocabulary is compared.
   */
  export type Support = SupportExact | SupportTopKRenormalised | SupportTopKTail | SupportSampled;
  export interface SupportExact {
    tag: 'exact',
  }
  /**
   * The student's K most likely ids, renormalised.
   */
  export interface SupportTopKRenormalised {
    tag: 'top-k-renormalised',
    val: number,
  }
  /**
   * The student's K most likely ids and one bucket for the rest.
   */
  export interface SupportTopKTail {
    tag: 'top-k-tail',
    val: number,
  }
  /**
   * The sampled id only.
   */
  export interface SupportSampled {
    tag: 'sampled',
  }
  export type Importance = ImportanceOff | ImportanceToken | ImportanceSequence;
  export interface ImportanceOff {
    tag: 'off',
  }
  /**
   * Per token, capped.
   */
  export interface ImportanceToken {
    tag: 'token',
    val: number,
  }
  /**
   * Masked mean of the capped token ratios.
   */
  export interface ImportanceSequence {
    tag: 'sequence',
    val: number,
  }
  export interface Distillation {
    teacher: Policy,
    /**
     * The sample whose prompt the teacher reads, one per item; empty = the item itself.
     */
    contexts: Array<number>,
    divergence: Divergence,
    support: Support,
    importance: Importance,
    /**
     * One factor per sample; empty = 1.
     */
    weights: Array<number>,
    /**
     * Response tokens at the start of each sample that do not count.
     */
    skip: number,
  }
  /**
   * On-policy distillation over the recorded top-K (recipes: openclaw-rl).
   */
  export interface TopKDistillation {
    teacher: Policy,
    contexts: Array<number>,
    /**
     * Clamp of the log-prob difference.
     */
    advantageMax: number,
    bounds: Bounds,
  }
  export type Objective = ObjectivePolicyGradient | ObjectiveNll | ObjectiveDistill | ObjectiveDistillTopK;
  export interface ObjectivePolicyGradient {
    tag: 'policy-gradient',
    val: PolicyGradient,
  }
  /**
   * Negative log-likelihood of the action tokens, sample-token-mean.
   */
  export interface ObjectiveNll {
    tag: 'nll',
  }
  export interface ObjectiveDistill {
    tag: 'distill',
    val: Distillation,
  }
  export interface ObjectiveDistillTopK {
    tag: 'distill-top-k',
    val: TopKDistillation,
  }
  /**
   * One term of a weighted sum of objectives.
   */
  export interface Term {
    factor: number,
    what: Objective,
  }
  /**
   * AdamW; the moments live in the trainer and in its checkpoint.
   */
  export interface Optimizer {
    learningRate: number,
    beta1: number,
    beta2: number,
    epsilon: number,
    weightDecay: number,
    /**
     * Global gradient norm is clipped to this; 0 = off.
     */
    gradientNormMax: number,
  }
  export interface CriticOptimizer {
    learningRate: number,
    /**
     * Updates on this batch.
     */
    updates: number,
  }
}
