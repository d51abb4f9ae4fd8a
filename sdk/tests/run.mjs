// Runs best-of in every language on the inputs of best-of.json and compares what it decides and does with what the
// file says: run.mjs COMPONENT.wasm … The host here is a stub; each call gets a fresh instance, as in the sandbox.
// Called by run.sh, from a folder where the npm packages resolve.
import { readFile, mkdtemp, rm, writeFile, mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { isDeepStrictEqual, inspect } from "node:util";
import { setFlagsFromString } from "node:v8";
import { transpile } from "@bytecodealliance/jco-transpile";

// Node.js 20 knows arithmetic in constant expressions, which QuickJS is linked with, but only when told.
if (Number.parseInt(process.versions.node, 10) < 22) setFlagsFromString("--experimental-wasm-extended-const");

const [golden, ...components] = process.argv.slice(2);
const { describe, cases } = JSON.parse(await readFile(golden, "utf8"));
const NUMBERS = { nan: NaN, inf: Infinity, "-inf": -Infinity };
const CONTEXT = { tenant: "t", scenario: "s", step: 1, nowMs: 0, seed: 1, head: "0".repeat(40), maxStaleness: 4 };

/** Lists as arrays, absent as null: how the file writes values. */
function plain(value) {
  if (value === undefined) return null;
  if (ArrayBuffer.isView(value)) return Array.from(value);
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, plain(inner)]));
}

/** The host of one call: answers from the case, and notes what the recipe does. */
function hostOf({ samples = [], config = {}, state = {}, refuse = {} }, effects) {
  const known = new Map(samples.map(([handle, score, key]) => [handle, { score: NUMBERS[score] ?? score, key }]));
  const kept = new Map(Object.entries(state).map(([key, hex]) => [key, Uint8Array.from(Buffer.from(hex, "hex"))]));
  const refusable = (functions) => Object.fromEntries(Object.entries(functions).map(([name, answer]) => [name, (...inputs) => {
    if (refuse[name]) throw Object.assign(new Error("refused"), { payload: refuse[name] });
    return answer(...inputs);
  }]));
  const note = (...effect) => void effects.push(plain(effect));
  return {
    experience: refusable({
      scores: (items) => Float64Array.from(items, (item) => known.get(item).score),
      promptKeys: (items) => Array.from(items, (item) => known.get(item).key),
    }),
    training: refusable({
      open: () => (note("open"), 700),
      train: (on, items, what, how) => (note("train", on, items, what, how), [{ name: "loss", value: 0.5 }]),
      checkpoint: (on) => (note("checkpoint", on), 900),
    }),
    state: refusable({
      get: (key) => kept.get(key),
      set: (key, value) => (note("set", key, Buffer.from(value).toString("hex")), void kept.set(key, value)),
    }),
    config: { get: (key) => config[key] ?? (key === "batch_size" ? "4" : key === "learning_rate" ? "0.0005" : undefined) },
    log: { log: (level, context, message) => note("log", level, context, message) },
    metrics: { gauge: (name, value) => note("gauge", name, value) },
  };
}

/** A function that makes a fresh instance of the component with a host. */
async function prepared(component, folder) {
  const { files } = await transpile(component, { name: "recipe", outDir: folder, instantiation: "sync", noTypescript: true });
  const modules = new Map();
  for (const [path, contents] of Object.entries(files)) {
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, contents);
    if (path.endsWith(".wasm")) modules.set(basename(path), new WebAssembly.Module(contents));
  }
  const { instantiate } = await import(pathToFileURL(join(folder, "recipe.js")));
  return (host) => {
    const imports = {};
    for (const [name, functions] of Object.entries(host)) {
      // Whatever of an interface the case does not need is never called; the instance wants it to be there.
      const whole = new Proxy(functions, { get: (known, name) => known[name] ?? (() => { throw new Error(`${String(name)} is not in this host`); }) });
      imports[`reef:recipe/${name}`] = imports[`reef:recipe/${name}@0.2.0`] = whole;
    }
    imports["reef:recipe/types"] = imports["reef:recipe/types@0.2.0"] = {};
    return instantiate((path) => modules.get(basename(path)), imports).strategy;
  };
}

/** The answer or the failure of one case, and its effects. */
function outcome(instance, one) {
  const effects = [];
  const strategy = instance(hostOf(one, effects));
  const handles = Uint32Array.from(one.samples ?? [], ([handle]) => handle);
  try {
    const answer = one.call === "select" ? strategy.selectSamples(CONTEXT, handles)
      : one.call === "propose" ? strategy.proposeUpdate(CONTEXT, handles)
      : strategy.evaluate(CONTEXT, one.candidate);
    return { answer: plain(answer), effects };
  } catch (error) {
    const failure = error?.payload ?? error;
    if (failure?.tag === undefined) throw error;
    return { failure: plain(failure) };
  }
}

/** What the file says, with advantages rounded as the boundary rounds them. */
function expectation({ answer, effects, failure }) {
  if (failure) return { failure };
  const rounded = structuredClone(effects);
  for (const [name, , , terms] of rounded) {
    if (name !== "train") continue;
    const { advantages } = terms[0].what.val;
    advantages.val = advantages.val.map(Math.fround);
  }
  return { answer, effects: rounded };
}

let wrong = 0;
function compare(component, name, found, wanted) {
  if (isDeepStrictEqual(found, wanted)) return;
  wrong += 1;
  const shown = (value) => inspect(value, { depth: 12, breakLength: 110 });
  console.error(`${basename(component)}: ${name}\n  wanted ${shown(wanted)}\n  found  ${shown(found)}`);
}

const folder = await mkdtemp(join(tmpdir(), "reef-best-of-"));
try {
  for (const component of components) {
    const started = performance.now();
    const instance = await prepared(component, join(folder, basename(component)));
    compare(component, "describe", plain(instance(hostOf({}, [])).describe()), describe);
    for (const one of cases) {
      let found;
      try {
        found = outcome(instance, one);
      } catch (error) {
        found = { trap: String(error) };
      }
      compare(component, one.name, found, expectation(one));
    }
    console.log(`${basename(component)}: ${cases.length + 1} cases in ${Math.round(performance.now() - started)} ms`);
  }
} finally {
  await rm(folder, { recursive: true });
}
if (wrong > 0) {
  console.error(`${wrong} answers differ`);
  process.exit(1);
}
