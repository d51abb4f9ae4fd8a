"""Messages, streams, tools, formats, counts and errors with the anthropic package, as its documentation shows."""

import json
from typing import Literal

import anthropic
import pydantic
from check import BUSY, CITY, MODEL, SCENARIO, TOKEN, URL, check, raised

client = anthropic.Anthropic(base_url=URL, api_key=TOKEN, default_headers={"x-reef-scenario": SCENARIO}, max_retries=0)
hello = [{"role": "user", "content": "Tell me about the sea."}]
weather = [{"role": "user", "content": "How is the weather in Rome?"}]
greedy = {"model": MODEL, "extra_body": {"temperature": 0}}  # the package no longer names it
tool = {"name": "weather", "description": "The weather of a city.", "input_schema": CITY}
receipts = []


def kept(response):
    """The parsed answer; its receipt is kept."""
    receipts.append(response.headers["x-reef-agent-record-id"])
    return response.parse()


# A message, and the same one streamed.
whole = kept(client.messages.with_raw_response.create(**greedy, max_tokens=8, system="Be brief.", messages=hello))
check(whole.type == "message" and whole.role == "assistant", "a message says what it is", whole)
check(whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 8, "eight tokens were asked for", whole)
text = whole.content[0].text
names = []
with client.messages.stream(**greedy, max_tokens=8, system="Be brief.", messages=hello) as stream:
    for event in stream:
        names.append(event.type)
    streamed = stream.get_final_message()
receipts.append(stream.response.headers["x-reef-agent-record-id"])
check(streamed.content[0].text == text, "a stream says what the message says", streamed, text)
check(streamed.stop_reason == "max_tokens" and streamed.usage.output_tokens == 8, "a stream is counted", streamed)
check(names[0] == "message_start" and names[-1] == "message_stop", "a stream begins and ends", names)
check(names.count("content_block_start") == names.count("content_block_stop") == 1, "one block was opened", names)

# What is counted is what is charged.
counted = client.messages.count_tokens(model=MODEL, system="Be brief.", messages=hello).input_tokens
charged = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
check(counted == charged, "the prompt's tokens are counted as they are charged", counted, charged)

# A forced tool, whole and streamed, and what it returned.
forced = {**greedy, "max_tokens": 100, "messages": weather, "tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}}
called = kept(client.messages.with_raw_response.create(**forced))
use = called.content[-1]
check(called.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "weather", "the tool is called", called)
check(use.input["city"] in ("Paris", "Rome"), "its input follows the schema", use)
pieces = ""
with client.messages.stream(**forced) as stream:
    for event in stream:
        if event.type == "input_json":
            pieces += event.partial_json
    streamed_use = stream.get_final_message().content[-1]
check(streamed_use.input == use.input == json.loads(pieces), "the pieces of a streamed input are the input", pieces, use)
second = {"type": "tool_use", "id": "toolu_second", "name": "weather", "input": {"city": "Paris"}}
results = [
    {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"},
    {"type": "tool_result", "tool_use_id": "toolu_second", "content": [{"type": "text", "text": "rain"}], "is_error": False},
]
turns = [*weather, {"role": "assistant", "content": [use, second]}, {"role": "user", "content": results}]
after = kept(client.messages.with_raw_response.create(**greedy, max_tokens=8, messages=turns, tools=[tool]))
check(after.usage.output_tokens > 0, "results of parallel calls are taken back", after)


# An answer in a format.
class Place(pydantic.BaseModel):
    """A place to go."""

    capital: bool
    answer: Literal["yes", "no"]


placed = client.messages.parse(**greedy, max_tokens=60, messages=weather, output_format=Place)
check(isinstance(placed.parsed_output, Place), "an answer is of its format", placed)

# What is refused, and how.
models = [model.id for model in client.models.list()]
check(MODEL in models and BUSY in models, "every model is listed", models)
ask = {"max_tokens": 8, "messages": hello}
refused = raised(anthropic.BadRequestError, lambda: client.messages.create(model=MODEL, **{**ask, "max_tokens": 0}))
check(refused.type == "invalid_request_error", "400 has its type", refused.body)
missing = raised(anthropic.NotFoundError, lambda: client.messages.create(model="nothing", **ask))
check(missing.type == "not_found_error", "404 has its type", missing.body)
busy = raised(anthropic.RateLimitError, lambda: client.messages.create(model=BUSY, **ask))
check(busy.type == "rate_limit_error" and busy.response.headers["retry-after"] == "7", "429 says for how long", busy.body)
stranger = anthropic.Anthropic(base_url=URL, api_key="unknown", max_retries=0)
unknown = raised(anthropic.AuthenticationError, lambda: stranger.messages.create(model=MODEL, **ask))
check(unknown.type == "authentication_error", "401 has its type", unknown.body)

print(json.dumps({"receipts": receipts, "text": text}))
