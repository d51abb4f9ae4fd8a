"""What the sessions of the Python packages share: where the server is, and one sentence for what does not hold."""

import os
import sys

URL, TOKEN, SCENARIO, MODEL, BUSY = (
    os.environ[name] for name in ("REEF_URL", "REEF_TOKEN", "REEF_SCENARIO", "REEF_MODEL", "REEF_BUSY_MODEL")
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def check(holds, sentence, *seen):
    """Ends the session with the sentence and what was seen instead, unless it holds."""
    if not holds:
        sys.exit(f"{sentence}; seen: {', '.join(map(repr, seen))}")


def raised(kind, ask):
    """The error of this class that asking raises."""
    try:
        answer = ask()
    except kind as error:
        return error
    except Exception as error:
        sys.exit(f"{kind.__name__} was expected, not {type(error).__name__}: {error}")
    sys.exit(f"{kind.__name__} was expected, not an answer: {answer!r}")
