/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/models@0.2.0' {
  /**
   * Bindings of this call.
   */
  export function bindings(): Array<string>;
  /**
   * Answers to each request, request by request, each drawn `n` times. The host runs them together.
   * At most 64 requests a call; one that fails fails the call.
   */
  export function chat(binding: string, requests: Array<ChatRequest>): Array<Array<Completion>>;
  /**
   * Log-prob of each token of `answer` after the conversation.
   */
  export function score(binding: string, messages: Array<Message>, answer: string): Array<number>;
  /**
   * What the step has used so far.
   */
  export function spent(): Usage;
  /**
   * Number of held-out tasks of the scenario. They never meet the trainer.
   */
  export function heldOutCount(): number;
  /**
   * Scores in [0, 1] of greedy answers to held-out tasks `first` to `first + count`, graded by the host.
   */
  export function heldOutScores(binding: string, first: number, count: number): Array<number>;
  export type Message = import('reef:recipe/types@0.2.0').Message;
  export type ModelsError = ModelsErrorUnknownBinding | ModelsErrorInvalid | ModelsErrorBudget | ModelsErrorCancelled | ModelsErrorOther;
  /**
   * No such binding in this call.
   */
  export interface ModelsErrorUnknownBinding {
    tag: 'unknown-binding',
    val: string,
  }
  export interface ModelsErrorInvalid {
    tag: 'invalid',
    val: string,
  }
  /**
   * More calls or tokens than the step may use.
   */
  export interface ModelsErrorBudget {
    tag: 'budget',
    val: string,
  }
  export interface ModelsErrorCancelled {
    tag: 'cancelled',
  }
  export interface ModelsErrorOther {
    tag: 'other',
    val: string,
  }
  export interface Sampling {
    /**
     * 0 = greedy, at most 10.
     */
    temperature: number,
    /**
     * In (0, 1].
     */
    topP: number,
    /**
     * Tokens of one answer, 1 to 8,192.
     */
    tokensMax: number,
    /**
     * Strings that end an answer; at most 16.
     */
    stop: Array<string>,
    /**
     * Answers to draw, 1 to 64.
     */
    n: number,
    /**
     * Seed of the first answer; the next ones count up. None = drawn from the step's seed.
     */
    seed: number | null,
  }
  export interface ChatRequest {
    messages: Array<Message>,
    how: Sampling,
  }
  /**
   * # Variants
   *
   * ## `"stop"`
   *
   * ## `"length"`
   */
  export type Finish = 'stop' | 'length';
  export interface Completion {
    text: string,
    finish: Finish,
    /**
     * Tokens of the answer.
     */
    tokens: number,
    /**
     * Mean log-prob of its tokens; NaN where the provider gives none.
     */
    meanLogprob: number,
  }
  /**
   * What the step has used so far.
   */
  export interface Usage {
    calls: number,
    promptTokens: number,
    answerTokens: number,
    /**
     * Money at the operator's prices; 0 for models of this machine.
     */
    costUsd: number,
  }
}
