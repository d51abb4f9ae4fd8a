"""Puts what the tests of kill -9 found into one file, with the conditions: merge-faults.py REPORTS FILE."""

import json
import os
import pathlib
import platform
import subprocess
import sys

reports, target = map(pathlib.Path, sys.argv[1:])
found = {path.stem: json.loads(path.read_text()) for path in sorted(reports.glob("*.json"))}
if not found:
    sys.exit(f"{reports} holds no report; run scripts/kill-table.sh")
commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
conditions = {
    "commit": commit.stdout.strip(),
    "machine": platform.machine(),
    "system": platform.release(),
    "cores": os.cpu_count(),
    "profile": "dev",
    "model": "two blocks with random weights, so that a step takes a fraction of a second",
    "server": "reef serve, in a process of its own, killed with SIGKILL",
}
target.write_text(json.dumps({"conditions": conditions, **found}, indent=1) + "\n")
