"""What survives a call: key-value pairs of (tenant, scenario, recipe), committed together with the step and dropped
when the call fails. Numbers are stored little-endian, as in the other languages.
"""

import struct
from typing import List, Optional

from .host import Failure, raw_state


class state:  # noqa: N801  (used as `state.get_u32("seen")`)
    """Reads see the writes of the same call."""

    @staticmethod
    def get(key: str) -> Optional[bytes]:
        """The bytes of `key`."""
        return raw_state.get(key)

    @staticmethod
    def set(key: str, value: bytes) -> None:
        """Writes `key`: at most 64 KiB."""
        raw_state.set(key, value)

    @staticmethod
    def delete(key: str) -> None:
        """Deletes `key`."""
        raw_state.delete(key)

    @staticmethod
    def keys() -> List[str]:
        """Every key, sorted."""
        return raw_state.keys()

    @staticmethod
    def get_u32(key: str) -> Optional[int]:
        """A whole number from 0 to 4,294,967,295."""
        return _unpacked("<I", key)

    @staticmethod
    def set_u32(key: str, value: int) -> None:
        """A whole number from 0 to 4,294,967,295."""
        raw_state.set(key, struct.pack("<I", value))

    @staticmethod
    def get_f64(key: str) -> Optional[float]:
        """A number, bit for bit."""
        return _unpacked("<d", key)

    @staticmethod
    def set_f64(key: str, value: float) -> None:
        """A number, bit for bit."""
        raw_state.set(key, struct.pack("<d", value))


def _unpacked(layout: str, key: str):
    value = raw_state.get(key)
    if value is None:
        return None
    if len(value) != struct.calcsize(layout):
        raise Failure(f"state {key}: its {len(value)} bytes are of another type")
    return struct.unpack(layout, value)[0]
