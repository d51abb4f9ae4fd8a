// Writes the TypeScript declarations of a world: generate.mjs WIT WORLD FOLDER. Called by generate.sh.
// The generator describes another JavaScript engine; QuickJS passes lists of numbers as arrays and an absent
// option as null, so those three spellings are changed.
import { mkdir, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { generateGuestTypes } from "@bytecodealliance/jco-transpile";
import { _addPreopen } from "@bytecodealliance/preview2-shim/filesystem";

const [wit, world, folder] = process.argv.slice(2);
_addPreopen("/", "/");
const files = await generateGuestTypes(wit, { worldName: world });
await mkdir(folder, { recursive: true });
for (const [path, bytes] of Object.entries(files)) {
  if (!path.includes("interfaces/")) continue;
  const text = new TextDecoder().decode(bytes)
    .replace(/\b(Uint32Array|Float32Array|Float64Array)\b/g, "Array<number>")
    .replace(/\| undefined\b/g, "| null")
    .replace(/^(\s+\w+)\?: (.*),$/gm, "$1: $2 | null,")
    .replace(/[ \t]+$/gm, "");
  await writeFile(join(folder, basename(path)), text);
}
