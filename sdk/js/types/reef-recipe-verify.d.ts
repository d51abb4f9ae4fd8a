declare module 'reef:recipe/verify@0.2.0' {
  /**
   * Names of the verifiers.
   */
  export function verifiers(): Array<string>;
  /**
   * `task`: JSON that the verifier understands.
   */
  export function check(verifier: string, task: string, answer: string): Outcome;
  export type VerifyError = VerifyErrorUnknownVerifier | VerifyErrorFailed | VerifyErrorBudget | VerifyErrorOther;
  export interface VerifyErrorUnknownVerifier {
    tag: 'unknown-verifier',
    val: string,
  }
  /**
   * The verifier refused the task or the answer, or failed; says why.
   */
  export interface VerifyErrorFailed {
    tag: 'failed',
    val: string,
  }
  export interface VerifyErrorBudget {
    tag: 'budget',
    val: string,
  }
  export interface VerifyErrorOther {
    tag: 'other',
    val: string,
  }
  export interface Outcome {
    /**
     * Finite.
     */
    score: number,
    /**
     * Did the answer pass?
     */
    passed: boolean,
    /**
     * One line for people.
     */
    detail: string,
  }
}
