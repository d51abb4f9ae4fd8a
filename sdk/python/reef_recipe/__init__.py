"""Write a learning strategy for Reef in Python: subclass `Recipe`, decorate it with `@recipe`, and build the file
with `sdk/python/build.sh`. Everything a recipe needs is in this module.

A recipe decides what a model learns from, how, and whether to keep it; the host serves, records, trains and
releases. There is no clock, no randomness, no file and no socket: the time and the seed are in the `Context`.
"""

from .decisions import (
    Group,
    Measurement,
    Retirement,
    hold,
    mutations,
    promote,
    reject,
    router,
    skip,
    train,
    train_groups,
    wait,
    weights,
)
from .host import Failure, config, experience, harness, log, metrics, models, tokens, training, types, verify
from .keys import Field, Key
from .manifest import Manifest
from .recipe import Context, Judgement, Recipe, recipe
from .samples import Batch, Pool, Samples
from .state import state
from .training import Optimizer, Policy, PolicyGradient, Trainer, Weight, distill, nll

__all__ = [
    "Batch", "Context", "Failure", "Field", "Group", "Judgement", "Key", "Manifest", "Measurement", "Optimizer", "Policy",
    "PolicyGradient", "Pool", "Recipe", "Retirement", "Samples", "Trainer", "Weight", "config", "distill",
    "experience", "harness", "hold", "log", "metrics", "models", "mutations", "nll", "promote", "recipe", "reject",
    "router", "skip", "state", "tokens", "train", "train_groups", "training", "types", "verify", "wait", "weights",
]
