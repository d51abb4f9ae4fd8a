/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/live@0.2.0' {
  /**
   * Called after exchanges were recorded, oldest first, each once. State written here is kept.
   */
  export function ingest(ctx: Context, exchanges: Array<Exchange>): Array<Judgement>;
  export type Context = import('reef:recipe/types@0.2.0').Context;
  export type Failure = import('reef:recipe/types@0.2.0').Failure;
  export type RecordId = import('reef:recipe/types@0.2.0').RecordId;
  export type ReleaseId = import('reef:recipe/types@0.2.0').ReleaseId;
  export type Message = import('reef:recipe/types@0.2.0').Message;
  /**
   * A request and its answer, as recorded.
   */
  export interface Exchange {
    id: RecordId,
    release: ReleaseId,
    /**
     * Milliseconds since the Unix epoch.
     */
    atMs: number,
    session: string | null,
    tags: Array<[string, string]>,
    /**
     * The conversation that was sent.
     */
    messages: Array<Message>,
    answer: string,
    /**
     * Did the request offer tools?
     */
    tools: boolean,
    promptTokens: number,
    answerTokens: number,
  }
  /**
   * A score that the recipe gives to a recorded exchange. The host turns it into a report of this recipe.
   */
  export interface Judgement {
    receipt: RecordId,
    /**
     * Finite.
     */
    score: number,
    /**
     * JSON object; becomes the metadata of the report.
     */
    metadata: string,
  }
}
