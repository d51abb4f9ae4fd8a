declare module 'reef:recipe/config@0.2.0' {
  /**
   * As JSON; none for a key that the manifest does not declare.
   */
  export function get(key: string): string | null;
  /**
   * Every declared key with its value as JSON, sorted by key.
   */
  export function getAll(): Array<[string, string]>;
}
