/** best-of: answers that scored better than the average of their batch become more likely, the others less. */
import {
  Key, Optimizer, Trainer, Weight, log, manifest, metrics, policyGradient, promote, recipe, skip, state, train, wait,
  weights,
} from "reef-recipe";

const BATCH_SIZE = Key.count("batch_size", 4, "scored answers per step").within(2, 512);
const LEARNING_RATE = Key.number("learning_rate", 0.0005, "step size of AdamW");

export const strategy = recipe({
  manifest: manifest.weights("best-of", "0.1.0", {
    needsScore: true,
    asks: ["experience", "training", "state", "config", "metrics", "log"],
    keys: [BATCH_SIZE, LEARNING_RATE],
  }),

  select(_ctx, pool) {
    const pairs = pool.scores().map((score, index) => ({ sample: pool.handles[index]!, score }));
    if (pool.promptKeys().length !== pairs.length) throw new Error("one prompt key a sample is needed");
    const scored = pairs.filter(({ score }) => Number.isFinite(score)).map(({ sample }) => sample);
    const unscored = pairs.filter(({ score }) => !Number.isFinite(score))
      .map(({ sample }) => ({ sample, reason: "no score" }));
    const size = BATCH_SIZE.get();
    if (scored.length < size) return wait(`${scored.length} of ${size} samples`, unscored);
    return train(scored.slice(0, size), unscored);
  },

  propose(_ctx, batch) {
    const scores = batch.scores();
    const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
    if (scores.every((score) => score === scores[0])) {
      state.setU32("skipped", (state.getU32("skipped") ?? 0) + 1);
      return skip("all scores are equal");
    }

    const better = policyGradient(Weight.reinforce(), { perSample: scores.map((score) => score - mean) });
    const trainer = Trainer.open();
    trainer.train(batch, better, Optimizer.adamw(LEARNING_RATE.get()));
    metrics.gauge("best_of/mean", mean);
    log.info(`trained on ${scores.length} samples`, "best-of");
    return weights(trainer.checkpoint());
  },

  evaluate(_ctx, candidate) {
    return promote("left to the operator's gate", { "best_of/candidate": candidate });
  },
});
