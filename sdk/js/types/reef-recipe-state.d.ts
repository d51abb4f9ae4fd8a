declare module 'reef:recipe/state@0.2.0' {
  export function get(key: string): Uint8Array | null;
  export function set(key: string, value: Uint8Array): void;
  export { _delete as delete };
  function _delete(key: string): void;
  /**
   * Every key, sorted.
   */
  export function keys(): Array<string>;
  export type StateError = StateErrorTooLarge | StateErrorBudget | StateErrorOther;
  /**
   * Key empty or over 256 bytes, value over 64 KiB, or bucket over its size.
   */
  export interface StateErrorTooLarge {
    tag: 'too-large',
    val: string,
  }
  export interface StateErrorBudget {
    tag: 'budget',
    val: string,
  }
  export interface StateErrorOther {
    tag: 'other',
    val: string,
  }
}
