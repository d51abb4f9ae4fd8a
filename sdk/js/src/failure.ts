/** How a refusal of the host becomes the failure of a call, so that a recipe needs no error handling. */
import type { Failure as Value } from "reef:recipe/types@0.2.0";

const REFUSALS: Record<string, (value: string) => string> = {
  "unknown-sample": (handle) => `${handle} is not a sample of this call`,
  "unknown-trainer": (handle) => `${handle} is not a trainer of this call`,
  "unknown-binding": (name) => `no binding '${name}' in this call`,
  "unknown-task": (name) => `no task '${name}'`,
  "unknown-verifier": (name) => `no verifier '${name}'`,
  "unknown-entry": (name) => `the tree has no entry '${name}'`,
  absent: (what) => `not recorded: ${what}`,
  budget: (what) => `over budget: ${what}`,
  unsupported: (what) => `this host cannot do it: ${what}`,
  refused: (what) => `refused: ${what}`,
  cancelled: () => "the step was cancelled",
};

/** Why a recipe gives up a call: the step fails and nothing is consumed. */
export class Failure extends Error {
  readonly kind: Value["tag"];

  constructor(reason: string, kind: Value["tag"] = "other") {
    super(reason);
    this.kind = kind;
  }

  /** A configuration value that cannot be used; the message names the key. */
  static config(key: string, problem: string): Failure {
    return new Failure(`${key}: ${problem}`, "invalid-config");
  }

  /** A refusal of the host. */
  static capability(message: string): Failure {
    return new Failure(message, "capability");
  }

  /** The value that crosses the boundary, of anything that was thrown. */
  static valueOf(thrown: unknown): Value {
    if (thrown instanceof Failure) return { tag: thrown.kind, val: thrown.message };
    return { tag: "other", val: String(thrown) };
  }
}

/** QuickJS reads a `u32` of 2³¹ and more as a negative number; this is the number that was meant. */
export const unsigned = (value: number): number => value >>> 0;

/** The number that QuickJS hands over as this `u32`; a positive one of 2³¹ and more it would cut off. */
export const handedOver = (value: number): number => value | 0;

type Refusal = { tag: string; val?: string | number | { id: string } };

function refusalOf(thrown: unknown): Refusal | undefined {
  const value = (thrown as { payload?: unknown })?.payload ?? thrown;
  return typeof (value as Refusal)?.tag === "string" ? (value as Refusal) : undefined;
}

/** An interface of the host whose functions throw `Failure` instead of its error variants. */
export function guarded<T extends object>(name: string, functions: T): T {
  const wrapped: Record<string, unknown> = {};
  for (const [key, original] of Object.entries(functions)) {
    if (typeof original !== "function") continue;
    wrapped[key] = (...inputs: unknown[]) => {
      try {
        return original(...inputs);
      } catch (thrown) {
        const refusal = refusalOf(thrown);
        if (refusal === undefined) throw thrown;
        const { val } = refusal;
        const value = typeof val === "object" ? val.id : String(typeof val === "number" ? unsigned(val) : val);
        throw Failure.capability(`${name}: ${(REFUSALS[refusal.tag] ?? String)(value)}`);
      }
    };
  }
  if (Object.keys(wrapped).length > 0) return wrapped as T;
  // The build leaves out what the manifest does not ask for.
  return new Proxy(wrapped, {
    get: () => () => {
      throw new Failure(`${name}: the manifest does not ask for this capability`);
    },
  }) as T;
}
