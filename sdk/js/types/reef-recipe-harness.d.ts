/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/harness@0.2.0' {
  /**
   * Entries of the incumbent tree, by kind and id.
   */
  export function entries(): Array<Entry>;
  /**
   * Would the tree admit these changes? The error names the first that it would not.
   */
  export function check(changes: Array<Mutation>): void;
  /**
   * Names of the tasks.
   */
  export function tasks(): Array<string>;
  /**
   * Runs one task once; equal seeds make comparable episodes.
   */
  export function runEpisode(on: Tree, task: string, seed: number): Episode;
  export type Entry = import('reef:recipe/types@0.2.0').Entry;
  export type EntryName = import('reef:recipe/types@0.2.0').EntryName;
  export type Mutation = import('reef:recipe/types@0.2.0').Mutation;
  export type Candidate = import('reef:recipe/types@0.2.0').Candidate;
  export type HarnessError = HarnessErrorUnknownEntry | HarnessErrorUnknownTask | HarnessErrorRefused | HarnessErrorBudget | HarnessErrorCancelled | HarnessErrorOther;
  export interface HarnessErrorUnknownEntry {
    tag: 'unknown-entry',
    val: EntryName,
  }
  export interface HarnessErrorUnknownTask {
    tag: 'unknown-task',
    val: string,
  }
  /**
   * A mutation that the tree does not admit; names it and the rule.
   */
  export interface HarnessErrorRefused {
    tag: 'refused',
    val: string,
  }
  export interface HarnessErrorBudget {
    tag: 'budget',
    val: string,
  }
  export interface HarnessErrorCancelled {
    tag: 'cancelled',
  }
  export interface HarnessErrorOther {
    tag: 'other',
    val: string,
  }
  /**
   * Which tree an episode runs.
   */
  export type Tree = TreeIncumbent | TreeCandidate | TreeChanged;
  export interface TreeIncumbent {
    tag: 'incumbent',
  }
  /**
   * The candidate under evaluation.
   */
  export interface TreeCandidate {
    tag: 'candidate',
    val: Candidate,
  }
  /**
   * The incumbent with these changes.
   */
  export interface TreeChanged {
    tag: 'changed',
    val: Array<Mutation>,
  }
  /**
   * # Variants
   *
   * ## `"scored"`
   *
   * The verifier gave a score.
   * ## `"agent-failed"`
   *
   * The agent failed or ran out of its limits: score 0.
   * ## `"verifier-failed"`
   *
   * The verifier failed: no score.
   * ## `"infrastructure-failed"`
   *
   * The machine failed: no score, and never a 0.
   */
  export type EpisodeStatus = 'scored' | 'agent-failed' | 'verifier-failed' | 'infrastructure-failed';
  export interface Episode {
    status: EpisodeStatus,
    /**
     * In [0, 1]; NaN without a score.
     */
    score: number,
    /**
     * Last lines of what the agent did. Untrusted text.
     */
    trace: string,
    seconds: number,
  }
}
