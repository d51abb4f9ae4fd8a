/**
 * Samples by handle, and their columns: one value a sample, or one value a response token. Prompts and texts stay in
 * the host; a column of samples is one call however many it covers, a column of tokens is one call a sample.
 */
import type { Sample, Selection } from "reef:recipe/types@0.2.0";
import { train, wait } from "./decisions";
import { Failure } from "./failure";
import { experience } from "./host";

/** Samples of this call, in order. */
export class Samples {
  readonly handles: Sample[];

  constructor(handles: Iterable<Sample>) {
    this.handles = [...handles];
  }

  get length(): number {
    return this.handles.length;
  }

  [Symbol.iterator](): Iterator<Sample> {
    return this.handles[Symbol.iterator]();
  }

  /** The first `count` as a batch, or to wait for that many. */
  first(count: number): Selection {
    if (count > 0 && count <= this.length) return train(this.handles.slice(0, count));
    return wait(`${this.length} of ${count} samples`);
  }

  /** Score of the report; NaN where it carries none. */
  scores = () => experience.scores(this.handles);
  /** Releases between the one that sampled and now. */
  lags = () => experience.lags(this.handles);
  /** Release that sampled the tokens. */
  releases = () => experience.releases(this.handles);
  /** Inference records that the reports reference. */
  referenceCounts = () => experience.referenceCounts(this.handles);
  /** Tokens of the prompt. */
  promptLengths = () => experience.promptLengths(this.handles);
  /** Tokens after the first prompt, observations included: T of every per-token column. */
  responseLengths = () => experience.responseLengths(this.handles);
  /** Tokens that the policy sampled. */
  actionCounts = () => experience.actionCounts(this.handles);
  /** Mean log-prob of the sampled tokens. */
  meanLogprobs = () => experience.meanLogprobs(this.handles);
  /** Receipt of the last inference record. */
  recordIds = () => experience.recordIds(this.handles);
  /** Equal prompts have equal keys. */
  promptKeys = () => experience.promptKeys(this.handles);
  /** 1 where the policy sampled, 0 on observations. */
  masks = () => this.handles.map((sample) => experience.mask(sample));
  /** Ids of the response tokens. */
  tokens = () => this.handles.map((sample) => experience.tokens(sample));
  /** Recorded log-probs at the sampling temperature; 0 on observations. */
  logprobs = () => this.handles.map((sample) => experience.logprobs(sample));

  /** Cuts a concatenated per-token column into one part a sample. */
  parts(column: number[]): number[][] {
    let start = 0;
    const parts = this.responseLengths().map((length) => column.slice(start, (start += length)));
    if (start !== column.length) throw new Failure(`a column of ${column.length} values for ${start} response tokens`);
    return parts;
  }
}

/** The unconsumed samples of the scenario, oldest first. */
export type Pool = Samples;
/** The samples of one step, in the order of the selection. */
export type Batch = Samples;
