"""Short ways to say a decision: what to train on, what to propose, what to make of a candidate."""

from typing import Iterable, Mapping

from .host import types

Group = types.Group
Measurement = types.Measurement
Retirement = types.Retirement


def wait(reason: str, retire: Iterable[types.Retirement] = ()) -> types.Selection:
    """Not yet; the reason is shown in the status."""
    return types.Selection(types.Choice_Wait(reason), list(retire))


def train(samples: Iterable[int], retire: Iterable[types.Retirement] = ()) -> types.Selection:
    """Train on these, in this order; each at most once."""
    return types.Selection(types.Choice_Train(list(samples)), list(retire))


def train_groups(groups: Iterable[types.Group], retire: Iterable[types.Retirement] = ()) -> types.Selection:
    """Train on these groups, in this order."""
    return types.Selection(types.Choice_TrainGroups(list(groups)), list(retire))


def weights(candidate: int) -> types.Proposal:
    """Proposes a checkpoint of a trainer of this call."""
    return types.Proposal_Weights(candidate)


def mutations(changes: Iterable[types.Mutation]) -> types.Proposal:
    """Proposes changes of the harness tree, applied in order."""
    return types.Proposal_Mutations(list(changes))


def router(routes: Iterable[types.Route]) -> types.Proposal:
    """Proposes a routing policy, rules in order."""
    return types.Proposal_Router(list(routes))


def skip(reason: str) -> types.Proposal:
    """The batch is consumed and nothing is released; the reason is recorded."""
    return types.Proposal_Skip(reason)


def promote(reason: str, measurements: Mapping[str, float] | None = None) -> types.Verdict:
    """Release it, if the operator's gate agrees."""
    return _verdict(types.Decision.PROMOTE, reason, measurements)


def hold(reason: str, measurements: Mapping[str, float] | None = None) -> types.Verdict:
    """Keep it for a person to look at."""
    return _verdict(types.Decision.HOLD, reason, measurements)


def reject(reason: str, measurements: Mapping[str, float] | None = None) -> types.Verdict:
    """Drop it."""
    return _verdict(types.Decision.REJECT, reason, measurements)


def _verdict(decision, reason, measurements) -> types.Verdict:
    numbers = [types.Measurement(name, float(value)) for name, value in (measurements or {}).items()]
    return types.Verdict(decision, reason, numbers)
