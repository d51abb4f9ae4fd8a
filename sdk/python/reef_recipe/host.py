"""The host's interfaces, as far as the component imports them. Every refusal becomes a `Failure`, so that a recipe
needs no error handling: a call that fails changes nothing. An interface that the manifest does not ask for is
absent from the component; using it says so.
"""

import importlib

from componentize_py_types import Err
from wit_world.imports import types

_REFUSALS = {
    "UnknownSample": "{} is not a sample of this call",
    "UnknownTrainer": "{} is not a trainer of this call",
    "UnknownBinding": "no binding '{}' in this call",
    "UnknownTask": "no task '{}'",
    "UnknownVerifier": "no verifier '{}'",
    "UnknownEntry": "the tree has no entry '{}'",
    "Absent": "not recorded: {}",
    "Budget": "over budget: {}",
    "Unsupported": "this host cannot do it: {}",
    "Refused": "refused: {}",
    "Cancelled": "the step was cancelled",
}


class Failure(Exception):
    """Why a recipe gives up a call: the step fails and nothing is consumed."""

    def __init__(self, reason: str, kind: str = "other"):
        super().__init__(reason)
        self.reason = reason
        self.kind = kind

    @classmethod
    def config(cls, key: str, problem: str) -> "Failure":
        """A configuration value that cannot be used; the message names the key."""
        return cls(f"{key}: {problem}", "invalid-config")

    @classmethod
    def capability(cls, message: str) -> "Failure":
        """A refusal of the host."""
        return cls(message, "capability")

    def to_wit(self) -> types.Failure:
        """The value that crosses the boundary."""
        if self.kind == "invalid-config":
            return types.Failure_InvalidConfig(self.reason)
        if self.kind == "capability":
            return types.Failure_Capability(self.reason)
        return types.Failure_Other(self.reason)


def _refusal(interface: str, error) -> Failure:
    case = type(error).__name__.rpartition("_")[2]
    value = getattr(error, "value", "")
    return Failure.capability(f"{interface}: {_REFUSALS.get(case, '{}').format(getattr(value, 'id', value))}")


class _Interface:
    """An interface of the host: its functions raise `Failure`, its types are as generated."""

    def __init__(self, name: str):
        self._name = name
        try:
            self._module = importlib.import_module(f"wit_world.imports.{name}")
        except ModuleNotFoundError:
            self._module = None

    def __getattr__(self, item: str):
        if self._module is None:
            raise Failure(f"{self._name}: the manifest does not ask for this capability")
        value = getattr(self._module, item)
        if isinstance(value, type) or not callable(value):
            return value

        def call(*arguments):
            try:
                return value(*arguments)
            except Err as error:
                raise _refusal(self._name, error.value) from None

        return call


class _Log:
    """Log lines, tagged by the host with tenant, scenario and recipe. `context`: where in the recipe."""

    def __init__(self):
        self._interface = _Interface("log")

    def _write(self, level: str, message: str, context: str):
        self._interface.log(self._interface.Level[level], context, message)

    def debug(self, message: str, context: str = ""):
        """Detail for the author of a recipe."""
        self._write("DEBUG", message, context)

    def info(self, message: str, context: str = ""):
        """What happened."""
        self._write("INFO", message, context)

    def warn(self, message: str, context: str = ""):
        """What somebody should look at."""
        self._write("WARN", message, context)

    def error(self, message: str, context: str = ""):
        """What went wrong."""
        self._write("ERROR", message, context)


config = _Interface("config")
experience = _Interface("experience")
harness = _Interface("harness")
log = _Log()
metrics = _Interface("metrics")
models = _Interface("models")
raw_state = _Interface("state")
tokens = _Interface("tokens")
training = _Interface("training")
verify = _Interface("verify")
