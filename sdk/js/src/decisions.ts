/** Short ways to say a decision: what to train on, what to propose, what to make of a candidate. */
import type {
  Candidate, Decision, Group, Mutation, Proposal, Retirement, Route, Sample, Selection, Verdict,
} from "reef:recipe/types@0.2.0";

/** Not yet; the reason is shown in the status. */
export function wait(reason: string, retire: Retirement[] = []): Selection {
  return { choice: { tag: "wait", val: reason }, retire };
}

/** Train on these, in this order; each at most once. */
export function train(samples: Iterable<Sample>, retire: Retirement[] = []): Selection {
  return { choice: { tag: "train", val: [...samples] }, retire };
}

/** Train on these groups, in this order. */
export function trainGroups(groups: Group[], retire: Retirement[] = []): Selection {
  return { choice: { tag: "train-groups", val: groups }, retire };
}

/** Proposes a checkpoint of a trainer of this call. */
export function weights(candidate: Candidate): Proposal {
  return { tag: "weights", val: candidate };
}

/** Proposes changes of the harness tree, applied in order. */
export function mutations(changes: Mutation[]): Proposal {
  return { tag: "mutations", val: changes };
}

/** Proposes a routing policy, rules in order. */
export function router(routes: Route[]): Proposal {
  return { tag: "router", val: routes };
}

/** The batch is consumed and nothing is released; the reason is recorded. */
export function skip(reason: string): Proposal {
  return { tag: "skip", val: reason };
}

/** Release it, if the operator's gate agrees. */
export function promote(reason: string, measurements: Record<string, number> = {}): Verdict {
  return verdict("promote", reason, measurements);
}

/** Keep it for a person to look at. */
export function hold(reason: string, measurements: Record<string, number> = {}): Verdict {
  return verdict("hold", reason, measurements);
}

/** Drop it. */
export function reject(reason: string, measurements: Record<string, number> = {}): Verdict {
  return verdict("reject", reason, measurements);
}

function verdict(decision: Decision, reason: string, measurements: Record<string, number>): Verdict {
  return { decision, reason, measurements: Object.entries(measurements).map(([name, value]) => ({ name, value })) };
}
