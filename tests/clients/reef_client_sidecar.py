"""One plain and one streamed answer through the sidecar of reef-client, on a free port."""

import json
import sys
import threading
import urllib.request
from http.server import ThreadingHTTPServer

from reef_client.serve import CaptureStore, ServeConfig, build_handler

url, scenario, model = sys.argv[1:4]
store = CaptureStore()
config = ServeConfig(upstream=url, extra_headers={"x-reef-scenario": scenario})
server = ThreadingHTTPServer(("127.0.0.1", 0), build_handler(config, store))
threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(stream):
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "stream": stream}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.server_port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


text = json.loads(ask(False))["choices"][0]["message"]["content"]
frames = [line[6:] for line in ask(True).splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
streamed = "".join((json.loads(f)["choices"] or [{}])[0].get("delta", {}).get("content") or "" for f in frames)
turns = store.snapshot()
assert len(turns) == 2 and all(turn["receipt"] for turn in turns), turns
server.shutdown()
print(json.dumps({"text": text, "streamed": streamed}))
