/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/experience@0.2.0' {
  /**
   * `score` of the report, one per sample; NaN where no report carries one.
   */
  export function scores(items: Array<number>): Array<number>;
  /**
   * Releases between the sampling release and now, one per sample.
   */
  export function lags(items: Array<number>): Array<number>;
  /**
   * Release that sampled the tokens, one per sample.
   */
  export function releases(items: Array<number>): Array<ReleaseId>;
  /**
   * Number of inference records that the reports reference, one per sample.
   */
  export function referenceCounts(items: Array<number>): Array<number>;
  /**
   * Tokens of the prompt, one per sample.
   */
  export function promptLengths(items: Array<number>): Array<number>;
  /**
   * Tokens after the first prompt, observations included, one per sample: T in every per-token column.
   */
  export function responseLengths(items: Array<number>): Array<number>;
  /**
   * Tokens that the policy sampled, one per sample: the ones in its mask.
   */
  export function actionCounts(items: Array<number>): Array<number>;
  /**
   * Mean log-prob of the sampled tokens, one per sample.
   */
  export function meanLogprobs(items: Array<number>): Array<number>;
  /**
   * Receipt of the last inference record, one per sample.
   */
  export function recordIds(items: Array<number>): Array<RecordId>;
  /**
   * Identity of the prompt, one per sample: equal prompts have equal keys.
   */
  export function promptKeys(items: Array<number>): Array<string>;
  /**
   * Action mask of one sample, T bytes: 1 = sampled by the policy, 0 = observation.
   */
  export function mask(item: Sample): Uint8Array;
  /**
   * Token ids of one sample's prompt.
   */
  export function promptTokens(item: Sample): Array<number>;
  /**
   * Token ids of one sample's response, T of them.
   */
  export function tokens(item: Sample): Array<number>;
  /**
   * Recorded log-probs at the sampling temperature, T of them; 0 on observations.
   */
  export function logprobs(item: Sample): Array<number>;
  export function topK(item: Sample): Alternatives;
  /**
   * The records that the trajectory was assembled from, in order.
   */
  export function turns(item: Sample): Array<Turn>;
  /**
   * The conversation of the first record's prompt.
   */
  export function messages(item: Sample): Array<Message>;
  /**
   * Text of the response, observations included.
   */
  export function responseText(item: Sample): string;
  /**
   * Tags of the last inference record.
   */
  export function tags(item: Sample): Array<[string, string]>;
  /**
   * Session of the last inference record.
   */
  export function session(item: Sample): string | null;
  /**
   * A field of `metadata` of the report, as JSON.
   */
  export function reportField(item: Sample, name: string): string | null;
  /**
   * Reports of the scenario that could not be assembled since the last selection. Empty outside `select-samples`.
   */
  export function unusable(): Array<UnusableReport>;
  export type Sample = import('reef:recipe/types@0.2.0').Sample;
  export type RecordId = import('reef:recipe/types@0.2.0').RecordId;
  export type ReleaseId = import('reef:recipe/types@0.2.0').ReleaseId;
  export type Message = import('reef:recipe/types@0.2.0').Message;
  export type ExperienceError = ExperienceErrorUnknownSample | ExperienceErrorBudget | ExperienceErrorAbsent | ExperienceErrorOther;
  /**
   * The handle does not name a sample of this call.
   */
  export interface ExperienceErrorUnknownSample {
    tag: 'unknown-sample',
    val: number,
  }
  /**
   * More host calls or more data than the budget of the call allows.
   */
  export interface ExperienceErrorBudget {
    tag: 'budget',
    val: string,
  }
  /**
   * The record does not hold what was asked for, e.g. top-K of a sampler that kept none.
   */
  export interface ExperienceErrorAbsent {
    tag: 'absent',
    val: string,
  }
  export interface ExperienceErrorOther {
    tag: 'other',
    val: string,
  }
  /**
   * The most likely alternatives that the sampler recorded.
   */
  export interface Alternatives {
    /**
     * K, the same for every token.
     */
    k: number,
    /**
     * T × K ids, token by token, most likely first.
     */
    ids: Array<number>,
    /**
     * Their log-probs.
     */
    logprobs: Array<number>,
  }
  /**
   * One inference record of a trajectory.
   */
  export interface Turn {
    id: RecordId,
    release: ReleaseId,
    /**
     * First response token of the turn, counted from the start of the response.
     */
    start: number,
    /**
     * Sampled tokens of the turn.
     */
    length: number,
  }
  /**
   * Why records did not become one trajectory.
   */
  export type AssemblyFailure = AssemblyFailureEmpty | AssemblyFailureNoTokens | AssemblyFailureFork | AssemblyFailureOther;
  /**
   * The report references no record with tokens.
   */
  export interface AssemblyFailureEmpty {
    tag: 'empty',
  }
  /**
   * Turn number (from 0) without tokens, or without one log-prob per token.
   */
  export interface AssemblyFailureNoTokens {
    tag: 'no-tokens',
    val: number,
  }
  /**
   * Turn number (from 0) that leaves the transcript before the last response.
   */
  export interface AssemblyFailureFork {
    tag: 'fork',
    val: number,
  }
  export interface AssemblyFailureOther {
    tag: 'other',
    val: string,
  }
  /**
   * A report that is not a sample, and why.
   */
  export interface UnusableReport {
    report: RecordId,
    why: AssemblyFailure,
  }
}
