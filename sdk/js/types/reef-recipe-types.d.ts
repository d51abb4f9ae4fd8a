declare module 'reef:recipe/types@0.2.0' {
  /**
   * One trajectory with its reports: the unit of learning. Valid for this call.
   */
  export type Sample = number;
  /**
   * A private copy of the scenario's adapter with its optimizer state. Valid for this call.
   */
  export type Trainer = number;
  /**
   * Something that may become a release: trained weights, or a changed harness. Valid to the end of the step.
   */
  export type Candidate = number;
  /**
   * Receipt of a record: the id that the server gave out with an answer or a report.
   */
  export type RecordId = string;
  /**
   * Name of a release: the id of its commit, 40 hex digits.
   */
  export type ReleaseId = string;
  /**
   * What a recipe evolves.
   * # Variants
   *
   * ## `"weights"`
   *
   * ## `"harness"`
   *
   * ## `"router"`
   */
  export type Surface = 'weights' | 'harness' | 'router';
  /**
   * The type of a report field or a configuration key.
   * # Variants
   *
   * ## `"number"`
   *
   * ## `"text"`
   *
   * ## `"boolean"`
   */
  export type ValueKind = 'number' | 'text' | 'boolean';
  /**
   * A field of the `metadata` of a report that this recipe reads; checked when the report arrives.
   */
  export interface ReportField {
    name: string,
    kind: ValueKind,
    required: boolean,
    doc: string,
  }
  /**
   * A configuration key of this recipe.
   */
  export interface ConfigKey {
    /**
     * 1 to 64 of letters, digits, `_`, `-` and `.`.
     */
    name: string,
    kind: ValueKind,
    /**
     * The default, as JSON.
     */
    defaultValue: string,
    /**
     * Smallest and largest number that makes sense; the host refuses others before any call.
     */
    minimum: number | null,
    maximum: number | null,
    doc: string,
  }
  /**
   * What a recipe says of itself.
   */
  export interface Manifest {
    /**
     * Lower-case letters, digits and `-`; at most 64 bytes.
     */
    name: string,
    /**
     * Semantic version of the recipe.
     */
    version: string,
    surface: Surface,
    /**
     * True if a report without a finite `score` is of no use to this recipe.
     */
    needsScore: boolean,
    reportFields: Array<ReportField>,
    config: Array<ConfigKey>,
    /**
     * Interfaces that the recipe asks for, e.g. `experience` and `training`; see the world `recipe`.
     */
    capabilities: Array<string>,
    /**
     * Alternatives per token that the sampler must record; 0 = none.
     */
    topK: number,
    /**
     * Releases after which an evaluation of the head is worth repeating; 0 = never.
     */
    reEvaluateEvery: number,
  }
  /**
   * The inputs of a call that are not data. There is no clock and no source of randomness beside these.
   */
  export interface Context {
    tenant: string,
    scenario: string,
    /**
     * Number of the step being formed, from 1.
     */
    step: number,
    /**
     * Milliseconds since the Unix epoch when the step began.
     */
    nowMs: number,
    /**
     * Seed of the step, 32 bits.
     */
    seed: number,
    /**
     * Release that serves now.
     */
    head: ReleaseId,
    /**
     * A sample is usable iff its lag is at most this many releases.
     */
    maxStaleness: number,
  }
  /**
   * A sample that will never be used, and why.
   */
  export interface Retirement {
    sample: Sample,
    /**
     * One short clause; shown to people.
     */
    reason: string,
  }
  /**
   * Samples that belong together, slot by slot.
   */
  export interface Group {
    /**
     * Letters, digits, `.`, `_`, `:` and `-`; at most 128 bytes, unique in the selection.
     */
    name: string,
    slots: Array<number>,
  }
  /**
   * What to do with the pool now.
   */
  export type Choice = ChoiceWait | ChoiceTrain | ChoiceTrainGroups;
  /**
   * Not yet; the reason is shown in the status.
   */
  export interface ChoiceWait {
    tag: 'wait',
    val: string,
  }
  /**
   * Train on these, in this order. No duplicates.
   */
  export interface ChoiceTrain {
    tag: 'train',
    val: Array<number>,
  }
  /**
   * Train on these groups, in this order. No duplicates.
   */
  export interface ChoiceTrainGroups {
    tag: 'train-groups',
    val: Array<Group>,
  }
  export interface Selection {
    choice: Choice,
    retire: Array<Retirement>,
  }
  /**
   * The kind of an entry of a harness tree.
   * # Variants
   *
   * ## `"config"`
   *
   * ## `"rules"`
   *
   * ## `"agent-command"`
   *
   * ## `"skill"`
   *
   * ## `"code-extension"`
   *
   * ## `"tool"`
   *
   * ## `"hook"`
   *
   * ## `"subagent"`
   *
   * ## `"mcp"`
   *
   * ## `"prompt"`
   */
  export type EntryKind = 'config' | 'rules' | 'agent-command' | 'skill' | 'code-extension' | 'tool' | 'hook' | 'subagent' | 'mcp' | 'prompt';
  /**
   * One entry of a harness tree.
   */
  export interface Entry {
    /**
     * `^[A-Za-z0-9][A-Za-z0-9._-]*$`; unique within its kind.
     */
    id: string,
    kind: EntryKind,
    /**
     * JSON object; its fields depend on the kind.
     */
    config: string,
  }
  /**
   * Names an entry.
   */
  export interface EntryName {
    kind: EntryKind,
    id: string,
  }
  /**
   * One change of a harness tree.
   */
  export type Mutation = MutationPut | MutationRemove;
  /**
   * Adds the entry, or replaces the one of that name.
   */
  export interface MutationPut {
    tag: 'put',
    val: Entry,
  }
  export interface MutationRemove {
    tag: 'remove',
    val: EntryName,
  }
  /**
   * One rule of a routing policy: the first that matches decides.
   */
  export interface Route {
    /**
     * Model binding that answers.
     */
    binding: string,
    /**
     * Only requests with these tags; all must match.
     */
    tags: Array<[string, string]>,
    /**
     * Only requests with at most this many prompt tokens; none = any.
     */
    promptTokensMax: number | null,
    /**
     * Only requests that offer tools, or only those that do not; none = any.
     */
    tools: boolean | null,
    /**
     * Binding that answers when the first one fails; none = the failure is told.
     */
    fallback: string | null,
  }
  /**
   * The outcome of a step, before it is evaluated.
   */
  export type Proposal = ProposalWeights | ProposalMutations | ProposalRouter | ProposalSkip;
  /**
   * A checkpoint of a trainer of this call.
   */
  export interface ProposalWeights {
    tag: 'weights',
    val: Candidate,
  }
  /**
   * Changes of the harness tree, applied in order.
   */
  export interface ProposalMutations {
    tag: 'mutations',
    val: Array<Mutation>,
  }
  /**
   * A routing policy, rules in order.
   */
  export interface ProposalRouter {
    tag: 'router',
    val: Array<Route>,
  }
  /**
   * The batch is consumed and nothing is released; the reason is recorded. If the call made a checkpoint,
   * later trainers take their critic from it; its adapter is dropped.
   */
  export interface ProposalSkip {
    tag: 'skip',
    val: string,
  }
  /**
   * A named number; must be finite. Names match `^[a-z][a-z0-9_/]{0,63}$`.
   */
  export interface Measurement {
    name: string,
    value: number,
  }
  /**
   * # Variants
   *
   * ## `"promote"`
   *
   * ## `"hold"`
   *
   * ## `"reject"`
   */
  export type Decision = 'promote' | 'hold' | 'reject';
  export interface Verdict {
    decision: Decision,
    /**
     * One sentence; recorded with the step.
     */
    reason: string,
    /**
     * At most 64.
     */
    measurements: Array<Measurement>,
  }
  /**
   * Why a recipe gives up a call. The step fails; nothing is consumed.
   */
  export type Failure = FailureInvalidConfig | FailureCapability | FailureOther;
  /**
   * A configuration value is out of range; names the key.
   */
  export interface FailureInvalidConfig {
    tag: 'invalid-config',
    val: string,
  }
  /**
   * A host capability refused; carries its message.
   */
  export interface FailureCapability {
    tag: 'capability',
    val: string,
  }
  export interface FailureOther {
    tag: 'other',
    val: string,
  }
  /**
   * A message of a chat.
   */
  export interface Message {
    /**
     * `system`, `user`, `assistant` or `tool`.
     */
    role: string,
    content: string,
  }
}
