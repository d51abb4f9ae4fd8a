"""The class that a recipe extends, and the decorator that makes it the recipe of its component."""

from dataclasses import dataclass
from typing import Dict, List, Optional, Type

from .decisions import promote
from .host import types
from .samples import Batch, Pool

Context = types.Context

# Methods that are exports of their own, and the interface that each belongs to.
OPTIONAL = {"migrate": "migration", "ingest": "live", "transform_request": "requests"}

registered: List[Type["Recipe"]] = []


@dataclass
class Judgement:
    """A score that the recipe gives to a recorded exchange. `metadata`: a JSON object."""

    receipt: str
    score: float
    metadata: str = "{}"


class Recipe:
    """A learning strategy: three decisions and a description.

    Every call starts in a fresh sandbox: what must survive goes through `state`, never through attributes.
    """

    manifest: types.Manifest

    def select(self, ctx: Context, pool: Pool) -> types.Selection:
        """Decides what to learn from now. `pool`: unconsumed samples, oldest first."""
        raise NotImplementedError

    def propose(self, ctx: Context, batch: Batch) -> types.Proposal:
        """Learns from the selected samples, in their order, and proposes the outcome."""
        raise NotImplementedError

    def evaluate(self, ctx: Context, candidate: int) -> types.Verdict:
        """Judges the candidate. Without an opinion of its own a recipe leaves it to the operator's gate."""
        return promote("the recipe leaves the decision to the operator's gate")

    # A recipe that defines one of these exports it too; the build looks which ones it defines.
    def migrate(self, from_version: str, state: Dict[str, bytes]) -> Dict[str, bytes]:
        """Carries the state of an older version over. Returns the whole new state."""
        raise NotImplementedError

    def ingest(self, ctx: Context, exchanges: list) -> List[Judgement]:
        """Scores recorded exchanges, oldest first."""
        raise NotImplementedError

    def transform_request(self, request) -> Optional[List[types.Message]]:
        """The messages to answer instead; None = unchanged."""
        raise NotImplementedError


def recipe(cls: Type[Recipe]) -> Type[Recipe]:
    """Makes the class the recipe of its component; once a component."""
    if not isinstance(getattr(cls, "manifest", None), types.Manifest):
        raise TypeError(f"{cls.__name__} has no `manifest`; write e.g. manifest = Manifest.weights(\"name\", \"0.1.0\")")
    for method in ("select", "propose"):
        if getattr(cls, method) is getattr(Recipe, method):
            raise TypeError(f"{cls.__name__} does not define `{method}`")
    registered.append(cls)
    return cls


def the_recipe() -> Type[Recipe]:
    """The class that was decorated."""
    if len(registered) != 1:
        raise TypeError(f"a component has exactly one class with @recipe, and this one has {len(registered)}")
    return registered[0]


def optional_exports() -> List[str]:
    """Interfaces that the recipe exports beside `strategy`."""
    return [name for method, name in OPTIONAL.items() if getattr(the_recipe(), method) is not getattr(Recipe, method)]
