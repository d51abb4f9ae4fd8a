// Answers, streams, tools, formats, responses and errors with the openai package for Node, as its documentation shows.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  CITY, REEF_BUSY_MODEL, REEF_MODEL as model, REEF_SCENARIO, REEF_TOKEN, REEF_URL, check, isCity, raised,
} from "./check.mjs";

const options = { baseURL: `${REEF_URL}/v1`, defaultHeaders: { "x-reef-scenario": REEF_SCENARIO }, maxRetries: 0 };
const client = new OpenAI({ ...options, apiKey: REEF_TOKEN });
const greedy = { model, temperature: 0 };
const sea = [{ role: "user", content: "Tell me about the sea." }];
const weather = [{ role: "user", content: "How is the weather in Rome?" }];
const receipts = [];

/** The parsed answer; its receipt is kept. */
async function kept(promise) {
  const { data, response } = await promise.withResponse();
  receipts.push(response.headers.get("x-reef-agent-record-id"));
  return data;
}

/** The arguments of a call follow its schema. */
function city(text) {
  check(isCity(JSON.parse(text).city), "arguments follow the schema", text);
  return text;
}

// An answer, and the same one streamed.
const whole = await kept(client.chat.completions.create({ ...greedy, max_tokens: 8, messages: sea }));
const text = whole.choices[0].message.content;
check(whole.choices[0].finish_reason === "length" && whole.usage.completion_tokens === 8, "eight tokens were asked for", whole);
let streamed = "";
let finishes = 0;
let usage;
const asked = { ...greedy, max_tokens: 8, messages: sea, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await kept(client.chat.completions.create(asked))) {
  usage = chunk.usage ?? usage;
  for (const choice of chunk.choices) {
    streamed += choice.delta.content ?? "";
    finishes += choice.finish_reason ? 1 : 0;
  }
}
check(streamed === text && finishes === 1, "a stream says what the answer says, and ends once", streamed, text, finishes);
check(usage?.total_tokens === whole.usage.total_tokens, "a stream is counted as the answer is", usage, whole.usage);

// A forced tool, whole and streamed, and what it returned.
const tools = [{ type: "function", function: { name: "weather", description: "The weather.", parameters: CITY, strict: true } }];
const forced = {
  ...greedy, max_tokens: 100, messages: weather, tools, tool_choice: { type: "function", function: { name: "weather" } },
};
const [choice] = (await kept(client.chat.completions.create(forced))).choices;
const [call] = choice.message.tool_calls;
check(choice.finish_reason === "tool_calls" && call.function.name === "weather", "the tool is called", choice);
city(call.function.arguments);
const gathered = await client.chat.completions.stream(forced).finalChatCompletion();
check(gathered.choices[0].message.tool_calls[0].function.arguments === call.function.arguments, "streams call alike", gathered);
const second = { id: "call_second", type: "function", function: { name: "weather", arguments: '{"city": "Paris"}' } };
const turns = [
  ...weather,
  { role: "assistant", content: null, tool_calls: [call, second] },
  { role: "tool", tool_call_id: "call_second", content: "rain" },
  { role: "tool", tool_call_id: call.id, content: "sunny" },
];
const after = await kept(client.chat.completions.create({ ...greedy, max_tokens: 8, messages: turns, tools }));
check(after.usage.prompt_tokens > whole.usage.prompt_tokens, "results of parallel calls are taken back", after.usage);

// An answer in a format, in both dialects.
const Place = z.object({ capital: z.boolean(), answer: z.enum(["yes", "no"]) });
const parsed = await client.chat.completions.parse({
  ...greedy, max_tokens: 60, messages: weather, response_format: zodResponseFormat(Place, "place"),
});
check(Place.safeParse(parsed.choices[0].message.parsed).success, "an answer is of its format", parsed);
const place = await client.responses.parse({
  ...greedy, max_output_tokens: 60, input: "How is Rome?", text: { format: zodTextFormat(Place, "place") },
});
check(Place.safeParse(place.output_parsed).success, "a response is of its format", place);

// Responses: text, the same streamed, a forced call and its result.
const ask = { ...greedy, max_output_tokens: 8, instructions: "Be brief.", input: "Tell me about the sea." };
const response = await kept(client.responses.create(ask));
check(response.status === "incomplete" && response.incomplete_details.reason === "max_output_tokens", "a cut response says why", response);
let deltas = "";
let last;
for await (const event of await client.responses.create({ ...ask, stream: true })) {
  if (event.type === "response.output_text.delta") deltas += event.delta;
  last = event;
}
check(deltas === response.output_text && last.type === "response.incomplete", "a streamed response says the same", deltas, last);
const calling = {
  ...greedy, max_output_tokens: 100, tools: [{ type: "function", name: "weather", parameters: CITY, strict: true }],
};
const called = await client.responses.stream({
  ...calling, input: weather, tool_choice: { type: "function", name: "weather" },
}).finalResponse();
const item = called.output.at(-1);
check(item.type === "function_call" && called.status === "completed", "the function is called", called);
city(item.arguments);
const result = { type: "function_call_output", call_id: item.call_id, output: "sunny" };
const { parsed_arguments: _, ...sent } = item;
const answered = await client.responses.create({ ...calling, max_output_tokens: 8, input: [...weather, sent, result] });
check(answered.usage.input_tokens > called.usage.input_tokens, "a result is taken back", answered);

// What is refused, and how.
const is = (kind) => (error) => error instanceof kind;
const say = (extra) => () => client.chat.completions.create({ model, max_tokens: 8, messages: sea, ...extra });
const refused = await raised("BadRequestError", is(OpenAI.BadRequestError), say({ temperature: -1 }));
check(refused.param === "temperature" && refused.type === "invalid_request_error", "400 names the field", refused);
const missing = await raised("NotFoundError", is(OpenAI.NotFoundError), say({ model: "nothing" }));
check(missing.code === "model_not_found", "404 has its code", missing);
const busy = await raised("RateLimitError", is(OpenAI.RateLimitError), say({ model: REEF_BUSY_MODEL }));
check(busy.headers.get("retry-after") === "7", "429 says for how long", busy);
const stranger = new OpenAI({ ...options, apiKey: "unknown" });
await raised("AuthenticationError", is(OpenAI.AuthenticationError), () => stranger.models.list());
const models = [];
for await (const listed of client.models.list()) models.push(listed.id);
check(models.includes(model) && models.includes(REEF_BUSY_MODEL), "every model is listed", models);

console.log(JSON.stringify({ receipts, text }));
