"""Configuration keys and report fields: one constant carries name, kind, default, range and documentation, so that
the manifest, the check and the use of a value cannot disagree.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Optional

from .host import Failure, config, experience, types

_KINDS = {int: types.ValueKind.NUMBER, float: types.ValueKind.NUMBER, bool: types.ValueKind.BOOLEAN, str: types.ValueKind.TEXT}
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _parsed(text: str, kind: type) -> Any:
    """The JSON value if it is of the kind, else None. `32.0` is a whole number, `true` is no number."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        if kind is int:
            return int(value) if value == value // 1 else None
        return float(value)
    return value if isinstance(value, kind) else None


def _number(value: float) -> str:
    return str(int(value)) if value == value // 1 else repr(value)


@dataclass(frozen=True)
class Key:
    """A configuration key. Make one with `count`, `number`, `flag` or `text`."""

    name: str
    default: Any
    doc: str
    kind: type
    low: Optional[float] = None
    high: Optional[float] = None

    @classmethod
    def count(cls, name: str, default: int, doc: str) -> "Key":
        """A whole number, 0 or more."""
        return cls(name, default, doc, int)

    @classmethod
    def number(cls, name: str, default: float, doc: str) -> "Key":
        """A finite number."""
        return cls(name, default, doc, float)

    @classmethod
    def flag(cls, name: str, default: bool, doc: str) -> "Key":
        """A switch."""
        return cls(name, default, doc, bool)

    @classmethod
    def text(cls, name: str, default: str, doc: str) -> "Key":
        """A text."""
        return cls(name, default, doc, str)

    def within(self, low: float, high: float) -> "Key":
        """Limits a number to `low` … `high`; the host refuses others before any call."""
        return replace(self, low=float(low), high=float(high))

    def get(self) -> Any:
        """The operator's value, else the default."""
        text = config.get(self.name)
        value = self.default if text is None else _parsed(text, self.kind)
        if value is None:
            raise Failure.config(self.name, f"{text} is not {_WANTED[self.kind]}")
        if self.low is not None and not self.low <= value <= self.high:
            wanted = f"{_WANTED[self.kind]} from {_number(self.low)} to {_number(self.high)}"
            raise Failure.config(self.name, f"{text} is not {wanted}")
        if self.kind is int and value < 0:
            raise Failure.config(self.name, f"{text} is not {_WANTED[int]} of 0 or more")
        return value

    def to_wit(self) -> types.ConfigKey:
        """The entry of the manifest."""
        return types.ConfigKey(self.name, _KINDS[self.kind], json.dumps(self.default), self.low, self.high, self.doc)


@dataclass(frozen=True)
class Field:
    """A field of the `metadata` of a report. `kind`: int, float, bool or str."""

    name: str
    doc: str
    kind: type = float
    required: bool = False

    def of(self, sample: int) -> Any:
        """The value in the report of the sample; None if absent or of another kind."""
        text = experience.report_field(sample, self.name)
        return None if text is None else _parsed(text, self.kind)

    def to_wit(self) -> types.ReportField:
        """The entry of the manifest."""
        return types.ReportField(self.name, _KINDS[self.kind], self.required, self.doc)
