#!/usr/bin/env python3
"""Does a recipe decide the same in another language? Runs components in the real sandbox on the same generated experience.

    python3 sdk/tests/same.py target/wasm32-wasip2/recipe/reef_recipe_sao.wasm target/languages/sao-js.wasm target/languages/sao-python.wasm

The first is what the others are held to: every decision with its words, every retirement, and every number that the
recipe publishes. What a call costs may differ. REEF names another binary than target/debug/reef.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REEF = os.environ.get("REEF", ROOT / "target" / "debug" / "reef")
# The defaults with a smaller batch, and what changes the maths: both turns of the schedule, decay by length.
CONFIGURATIONS = (
    ["batch_size=12"],
    ["batch_size=12", "lambda=0.0", "gamma=0.99", "critic_warmup_steps=0"],
)
SEEDS = (1, 3)
COMPARED = ("pool", "decisions", "retired", "metrics", "failed", "faulted")
# An interpreter needs more memory than the default, and a busy machine more time.
LIMITS = {"memory_bytes_max": 268435456, "wall_select_ms": 3600000, "wall_propose_ms": 3600000, "wall_evaluate_ms": 3600000, "compile_ms_max": 3600000}


def trial(component: str, configuration: list[str], seed: int, limits: str) -> list[dict]:
    """What each step of the trial decided."""
    sets = [word for setting in configuration for word in ("--set", setting)]
    command = [str(REEF), "recipe", "test", component, "-c", limits, "--json", "--seed", str(seed), *sets]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{component}: reef recipe test ended with {ended.returncode}: {ended.stderr.strip()}")
    return [{name: step[name] for name in COMPARED} for step in json.loads(ended.stdout)["steps"]]


def main() -> None:
    reference, *others = sys.argv[1:]
    wrong = 0
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as limits:
        # JSON is YAML.
        json.dump({"sandbox": LIMITS}, limits)
        limits.flush()
        for configuration in CONFIGURATIONS:
            for seed in SEEDS:
                wanted = trial(reference, configuration, seed, limits.name)
                for other in others:
                    same = trial(other, configuration, seed, limits.name) == wanted
                    wrong += not same
                    print(f"{'same' if same else 'DIFFERS'}: {Path(other).name}, {' '.join(configuration)}, seed {seed}, {len(wanted)} steps", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
