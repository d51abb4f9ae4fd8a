"""Tools, formats, responses, completions and errors with the openai package, as its documentation shows."""

import json
from typing import Literal

import openai
import pydantic
from check import BUSY, CITY, MODEL, SCENARIO, TOKEN, URL, check, raised

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, default_headers={"x-reef-scenario": SCENARIO}, max_retries=0)
weather = [{"role": "user", "content": "How is the weather in Rome?"}]
greedy = {"model": MODEL, "temperature": 0}
tool = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY, "strict": True}}
receipts = []


def kept(response):
    """The parsed answer; its receipt is kept."""
    receipts.append(response.headers["x-reef-agent-record-id"])
    return response.parse()


def city(arguments):
    """The arguments of a call follow its schema."""
    check(json.loads(arguments)["city"] in ("Paris", "Rome"), "arguments follow the schema", arguments)
    return arguments


# A forced tool, whole and streamed, and what it returned.
forced = {
    **greedy, "max_tokens": 100, "messages": weather, "tools": [tool],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
}
choice = kept(client.chat.completions.with_raw_response.create(**forced)).choices[0]
call = choice.message.tool_calls[0]
check(choice.finish_reason == "tool_calls" and call.function.name == "weather", "the tool is called", choice)
city(call.function.arguments)
with client.chat.completions.stream(**forced) as stream:
    streamed = stream.get_final_completion().choices[0]
check(streamed.finish_reason == "tool_calls", "a streamed call ends as one", streamed)
check(streamed.message.tool_calls[0].function.arguments == call.function.arguments, "streams call alike", streamed)
second = {"id": "call_second", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
turns = [
    *weather,
    {"role": "assistant", "content": None, "tool_calls": [call.to_dict(), second]},
    {"role": "tool", "tool_call_id": "call_second", "content": "rain"},
    {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
]
after = kept(client.chat.completions.with_raw_response.create(**greedy, max_tokens=8, messages=turns, tools=[tool]))
usage = after.usage
check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "results of parallel calls are taken back", after)


# An answer in a format, in both dialects.
class Place(pydantic.BaseModel):
    """A place to go."""

    capital: bool
    answer: Literal["yes", "no"]


placed = client.chat.completions.parse(**greedy, max_tokens=60, messages=weather, response_format=Place)
check(isinstance(placed.choices[0].message.parsed, Place), "an answer is of its format", placed)
placed = client.responses.parse(**greedy, max_output_tokens=60, input="How is Rome?", text_format=Place)
check(isinstance(placed.output_parsed, Place), "a response is of its format", placed)

# Responses: text, the same streamed, a forced call and its result.
ask = {**greedy, "max_output_tokens": 8, "instructions": "Be brief.", "input": "Tell me about the sea."}
response = kept(client.responses.with_raw_response.create(**ask))
check(response.status == "incomplete" and response.usage.output_tokens == 8, "eight tokens were asked for", response)
check(response.incomplete_details.reason == "max_output_tokens", "a cut response says why", response)
deltas = "".join(event.delta for event in client.responses.create(**ask, stream=True) if event.type == "response.output_text.delta")
check(deltas == response.output_text, "a streamed response says the same", deltas, response.output_text)
function = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
calling = {**greedy, "max_output_tokens": 100, "tools": [function, {"type": "web_search"}]}
called = client.responses.create(**calling, input=weather, tool_choice={"type": "function", "name": "weather"})
item = called.output[-1]
check(item.type == "function_call" and called.status == "completed", "the function is called", called)
city(item.arguments)
with client.responses.stream(**calling, input=weather, tool_choice="required", parallel_tool_calls=False) as stream:
    final = stream.get_final_response()
city(final.output[-1].arguments)
result = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
after = client.responses.create(**calling | {"max_output_tokens": 8}, input=[*weather, item, result])
check(after.usage.input_tokens > called.usage.input_tokens, "a result is taken back", after)

# Log-probs and plain completions.
noted = client.chat.completions.create(**greedy, max_tokens=4, messages=weather, logprobs=True, top_logprobs=2)
content = noted.choices[0].logprobs.content
check("".join(token.token for token in content) == noted.choices[0].message.content, "one log-prob a token", noted)
check(all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in content), "two were asked for", content)
plain = kept(client.completions.with_raw_response.create(**greedy, max_tokens=4, prompt="One, two, three,"))
check(plain.choices[0].text and plain.choices[0].finish_reason == "length", "a text is continued", plain)

# What is refused, and how.
said = {"max_tokens": 8, "messages": weather}
refused = raised(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, **said, temperature=-1))
check(refused.type == "invalid_request_error" and refused.param == "temperature", "400 names the field", refused.body)
missing = raised(openai.NotFoundError, lambda: client.responses.create(model="nothing", input="x"))
check(missing.code == "model_not_found", "404 has its code", missing.body)
busy = raised(openai.RateLimitError, lambda: client.chat.completions.create(model=BUSY, **said))
check(busy.response.headers["retry-after"] == "7", "429 says for how long", busy.body)
stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key="unknown", max_retries=0)
raised(openai.AuthenticationError, lambda: stranger.models.list())
check({MODEL, BUSY} <= {model.id for model in client.models.list()}, "every model is listed")

print(json.dumps({"receipts": receipts}))
