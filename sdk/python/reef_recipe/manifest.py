"""Building a manifest: what a recipe says of itself before it is given anything."""

from typing import Iterable

from .host import types
from .keys import Field, Key


class Manifest:
    """Makes a manifest. `asks`: interfaces of the host, e.g. `experience` and `training`; `config` is asked for
    by declaring a key. An interface that is not asked for is not part of the component."""

    @staticmethod
    def weights(name: str, version: str, **what) -> types.Manifest:
        """A recipe that evolves weights."""
        return _manifest(types.Surface.WEIGHTS, name, version, **what)

    @staticmethod
    def harness(name: str, version: str, **what) -> types.Manifest:
        """A recipe that evolves the harness tree."""
        return _manifest(types.Surface.HARNESS, name, version, **what)

    @staticmethod
    def router(name: str, version: str, **what) -> types.Manifest:
        """A recipe that evolves the routing policy."""
        return _manifest(types.Surface.ROUTER, name, version, **what)


def _manifest(
    surface: types.Surface,
    name: str,
    version: str,
    *,
    needs_score: bool = False,
    asks: Iterable[str] = (),
    keys: Iterable[Key] = (),
    fields: Iterable[Field] = (),
    top_k: int = 0,
    re_evaluate_every: int = 0,
) -> types.Manifest:
    capabilities = list(dict.fromkeys(asks))
    config = [key.to_wit() for key in keys]
    if config and "config" not in capabilities:
        capabilities.append("config")
    reports = [field.to_wit() for field in fields]
    return types.Manifest(
        name, version, surface, needs_score, reports, config, capabilities, top_k, re_evaluate_every
    )
