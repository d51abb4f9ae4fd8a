// Answers, streams, tools, formats and errors with the AI SDK and its provider for OpenAI-compatible servers.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import {
  REEF_BUSY_MODEL, REEF_MODEL, REEF_SCENARIO, REEF_TOKEN, REEF_URL, check, isCity, raised,
} from "./check.mjs";

const settings = {
  name: "reef", baseURL: `${REEF_URL}/v1`, headers: { "x-reef-scenario": REEF_SCENARIO },
  includeUsage: true, supportsStructuredOutputs: true,
};
const reef = createOpenAICompatible({ ...settings, apiKey: REEF_TOKEN });
const greedy = { model: reef(REEF_MODEL), temperature: 0, maxRetries: 0 };
const receipts = [];

/** The receipt of an answer is kept. */
function kept(response) {
  receipts.push(response.headers["x-reef-agent-record-id"]);
}

// An answer, and the same one streamed.
const sea = { ...greedy, prompt: "Tell me about the sea.", maxOutputTokens: 8 };
const whole = await generateText(sea);
kept(whole.response);
check(whole.finishReason === "length" && whole.usage.outputTokens === 8, "eight tokens were asked for", whole.usage);
const stream = streamText({ ...sea, onError: () => {} });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
kept(await stream.response);
const usage = await stream.usage;
check(streamed === whole.text, "a stream says what the answer says", streamed, whole.text);
check(usage.totalTokens === whole.usage.totalTokens, "a stream is counted as the answer is", usage, whole.usage);

// A forced tool that runs here; its result goes back in a second step, which is free to answer.
const ran = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
  execute: async ({ city }) => {
    ran.push(city);
    return { city, sky: "clear" };
  },
});
const question = { ...greedy, prompt: "How is the weather in Rome?", tools: { weather }, maxOutputTokens: 100 };
const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: "tool", toolName: "weather" } : "none" });
const steps = { ...question, stopWhen: stepCountIs(2), prepareStep };
const loop = await generateText(steps);
check(loop.steps.length === 2 && loop.steps[0].finishReason === "tool-calls", "a call and an answer are two steps", loop.steps);
check(loop.steps[0].toolResults[0].output.sky === "clear", "the tool's result is taken back", loop.steps[0].toolResults);
for (const step of loop.steps) kept(step.response);
const told = streamText({ ...steps, onError: () => {} });
await told.consumeStream();
check((await told.steps).length === 2 && ran.length === 2 && ran.every(isCity), "a streamed call runs the tool too", ran);

// An answer in a format.
const Place = z.object({ capital: z.boolean(), answer: z.enum(["yes", "no"]) });
const placed = await generateText({
  ...greedy, prompt: "How is Rome?", maxOutputTokens: 60, output: Output.object({ schema: Place }),
});
check(Place.safeParse(placed.output).success, "an answer is of its format", placed.text);

// Plain completions.
const plain = await generateText({ ...greedy, model: reef.completionModel(REEF_MODEL), prompt: "One, two, three,", maxOutputTokens: 4 });
check(plain.text.length > 0, "a text is continued", plain.text);

// What is refused, and how.
const refusal = (extra) => raised("APICallError", APICallError.isInstance, () => generateText({ ...sea, ...extra }));
const refused = await refusal({ temperature: -1 });
check(refused.statusCode === 400 && !refused.isRetryable, "400 is not tried again", refused);
check(refused.data.error.param === "temperature", "400 names the field", refused.data);
const missing = await refusal({ model: reef("nothing") });
check(missing.statusCode === 404 && missing.data.error.code === "model_not_found", "404 has its code", missing.data);
const busy = await refusal({ model: reef(REEF_BUSY_MODEL) });
check(busy.statusCode === 429 && busy.isRetryable, "429 may be tried again", busy);
check(busy.responseHeaders["retry-after"] === "7", "429 says for how long", busy.responseHeaders);
const unknown = await refusal({ model: createOpenAICompatible({ ...settings, apiKey: "unknown" })(REEF_MODEL) });
check(unknown.statusCode === 401, "an unknown key is told", unknown);

console.log(JSON.stringify({ receipts, text: whole.text }));
