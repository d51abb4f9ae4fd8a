"""The exports of the component, as `componentize-py` looks for them. Used by `build.sh` only. A `Failure` and any
other exception of the recipe become the failure of the call, so that nothing traps.
"""

from componentize_py_types import Err

from .host import Failure, types
from .recipe import the_recipe
from .samples import Samples


def _decide(decide, *arguments):
    try:
        return decide(*arguments)
    except Failure as failure:
        raise Err(failure.to_wit()) from None
    except Exception as error:
        raise Err(types.Failure_Other(f"{type(error).__name__}: {error}")) from None


class Strategy:
    """`reef:recipe/strategy`."""

    def describe(self):
        return the_recipe().manifest

    def select_samples(self, ctx, pool):
        return _decide(the_recipe()().select, ctx, Samples(pool))

    def propose_update(self, ctx, batch):
        return _decide(the_recipe()().propose, ctx, Samples(batch))

    def evaluate(self, ctx, subject):
        return _decide(the_recipe()().evaluate, ctx, subject)


class Migration:
    """`reef:recipe/migration`."""

    def migrate(self, from_version, entries):
        from wit_world.exports import migration

        state = _decide(the_recipe()().migrate, from_version, {entry.key: entry.value for entry in entries})
        return [migration.StateEntry(key, value) for key, value in sorted(state.items())]


class Live:
    """`reef:recipe/live`."""

    def ingest(self, ctx, exchanges):
        from wit_world.exports import live

        judgements = _decide(the_recipe()().ingest, ctx, exchanges)
        return [live.Judgement(one.receipt, float(one.score), one.metadata) for one in judgements]


class Requests:
    """`reef:recipe/requests`."""

    def transform_request(self, request):
        return the_recipe()().transform_request(request)
