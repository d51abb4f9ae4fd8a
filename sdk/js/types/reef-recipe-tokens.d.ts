/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/tokens@0.2.0' {
  /**
   * Ids of a text, without special tokens being added.
   */
  export function encode(text: string): Array<number>;
  /**
   * Text of ids; partial characters become U+FFFD.
   */
  export function decode(ids: Array<number>): string;
  /**
   * Ids of a conversation through the chat template, up to where the assistant answers.
   */
  export function render(messages: Array<Message>): Array<number>;
  export type Message = import('reef:recipe/types@0.2.0').Message;
  export type TokensError = TokensErrorInvalid | TokensErrorBudget | TokensErrorOther;
  export interface TokensErrorInvalid {
    tag: 'invalid',
    val: string,
  }
  export interface TokensErrorBudget {
    tag: 'budget',
    val: string,
  }
  export interface TokensErrorOther {
    tag: 'other',
    val: string,
  }
}
