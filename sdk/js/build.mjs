// The two steps of build.sh that run in Node.js, from a folder where the npm packages resolve.
//   build.mjs bundle SOURCE SDK OUT          one file; prints `import NAME` and `export NAME`
//   build.mjs componentize BUNDLE WIT OUT    the component, on QuickJS, without any WASI import
import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { componentize } from "componentize-qjs";
import { build } from "esbuild";

const HOST = /^reef:recipe\/([a-z-]+)@0\.2\.0$/;
const EXPORTS = ["strategy", "migration", "live", "requests"];

/** One file of the source and the SDK; an interface that the recipe does not ask for is empty in it. */
async function bundled(source, sdk, out, asked) {
  const reef = {
    name: "reef",
    setup(builder) {
      builder.onResolve({ filter: /^reef-recipe$/ }, () => ({ path: sdk, sideEffects: false }));
      // Free of side effects: an interface that nothing uses drops out.
      builder.onResolve({ filter: HOST }, ({ path }) => asked.includes(HOST.exec(path)[1])
        ? { path, external: true, sideEffects: false } : { path, namespace: "absent", sideEffects: false });
      builder.onLoad({ filter: /.*/, namespace: "absent" }, () => ({ contents: "export {}" }));
    },
  };
  const { metafile } = await build({
    entryPoints: [source], outfile: out, bundle: true, format: "esm", platform: "neutral", target: "es2023",
    treeShaking: true, metafile: true, plugins: [reef], logLevel: "error",
  });
  const [output] = Object.values(metafile.outputs);
  return output;
}

async function bundle(source, sdk, out) {
  // First with no interface at all, so that the recipe can be asked here what it needs.
  const describing = `${out}.describe.mjs`;
  const { exports } = await bundled(source, sdk, describing, []);
  if (!exports.includes("strategy")) throw new Error("the source exports no `strategy`; write export const strategy = recipe({ … })");
  for (const name of exports) {
    if (!EXPORTS.includes(name)) throw new Error(`the source exports '${name}', which is no part of a recipe; known are ${EXPORTS.join(", ")}`);
  }
  const { strategy } = await import(pathToFileURL(describing));
  const { imports } = await bundled(source, sdk, out, strategy.describe().capabilities);

  const names = new Set(imports.filter(({ external }) => external).map(({ path }) => HOST.exec(path)?.[1] ?? path));
  for (const name of names) console.log(`import ${name}`);
  for (const name of exports) console.log(`export ${name}`);
}

async function component(source, wit, out) {
  const { component } = await componentize({
    witPath: wit, jsSource: await readFile(source, "utf8"), jsPath: source, world: "guest", stubWasi: true, sync: true,
  });
  await writeFile(out, withoutInit(component));
}

const SECTION_EXPORT = 11;

/** A number in LEB128 and the position after it. */
function leb(bytes, at) {
  let value = 0;
  for (let shift = 0; ; shift += 7) {
    const byte = bytes[at++];
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return [value >>> 0, at];
  }
}

/**
 * The component without the export `init`, which the snapshot was taken through and which nobody may call again: the
 * top-level section that holds it and nothing else is left out. If it ever refers to more, validation says so.
 */
function withoutInit(component) {
  const kept = [component.subarray(0, 8)];
  for (let at = 8; at < component.length; ) {
    const [size, body] = leb(component, at + 1);
    const end = body + size;
    // One export, a plain name of four bytes.
    const isInit = component[at] === SECTION_EXPORT && component[body] === 1
      && component.subarray(body + 2, body + 7).toString("latin1") === "\x04init";
    if (!isInit) kept.push(component.subarray(at, end));
    at = end;
  }
  return Buffer.concat(kept);
}

const [step, ...paths] = process.argv.slice(2);
try {
  await (step === "bundle" ? bundle(...paths) : component(...paths));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
