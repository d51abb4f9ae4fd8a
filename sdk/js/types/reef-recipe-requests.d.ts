/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/requests@0.2.0' {
  /**
   * The messages to answer instead; none = unchanged. The record keeps what was sent to the model.
   */
  export function transformRequest(request: Request): Array<Message> | null;
  export type Message = import('reef:recipe/types@0.2.0').Message;
  export interface Request {
    messages: Array<Message>,
    session: string | null,
    tags: Array<[string, string]>,
  }
}
