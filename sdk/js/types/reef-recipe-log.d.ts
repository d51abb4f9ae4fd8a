declare module 'reef:recipe/log@0.2.0' {
  /**
   * `context`: where in the recipe, e.g. a module; may be empty.
   */
  export function log(level: Level, context: string, message: string): void;
  /**
   * # Variants
   *
   * ## `"trace"`
   *
   * ## `"debug"`
   *
   * ## `"info"`
   *
   * ## `"warn"`
   *
   * ## `"error"`
   *
   * ## `"critical"`
   */
  export type Level = 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'critical';
}
