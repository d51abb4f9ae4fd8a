"""my-recipe: every token of an answer is credited with how much better than the average that answer was."""

from reef_recipe import Key, Manifest, Optimizer, PolicyGradient, Recipe, Trainer, Weight, recipe, weights

BATCH_SIZE = Key.count("batch_size", 32, "scored answers per step").within(2, 512)


@recipe
class MyRecipe(Recipe):
    manifest = Manifest.weights(
        "my-recipe", "0.1.0", needs_score=True, keys=[BATCH_SIZE], asks=["experience", "training"]
    )

    def select(self, ctx, pool):
        return pool.first(BATCH_SIZE.get())

    def propose(self, ctx, batch):
        scores = batch.scores()
        mean = sum(scores) / len(scores)
        better = PolicyGradient(Weight.reinforce(), per_sample=[score - mean for score in scores])
        trainer = Trainer.open()
        trainer.train(batch, better, Optimizer.adamw(5e-4))
        return weights(trainer.checkpoint())

    # Optional, and an export of its own: what an upgrade does with the state of the version before.
    def migrate(self, from_version, state):
        return {key: value for key, value in state.items() if not key.startswith("scratch/")}
