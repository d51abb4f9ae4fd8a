declare module 'reef:recipe/metrics@0.2.0' {
  /**
   * Ignored and counted when the name is not `^[a-z][a-z0-9_/]{0,63}$` or the value is not finite. At most 64 names a call.
   */
  export function gauge(name: string, value: number): void;
}
