/** The host's interfaces. One that nothing uses is left out of the component by the bundler. */
import * as rawConfig from "reef:recipe/config@0.2.0";
import * as rawExperience from "reef:recipe/experience@0.2.0";
import * as rawHarness from "reef:recipe/harness@0.2.0";
import * as rawLog from "reef:recipe/log@0.2.0";
import * as rawMetrics from "reef:recipe/metrics@0.2.0";
import * as rawModels from "reef:recipe/models@0.2.0";
import * as rawState from "reef:recipe/state@0.2.0";
import * as rawTokens from "reef:recipe/tokens@0.2.0";
import * as rawTraining from "reef:recipe/training@0.2.0";
import * as rawVerify from "reef:recipe/verify@0.2.0";
import { guarded, handedOver } from "./failure";

export const config = /* @__PURE__ */ guarded("config", rawConfig);
export const experience = /* @__PURE__ */ guarded("experience", rawExperience);
export const harness = /* @__PURE__ */ guardedHarness();
const hostLog = /* @__PURE__ */ guarded("log", rawLog);
export const metrics = /* @__PURE__ */ guarded("metrics", rawMetrics);
export const models = /* @__PURE__ */ guardedModels();
export const hostState = /* @__PURE__ */ guarded("state", rawState);
export const tokens = /* @__PURE__ */ guarded("tokens", rawTokens);
export const training = /* @__PURE__ */ guarded("training", rawTraining);
export const verify = /* @__PURE__ */ guarded("verify", rawVerify);

/** Log lines, tagged by the host with tenant, scenario and recipe. `context`: where in the recipe. */
export const log = {
  /** Detail for the author of a recipe. */
  debug: (message: string, context = "") => hostLog.log("debug", context, message),
  /** What happened. */
  info: (message: string, context = "") => hostLog.log("info", context, message),
  /** What somebody should look at. */
  warn: (message: string, context = "") => hostLog.log("warn", context, message),
  /** What went wrong. */
  error: (message: string, context = "") => hostLog.log("error", context, message),
};

// Functions, so that the bundler sees that nothing happens when nobody uses the result.

function guardedHarness(): typeof rawHarness {
  return guarded("harness", {
    ...rawHarness,
    runEpisode: (on: rawHarness.Tree, task: string, seed: number) => rawHarness.runEpisode(on, task, handedOver(seed)),
  });
}

function guardedModels(): typeof rawModels {
  const seeded = ({ messages, how }: rawModels.ChatRequest): rawModels.ChatRequest => (
    { messages, how: { ...how, seed: how.seed === null ? null : handedOver(how.seed) } }
  );
  return guarded("models", {
    ...rawModels,
    chat: (binding: string, requests: rawModels.ChatRequest[]) => rawModels.chat(binding, requests.map(seeded)),
  });
}
