/** Building a manifest: what a recipe says of itself before it is given anything. */
import type { Manifest, Surface } from "reef:recipe/types@0.2.0";
import type { Field, Key } from "./keys";

/** An interface of the host that a recipe may ask for. */
export type Capability =
  | "experience" | "training" | "models" | "harness" | "verify" | "tokens" | "state" | "config" | "log" | "metrics";

type AnyKey = Key<number> | Key<boolean> | Key<string>;
type AnyField = Field<number> | Field<boolean> | Field<string>;

/** What a manifest may say beside its name. */
export interface Asks {
  /** Interfaces that the recipe asks for; `config` is asked for by declaring a key. */
  asks?: Capability[];
  keys?: AnyKey[];
  fields?: AnyField[];
  /** Reports without a finite score are of no use. */
  needsScore?: boolean;
  /** Alternatives per token that the sampler must record. */
  topK?: number;
  /** Releases after which an evaluation of the head is worth repeating. */
  reEvaluateEvery?: number;
}

/** Makes a manifest: of a recipe that evolves the weights, the harness tree or the routing policy. */
export const manifest = {
  weights: (name: string, version: string, what: Asks = {}) => of("weights", name, version, what),
  harness: (name: string, version: string, what: Asks = {}) => of("harness", name, version, what),
  router: (name: string, version: string, what: Asks = {}) => of("router", name, version, what),
};

function of(surface: Surface, name: string, version: string, what: Asks): Manifest {
  const config = (what.keys ?? []).map((key) => key.toWit());
  const capabilities = new Set<string>(what.asks ?? []);
  if (config.length > 0) capabilities.add("config");
  return {
    name,
    version,
    surface,
    needsScore: what.needsScore ?? false,
    reportFields: (what.fields ?? []).map((field) => field.toWit()),
    config,
    capabilities: [...capabilities],
    topK: what.topK ?? 0,
    reEvaluateEvery: what.reEvaluateEvery ?? 0,
  };
}
