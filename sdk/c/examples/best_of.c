// best-of: answers that scored better than the average of their batch become more likely, the others less.
#include "reef_recipe.h"

#include <math.h>
#include <stdlib.h>

static const reef_key BATCH_SIZE = REEF_COUNT("batch_size", "4", 2, 512, "scored answers per step");
static const reef_key LEARNING_RATE = REEF_NUMBER("learning_rate", "0.0005", "step size of AdamW");

void reef_describe(reef_manifest *manifest) {
  reef_weights_recipe(manifest, "best-of", "0.1.0");
  manifest->needs_score = true;
  const char *asks[] = {"experience", "training", "state", "config", "metrics", "log"};
  for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) reef_asks(manifest, asks[i]);
  reef_declares(manifest, &BATCH_SIZE);
  reef_declares(manifest, &LEARNING_RATE);
}

bool reef_select(const reef_context *ctx, const reef_samples *pool, reef_selection *selection, reef_failure *failure) {
  (void)ctx;
  recipe_list_f64_t scores;
  recipe_list_string_t prompts;
  uint32_t size;
  if (!reef_scores(pool, &scores, failure) || !reef_prompt_keys(pool, &prompts, failure)) return false;
  if (!reef_key_count(&BATCH_SIZE, &size, failure)) return false;

  reef_sample batch[512];
  size_t scored = 0;
  for (size_t i = 0; i < pool->len; i++) {
    if (!isfinite(scores.ptr[i])) reef_retire(selection, pool->ptr[i], "no score");
    else if (scored++ < size) batch[scored - 1] = pool->ptr[i];
  }
  if (scored < size) reef_wait(selection, reef_textf("%zu of %u samples", scored, (unsigned)size));
  else reef_train(selection, batch, size);
  return true;
}

bool reef_propose(const reef_context *ctx, const reef_samples *batch, reef_proposal *proposal, reef_failure *failure) {
  (void)ctx;
  recipe_list_f64_t scores;
  if (!reef_scores(batch, &scores, failure)) return false;
  double sum = 0;
  bool equal = true;
  for (size_t i = 0; i < scores.len; i++) {
    sum += scores.ptr[i];
    equal = equal && scores.ptr[i] == scores.ptr[0];
  }
  double mean = sum / (double)scores.len;
  if (equal) {
    uint32_t skipped;
    if (!reef_state_get_u32("skipped", &skipped, failure)) return false;
    if (!reef_state_set_u32("skipped", skipped + 1, failure)) return false;
    reef_skip(proposal, "all scores are equal");
    return true;
  }

  float *better = calloc(scores.len, sizeof *better);
  if (better == NULL) return reef_fail(failure, reef_text("the memory of the sandbox is used up"));
  for (size_t i = 0; i < scores.len; i++) better[i] = (float)(scores.ptr[i] - mean);

  double learning_rate;
  reef_trainer trainer;
  reef_candidate candidate;
  reef_objective objective = reef_policy_gradient(reef_reinforce(), better, scores.len);
  if (!reef_open(&trainer, failure)) return false;
  if (!reef_key_number(&LEARNING_RATE, &learning_rate, failure)) return false;
  if (!reef_train_step(trainer, batch, objective, reef_adamw(learning_rate), failure)) return false;
  reef_gauge("best_of/mean", mean);
  reef_log_info("best-of", reef_textf("trained on %zu samples", scores.len));
  if (!reef_checkpoint(trainer, &candidate, failure)) return false;
  reef_weights(proposal, candidate);
  return true;
}

bool reef_evaluate(const reef_context *ctx, reef_candidate candidate, reef_verdict *verdict, reef_failure *failure) {
  (void)ctx, (void)failure;
  reef_promote(verdict, reef_text("left to the operator's gate"));
  reef_measure(verdict, "best_of/candidate", candidate);
  return true;
}
