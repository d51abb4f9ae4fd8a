/// <reference path="./reef-recipe-types.d.ts" />
declare module 'reef:recipe/migration@0.2.0' {
  /**
   * `from-version`: version of the recipe that wrote the state. Returns the whole new state, each key once.
   * No capability answers during this call. A failure leaves the old recipe in use.
   */
  export function migrate(fromVersion: string, entries: Array<StateEntry>): Array<StateEntry>;
  export type Failure = import('reef:recipe/types@0.2.0').Failure;
  /**
   * One key of the recipe's state; limits as in `state`.
   */
  export interface StateEntry {
    key: string,
    value: Uint8Array,
  }
}
