/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/strategy@0.2.0' {
  /**
   * Constant; called once when the component is loaded, with no data and no capability that answers.
   */
  export function describe(): Manifest;
  /**
   * `pool`: unconsumed samples of the scenario, oldest first.
   */
  export function selectSamples(ctx: Context, pool: Array<number>): Selection;
  /**
   * `batch`: the samples of the selection, in its order.
   */
  export function proposeUpdate(ctx: Context, batch: Array<number>): Proposal;
  export function evaluate(ctx: Context, subject: Candidate): Verdict;
  export type Manifest = import('reef:recipe/types@0.2.0').Manifest;
  export type Context = import('reef:recipe/types@0.2.0').Context;
  export type Sample = import('reef:recipe/types@0.2.0').Sample;
  export type Candidate = import('reef:recipe/types@0.2.0').Candidate;
  export type Selection = import('reef:recipe/types@0.2.0').Selection;
  export type Proposal = import('reef:recipe/types@0.2.0').Proposal;
  export type Verdict = import('reef:recipe/types@0.2.0').Verdict;
  export type Failure = import('reef:recipe/types@0.2.0').Failure;
}
