// my-recipe: every token of an answer is credited with how much better than the average that answer was.
#include "reef_recipe.h"

#include <stdlib.h>

static const reef_key BATCH_SIZE = REEF_COUNT("batch_size", "32", 2, 512, "scored answers per step");

void reef_describe(reef_manifest *manifest) {
  reef_weights_recipe(manifest, "my-recipe", "0.1.0");
  manifest->needs_score = true;
  reef_asks(manifest, "experience");
  reef_asks(manifest, "training");
  reef_declares(manifest, &BATCH_SIZE);
}

bool reef_select(const reef_context *ctx, const reef_samples *pool, reef_selection *selection, reef_failure *failure) {
  (void)ctx;
  uint32_t size;
  if (!reef_key_count(&BATCH_SIZE, &size, failure)) return false;
  if (pool->len < size) reef_wait(selection, reef_textf("%zu of %u samples", pool->len, (unsigned)size));
  else reef_train(selection, pool->ptr, size);
  return true;
}

bool reef_propose(const reef_context *ctx, const reef_samples *batch, reef_proposal *proposal, reef_failure *failure) {
  (void)ctx;
  recipe_list_f64_t scores;
  if (!reef_scores(batch, &scores, failure)) return false;
  double mean = 0;
  for (size_t i = 0; i < scores.len; i++) mean += scores.ptr[i] / (double)scores.len;

  float *better = calloc(scores.len, sizeof *better);
  if (better == NULL) return reef_fail(failure, reef_text("the memory of the sandbox is used up"));
  for (size_t i = 0; i < scores.len; i++) better[i] = (float)(scores.ptr[i] - mean);

  reef_trainer trainer;
  reef_candidate candidate;
  reef_objective objective = reef_policy_gradient(reef_reinforce(), better, scores.len);
  if (!reef_open(&trainer, failure)) return false;
  if (!reef_train_step(trainer, batch, objective, reef_adamw(5e-4), failure)) return false;
  if (!reef_checkpoint(trainer, &candidate, failure)) return false;
  reef_weights(proposal, candidate);
  return true;
}
