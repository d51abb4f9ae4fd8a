"""Says what a recipe needs, as `build.sh` reads it: lines `import NAME` and `export NAME`."""

import importlib
import sys

importlib.import_module(sys.argv[1])

from reef_recipe.recipe import optional_exports, the_recipe  # noqa: E402  (after the recipe has registered)

KNOWN = ["experience", "training", "models", "harness", "verify", "tokens", "state", "config", "log", "metrics"]

for capability in the_recipe().manifest.capabilities:
    if capability not in KNOWN:
        sys.exit(f"the manifest asks for '{capability}', which no host has; known are {', '.join(KNOWN)}")
    print("import", capability)
for interface in ["strategy", *optional_exports()]:
    print("export", interface)
