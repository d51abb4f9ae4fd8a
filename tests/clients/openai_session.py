"""Models, an answer, the same answer streamed, and two errors, with the openai package."""

import json
import sys

import openai

url, scenario, model = sys.argv[1:4]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", default_headers={"x-reef-scenario": scenario}, max_retries=0)
ask = {"model": model, "messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 8, "temperature": 0}
answer = client.chat.completions.create(**ask)
streamed = ""
usage = None
for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
    if chunk.usage:
        usage = chunk.usage
    for choice in chunk.choices:
        streamed += choice.delta.content or ""
try:
    client.chat.completions.create(**{**ask, "model": "nothing"})
    not_found = None
except openai.OpenAIError as error:
    not_found = type(error).__name__
try:
    client.chat.completions.create(**{**ask, "messages": [{"role": "user", "content": "word " * 9000}]})
    too_long = None
except openai.BadRequestError as error:
    too_long = error.code
print(json.dumps({
    "text": answer.choices[0].message.content,
    "finish_reason": answer.choices[0].finish_reason,
    "streamed": streamed,
    "usage": usage.model_dump() if usage else None,
    "models": [m.id for m in client.models.list()],
    "not_found": not_found,
    "too_long": too_long,
}))
