/**
 * Write a learning strategy for Reef in TypeScript or JavaScript: `export const strategy = recipe({ … })`, and build
 * the file with `sdk/js/build.sh`. Everything a recipe needs is in this module. A capability that a recipe never
 * uses is not part of its component. There is no clock, no randomness, no file and no socket.
 */
export * from "./decisions";
export { Failure } from "./failure";
export { config, experience, harness, log, metrics, models, tokens, verify } from "./host";
export * from "./keys";
export * from "./manifest";
export * from "./recipe";
export * from "./samples";
export * from "./state";
export * from "./training";
export type {
  Context, Group, Manifest, Measurement, Message, Mutation, Proposal, Retirement, Route, Sample, Selection, Verdict,
} from "reef:recipe/types@0.2.0";
