"""Ask, report and read with reef-client, as its documentation shows."""

import json
import sys

from reef_client import ReefClient, ReefClientError

url, scenario, model = sys.argv[1:4]
client = ReefClient(url)
payload = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
body, receipt = client.inference_with_record(scenario, "/v1/chat/completions", payload)
report = client.report(scenario, {"score": 1.0, "feedback": "good"}, references=[receipt])
# The release that answered can be named again.
_, headers = client.post("/v1/chat/completions", scenario, payload)
again, _ = client.post("/v1/chat/completions", scenario, payload, artifact_version=headers["x-reef-release-id"])
try:
    client.get("/reef/scenarios/never-made/versions")
    unknown_status = 200
except ReefClientError as error:
    unknown_status = error.status
versions = client.get(f"/reef/scenarios/{scenario}/versions")
print(json.dumps({
    "receipt": receipt,
    "text": body["choices"][0]["message"]["content"],
    "report": report,
    "again": again["choices"][0]["message"]["content"],
    "unknown_status": unknown_status,
    "versions": len(versions["releases"]),
}))
