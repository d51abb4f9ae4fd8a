"""The trainer: forward and backward passes on a private copy of the scenario's adapter."""

from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

from .host import training, types
from .samples import Samples


class Weight:
    """The detached factor f(r) in the loss −f(r)·A·log π, where r is the ratio of the policies."""

    @staticmethod
    def reinforce():
        """f = 1."""
        return training.Weight_Reinforce()

    @staticmethod
    def ratio():
        """f = r."""
        return training.Weight_Ratio()

    @staticmethod
    def truncated(cap: float):
        """f = min(r, cap)."""
        return training.Weight_Truncated(cap)

    @staticmethod
    def masked(low: float, high: float):
        """f = r inside the bounds, else 0."""
        return training.Weight_Masked(training.Bounds(low, high))

    @staticmethod
    def ppo(low: float, high: float):
        """The clipped surrogate."""
        return training.Weight_Ppo(training.Bounds(low, high))


class Policy:
    """Whose distribution a forward pass reads."""

    @staticmethod
    def current():
        """The trainer's adapter as it is now."""
        return training.Policy_Current()

    @staticmethod
    def base():
        """The frozen base model."""
        return training.Policy_Base()

    @staticmethod
    def ema():
        """The exponential moving average of the trainer's adapter."""
        return training.Policy_Ema()

    @staticmethod
    def named(binding: str):
        """A model binding of the operator."""
        return training.Policy_Named(binding)


def PolicyGradient(  # noqa: N802  (reads like the record of the interface)
    weight,
    *,
    per_sample: Optional[Sequence[float]] = None,
    per_token: Optional[Sequence[float]] = None,
    recomputed: bool = False,
    reduction: str = "sample-token-mean",
    kl: Optional[Tuple[float, object]] = None,
    entropy: float = 0.0,
    score_centering: bool = False,
):
    """−f(r)·A·log π with one advantage a sample, or one a response token (concatenated).

    `recomputed`: π_old is recomputed by the trainer instead of recorded at sampling. `kl`: coefficient and policy.
    """
    if (per_sample is None) == (per_token is None):
        raise ValueError("a policy gradient takes the advantages either per sample or per token")
    advantages = (
        training.Advantages_PerSample(list(per_sample))
        if per_sample is not None
        else training.Advantages_PerToken(list(per_token))
    )
    old = training.RatioSource.RECOMPUTED if recomputed else training.RatioSource.ROLLOUT
    reduced = training.Reduction[reduction.upper().replace("-", "_")]
    penalty = None if kl is None else training.KlPenalty(*kl)
    gradient = training.PolicyGradient(weight, old, advantages, reduced, penalty, entropy, score_centering)
    return training.Objective_PolicyGradient(gradient)


def nll():
    """Negative log-likelihood of the action tokens."""
    return training.Objective_Nll()


def distill(distillation):
    """Distillation: a `training.Distillation`."""
    return training.Objective_Distill(distillation)


class Optimizer:
    """How a gradient becomes a step."""

    @staticmethod
    def adamw(learning_rate: float, *, weight_decay: float = 0.0, gradient_norm_max: float = 1.0):
        """AdamW: β 0.9 and 0.95, ε 1e-8, gradient norm clipped to 1."""
        return training.Optimizer(learning_rate, 0.9, 0.95, 1e-8, weight_decay, gradient_norm_max)


Terms = Union[object, Iterable[Tuple[float, object]]]


class Trainer:
    """A trainer that started from the head release. Valid for this call."""

    def __init__(self, handle: int):
        self.handle = handle

    @classmethod
    def open(cls) -> "Trainer":
        """Opens one: adapter, optimizer state and critic of the head release."""
        return cls(training.open())

    def forward(self, which, samples: Samples) -> List[float]:
        """Log-probs of the response tokens, concatenated; `samples.parts(…)` cuts them."""
        return training.forward(self.handle, which, list(samples))

    def train(self, samples: Samples, objective: Terms, optimizer) -> Dict[str, float]:
        """One optimizer step on an objective, or on a list of (factor, objective)."""
        return _named(training.train(self.handle, list(samples), _terms(objective), optimizer))

    def forward_backward(self, samples: Samples, objective: Terms) -> Dict[str, float]:
        """Adds the gradient of the objective to the trainer's gradient."""
        return _named(training.forward_backward(self.handle, list(samples), _terms(objective)))

    def backward(self, samples: Samples, gradients: Sequence[float]) -> Dict[str, float]:
        """Adds the gradient of a loss of the recipe's own: dL/d(log π), one per response token, concatenated."""
        return _named(training.backward(self.handle, list(samples), list(gradients)))

    def optimizer_step(self, optimizer) -> Dict[str, float]:
        """One step on the trainer's gradient, which is then 0."""
        return _named(training.optimizer_step(self.handle, optimizer))

    def update_ema(self, rate: float) -> None:
        """Moves the moving average towards the adapter."""
        training.update_ema(self.handle, rate)

    def values(self, samples: Samples) -> List[float]:
        """The critic's values of the response tokens, concatenated."""
        return training.values(self.handle, list(samples))

    def fit_values(self, samples: Samples, returns: Sequence[float], learning_rate: float, updates: int = 1) -> Dict[str, float]:
        """Regresses the critic on returns, concatenated."""
        how = training.CriticOptimizer(learning_rate, updates)
        return _named(training.fit_values(self.handle, list(samples), list(returns), how))

    def checkpoint(self) -> int:
        """Freezes the state as a candidate."""
        return training.checkpoint(self.handle)


def _terms(objective: Terms) -> list:
    weighted = objective if isinstance(objective, (list, tuple)) else [(1.0, objective)]
    return [training.Term(factor, what) for factor, what in weighted]


def _named(measurements: List[types.Measurement]) -> Dict[str, float]:
    return {measurement.name: measurement.value for measurement in measurements}
