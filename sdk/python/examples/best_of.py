"""best-of: answers that scored better than the average of their batch become more likely, the others less."""

import math

from reef_recipe import (
    Key, Manifest, Optimizer, PolicyGradient, Recipe, Retirement, Trainer, Weight,
    log, metrics, promote, recipe, skip, state, train, wait, weights,
)

BATCH_SIZE = Key.count("batch_size", 4, "scored answers per step").within(2, 512)
LEARNING_RATE = Key.number("learning_rate", 0.0005, "step size of AdamW")


@recipe
class BestOf(Recipe):
    manifest = Manifest.weights(
        "best-of", "0.1.0", needs_score=True, keys=[BATCH_SIZE, LEARNING_RATE],
        asks=["experience", "training", "state", "config", "metrics", "log"],
    )

    def select(self, ctx, pool):
        scores, prompts = pool.scores(), pool.prompt_keys()
        scored = [sample for sample, score, _ in zip(pool, scores, prompts) if math.isfinite(score)]
        unscored = [Retirement(sample, "no score") for sample, score in zip(pool, scores) if not math.isfinite(score)]
        size = BATCH_SIZE.get()
        if len(scored) < size:
            return wait(f"{len(scored)} of {size} samples", retire=unscored)
        return train(scored[:size], retire=unscored)

    def propose(self, ctx, batch):
        scores = batch.scores()
        total = 0.0
        for score in scores:
            total += score
        mean = total / len(scores)
        if all(score == scores[0] for score in scores):
            state.set_u32("skipped", (state.get_u32("skipped") or 0) + 1)
            return skip("all scores are equal")

        better = PolicyGradient(Weight.reinforce(), per_sample=[score - mean for score in scores])
        trainer = Trainer.open()
        trainer.train(batch, better, Optimizer.adamw(LEARNING_RATE.get()))
        metrics.gauge("best_of/mean", mean)
        log.info(f"trained on {len(scores)} samples", context="best-of")
        return weights(trainer.checkpoint())

    def evaluate(self, ctx, candidate):
        return promote("left to the operator's gate", {"best_of/candidate": candidate})
