/**
 * What survives a call: key-value pairs of (tenant, scenario, recipe), committed together with the step and dropped
 * when the call fails. Numbers are stored little-endian, as in the other languages.
 */
import { Failure } from "./failure";
import { hostState } from "./host";

function viewOf(key: string, bytes: number): DataView | undefined {
  const value = hostState.get(key);
  if (value === null || value === undefined) return undefined;
  if (value.length !== bytes) throw new Failure(`state ${key}: its ${value.length} bytes are of another type`);
  return new DataView(Uint8Array.from(value).buffer);
}

function stored(key: string, bytes: number, write: (view: DataView) => void): void {
  const value = new Uint8Array(bytes);
  write(new DataView(value.buffer));
  hostState.set(key, value);
}

/** Reads see the writes of the same call. */
export const state = {
  /** The bytes of `key`. */
  get: (key: string) => hostState.get(key) ?? undefined,
  /** Writes `key`: at most 64 KiB. */
  set: (key: string, value: Uint8Array) => hostState.set(key, value),
  /** Deletes `key`. */
  delete: (key: string) => hostState.delete(key),
  /** Every key, sorted. */
  keys: () => hostState.keys(),
  /** A whole number from 0 to 4,294,967,295. */
  getU32: (key: string) => viewOf(key, 4)?.getUint32(0, true),
  setU32: (key: string, value: number) => stored(key, 4, (view) => view.setUint32(0, value, true)),
  /** A number, bit for bit. */
  getF64: (key: string) => viewOf(key, 8)?.getFloat64(0, true),
  setF64: (key: string, value: number) => stored(key, 8, (view) => view.setFloat64(0, value, true)),
};
