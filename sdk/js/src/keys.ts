/**
 * Configuration keys and report fields: one constant carries name, kind, default, range and documentation, so that
 * the manifest, the check and the use of a value cannot disagree.
 */
import type { ConfigKey, ReportField, Sample, ValueKind } from "reef:recipe/types@0.2.0";
import { Failure } from "./failure";
import { config, experience } from "./host";

type Kind = "count" | "number" | "flag" | "text";
type Value = number | boolean | string;

const KINDS: Record<Kind, ValueKind> = { count: "number", number: "number", flag: "boolean", text: "text" };
const WANTED: Record<Kind, string> = { count: "a whole number", number: "a number", flag: "true or false", text: "a text" };

/** The JSON value if it is of the kind. `32.0` is a whole number, `true` is no number. */
function parsed(text: string, kind: Kind): Value | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (kind === "count") return Number.isInteger(value) && (value as number) >= 0 ? (value as number) : undefined;
  const type = kind === "number" ? "number" : kind === "flag" ? "boolean" : "string";
  return typeof value === type ? (value as Value) : undefined;
}

/** A configuration key. Make one with `count`, `number`, `flag` or `text`. */
export class Key<T extends Value> {
  private constructor(
    readonly name: string,
    readonly initial: T,
    readonly doc: string,
    private readonly kind: Kind,
    private readonly range?: [number, number],
  ) {}

  /** A whole number, 0 or more. */
  static count(name: string, initial: number, doc: string): Key<number> {
    return new Key(name, initial, doc, "count");
  }

  /** A finite number. */
  static number(name: string, initial: number, doc: string): Key<number> {
    return new Key(name, initial, doc, "number");
  }

  /** A switch. */
  static flag(name: string, initial: boolean, doc: string): Key<boolean> {
    return new Key(name, initial, doc, "flag");
  }

  /** A text. */
  static text(name: string, initial: string, doc: string): Key<string> {
    return new Key(name, initial, doc, "text");
  }

  /** Limits a number to `low` … `high`; the host refuses others before any call. */
  within(low: number, high: number): Key<T> {
    return new Key(this.name, this.initial, this.doc, this.kind, [low, high]);
  }

  /** The operator's value, else the default. */
  get(): T {
    const text = config.get(this.name) ?? JSON.stringify(this.initial);
    const value = parsed(text, this.kind) as T | undefined;
    if (value === undefined) throw Failure.config(this.name, `${text} is not ${WANTED[this.kind]}`);
    if (this.range && !(Number(value) >= this.range[0] && Number(value) <= this.range[1])) {
      throw Failure.config(this.name, `${text} is not ${WANTED[this.kind]} from ${this.range[0]} to ${this.range[1]}`);
    }
    return value;
  }

  /** The entry of the manifest. */
  toWit(): ConfigKey {
    const [minimum, maximum] = this.range ?? [null, null];
    const defaultValue = JSON.stringify(this.initial);
    return { name: this.name, kind: KINDS[this.kind], defaultValue, minimum, maximum, doc: this.doc };
  }
}

/** A field of the `metadata` of a report. */
export class Field<T extends Value> {
  private constructor(
    readonly name: string,
    readonly doc: string,
    private readonly kind: Kind,
    private readonly required: boolean,
  ) {}

  /** A number. */
  static number(name: string, doc: string, required = false): Field<number> {
    return new Field(name, doc, "number", required);
  }

  /** True or false. */
  static flag(name: string, doc: string, required = false): Field<boolean> {
    return new Field(name, doc, "flag", required);
  }

  /** A text. */
  static text(name: string, doc: string, required = false): Field<string> {
    return new Field(name, doc, "text", required);
  }

  /** The value in the report of the sample; undefined if absent or of another kind. */
  of(sample: Sample): T | undefined {
    const text = experience.reportField(sample, this.name);
    return text === null ? undefined : (parsed(text, this.kind) as T | undefined);
  }

  /** The entry of the manifest. */
  toWit(): ReportField {
    return { name: this.name, kind: KINDS[this.kind], required: this.required, doc: this.doc };
  }
}
