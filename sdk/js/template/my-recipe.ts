/** my-recipe: every token of an answer is credited with how much better than the average that answer was. */
import { Key, Optimizer, Trainer, Weight, manifest, policyGradient, recipe, weights } from "reef-recipe";

const BATCH_SIZE = Key.count("batch_size", 32, "scored answers per step").within(2, 512);

export const strategy = recipe({
  manifest: manifest.weights("my-recipe", "0.1.0", {
    needsScore: true,
    asks: ["experience", "training"],
    keys: [BATCH_SIZE],
  }),

  select(_ctx, pool) {
    return pool.first(BATCH_SIZE.get());
  },

  propose(_ctx, batch) {
    const scores = batch.scores();
    const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
    const better = policyGradient(Weight.reinforce(), { perSample: scores.map((score) => score - mean) });
    const trainer = Trainer.open();
    trainer.train(batch, better, Optimizer.adamw(5e-4));
    return weights(trainer.checkpoint());
  },
});
