/** What a recipe writes, and how it becomes the exports of its component. */
import type { Exchange, Judgement } from "reef:recipe/live@0.2.0";
import type { StateEntry } from "reef:recipe/migration@0.2.0";
import type { Request } from "reef:recipe/requests@0.2.0";
import type { Candidate, Context, Manifest, Message, Proposal, Selection, Verdict } from "reef:recipe/types@0.2.0";
import { promote } from "./decisions";
import { Failure, unsigned } from "./failure";
import { Samples, type Batch, type Pool } from "./samples";

export type { Exchange, Judgement, Request };

/** A learning strategy. Every call starts in a fresh sandbox: what must survive goes through `state`. */
export interface Recipe {
  /** What the recipe is and what it asks for. */
  manifest: Manifest;
  /** Decides what to learn from now. `pool`: unconsumed samples, oldest first. */
  select(ctx: Context, pool: Pool): Selection;
  /** Learns from the selected samples, in their order, and proposes the outcome. */
  propose(ctx: Context, batch: Batch): Proposal;
  /** Judges the candidate. Without it the decision is the operator's gate's. */
  evaluate?(ctx: Context, candidate: Candidate): Verdict;
}

/** The context with its numbers as they were meant. */
const meant = (ctx: Context): Context => ({ ...ctx, step: unsigned(ctx.step), seed: unsigned(ctx.seed) });

/** Anything thrown becomes the failure of the call, so that nothing traps. */
function deciding<T>(decide: () => T): T {
  try {
    return decide();
  } catch (thrown) {
    throw Failure.valueOf(thrown);
  }
}

/** The export of every recipe: `export const strategy = recipe({ … })`. */
export function recipe(strategy: Recipe) {
  return {
    describe: () => strategy.manifest,
    selectSamples: (ctx: Context, pool: number[]) => deciding(() => strategy.select(meant(ctx), new Samples(pool))),
    proposeUpdate: (ctx: Context, batch: number[]) => deciding(() => strategy.propose(meant(ctx), new Samples(batch))),
    evaluate: (ctx: Context, subject: Candidate) =>
      deciding(() => strategy.evaluate?.(meant(ctx), subject) ?? promote("the recipe leaves the decision to the operator's gate")),
  };
}

/** Optional: `export const migration = migrating((fromVersion, state) => …)` carries the state of an older version over. */
export function migrating(migrate: (fromVersion: string, state: Map<string, Uint8Array>) => Map<string, Uint8Array>) {
  return {
    migrate: (fromVersion: string, entries: StateEntry[]): StateEntry[] =>
      deciding(() => [...migrate(fromVersion, new Map(entries.map((entry) => [entry.key, entry.value])))]
        .map(([key, value]) => ({ key, value }))),
  };
}

/** Optional: `export const live = following((ctx, exchanges) => …)` scores recorded exchanges, oldest first. */
export function following(ingest: (ctx: Context, exchanges: Exchange[]) => Judgement[]) {
  return { ingest: (ctx: Context, exchanges: Exchange[]) => deciding(() => ingest(meant(ctx), exchanges)) };
}

/** Optional: `export const requests = changing((request) => …)`; the messages to answer instead, null = unchanged. */
export function changing(transform: (request: Request) => Message[] | null) {
  return { transformRequest: transform };
}
