// Write a learning strategy for Reef in C: define the functions under "What a recipe defines" in one file and build it
// with sdk/c/build.sh. Everything beyond these words is in generated/recipe.h, under its full names.
// Nothing needs to be freed: a call runs in a fresh sandbox that is dropped after it. Values that are handed back must
// live on the heap, which every function here takes care of.
#ifndef REEF_RECIPE_H
#define REEF_RECIPE_H

#include "generated/recipe.h"

typedef exports_reef_recipe_strategy_context_t reef_context;
typedef exports_reef_recipe_strategy_manifest_t reef_manifest;
typedef exports_reef_recipe_strategy_selection_t reef_selection;
typedef exports_reef_recipe_strategy_proposal_t reef_proposal;
typedef exports_reef_recipe_strategy_verdict_t reef_verdict;
typedef exports_reef_recipe_strategy_failure_t reef_failure;
typedef reef_recipe_types_sample_t reef_sample;
typedef reef_recipe_types_trainer_t reef_trainer;
typedef reef_recipe_types_candidate_t reef_candidate;
typedef reef_recipe_training_objective_t reef_objective;
typedef reef_recipe_training_optimizer_t reef_optimizer;
typedef reef_recipe_training_weight_t reef_weight;
typedef recipe_string_t reef_string;

// Samples by handle, in order: `ptr` and `len`.
typedef exports_reef_recipe_strategy_list_sample_t reef_samples;

// ---- What a recipe defines. `false` = the call is given up, and `failure` says why: the step fails, nothing is consumed.

// Says what the recipe is and what it asks for. Constant.
void reef_describe(reef_manifest *manifest);
// Decides what to learn from now. `pool`: unconsumed samples, oldest first.
bool reef_select(const reef_context *ctx, const reef_samples *pool, reef_selection *selection, reef_failure *failure);
// Learns from the selected samples, in their order, and proposes the outcome.
bool reef_propose(const reef_context *ctx, const reef_samples *batch, reef_proposal *proposal, reef_failure *failure);
// Optional. Judges the candidate; without it the decision is the operator's gate's.
bool reef_evaluate(const reef_context *ctx, reef_candidate candidate, reef_verdict *verdict, reef_failure *failure);
// Optional exports: build.sh exports those that the source defines.
bool reef_migrate(const reef_string *from_version, const exports_reef_recipe_migration_list_state_entry_t *state,
                  exports_reef_recipe_migration_list_state_entry_t *migrated, reef_failure *failure);
bool reef_ingest(const reef_context *ctx, const exports_reef_recipe_live_list_exchange_t *exchanges,
                 exports_reef_recipe_live_list_judgement_t *judgements, reef_failure *failure);
// `true` = `messages` are answered instead of those of the request.
bool reef_transform_request(const exports_reef_recipe_requests_request_t *request,
                            exports_reef_recipe_requests_list_message_t *messages);

// ---- Texts

// A text on the heap.
reef_string reef_text(const char *text);
// The same, formatted; at most 1,023 bytes, the rest is cut.
reef_string reef_textf(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- Configuration

// A configuration key: one constant for the manifest, the check and the use.
typedef struct {
  const char *name;
  // JSON.
  const char *initial;
  // A whole number, 0 or more.
  bool whole;
  // Is the range below meant?
  bool limited;
  double low, high;
  const char *doc;
} reef_key;

#define REEF_COUNT(NAME, INITIAL, LOW, HIGH, DOC) {NAME, INITIAL, true, true, LOW, HIGH, DOC}
#define REEF_NUMBER(NAME, INITIAL, DOC) {NAME, INITIAL, false, false, 0, 0, DOC}

// The operator's value, else the default.
bool reef_key_count(const reef_key *key, uint32_t *value, reef_failure *failure);
bool reef_key_number(const reef_key *key, double *value, reef_failure *failure);

// ---- Manifest

// A recipe that evolves weights. Then change fields, e.g. `manifest->needs_score = true`.
void reef_weights_recipe(reef_manifest *manifest, const char *name, const char *version);
// Asks for an interface of the host, e.g. "experience"; what is not asked for is not part of the component.
void reef_asks(reef_manifest *manifest, const char *capability);
// Declares a key, and asks for "config".
void reef_declares(reef_manifest *manifest, const reef_key *key);

// ---- Columns of the samples, one value a sample

bool reef_scores(const reef_samples *samples, recipe_list_f64_t *scores, reef_failure *failure);
bool reef_lags(const reef_samples *samples, recipe_list_u32_t *lags, reef_failure *failure);
bool reef_prompt_lengths(const reef_samples *samples, recipe_list_u32_t *lengths, reef_failure *failure);
bool reef_response_lengths(const reef_samples *samples, recipe_list_u32_t *lengths, reef_failure *failure);
bool reef_mean_logprobs(const reef_samples *samples, recipe_list_f64_t *logprobs, reef_failure *failure);
bool reef_prompt_keys(const reef_samples *samples, recipe_list_string_t *keys, reef_failure *failure);

// ---- Decisions

// Not yet; the reason is shown in the status.
void reef_wait(reef_selection *selection, reef_string reason);
// Train on these, in this order. The handles are copied.
void reef_train(reef_selection *selection, const reef_sample *samples, size_t count);
// Gives up a sample that will never be used.
void reef_retire(reef_selection *selection, reef_sample sample, const char *reason);
// Proposes a checkpoint of a trainer of this call.
void reef_weights(reef_proposal *proposal, reef_candidate candidate);
// The batch is consumed and nothing is released; the reason is recorded.
void reef_skip(reef_proposal *proposal, const char *reason);
// Release it, keep it for a person to look at, drop it.
void reef_promote(reef_verdict *verdict, reef_string reason);
void reef_hold(reef_verdict *verdict, reef_string reason);
void reef_reject(reef_verdict *verdict, reef_string reason);
// Adds a number to the record of the decision; it must be finite.
void reef_measure(reef_verdict *verdict, const char *name, double value);

// ---- Training

static inline reef_weight reef_reinforce(void) { return (reef_weight){.tag = REEF_RECIPE_TRAINING_WEIGHT_REINFORCE}; }
static inline reef_weight reef_ratio(void) { return (reef_weight){.tag = REEF_RECIPE_TRAINING_WEIGHT_RATIO}; }
static inline reef_weight reef_ppo(float low, float high) {
  return (reef_weight){.tag = REEF_RECIPE_TRAINING_WEIGHT_PPO, .val.ppo = {low, high}};
}

// −f(r)·A·log π with one advantage a sample; mean over the action tokens of a sample, then over samples.
reef_objective reef_policy_gradient(reef_weight weight, float *advantages, size_t samples);
// AdamW without weight decay: β 0.9 and 0.95, ε 1e-8, gradient norm clipped to 1.
static inline reef_optimizer reef_adamw(double learning_rate) {
  return (reef_optimizer){learning_rate, 0.9, 0.95, 1e-8, 0, 1};
}
// A trainer that starts from the head release.
bool reef_open(reef_trainer *trainer, reef_failure *failure);
// One optimizer step on the objective.
bool reef_train_step(reef_trainer trainer, const reef_samples *batch, reef_objective objective, reef_optimizer how,
                     reef_failure *failure);
// Freezes the trainer's state as a candidate.
bool reef_checkpoint(reef_trainer trainer, reef_candidate *candidate, reef_failure *failure);

// ---- State, log, metrics

// A number that survives the call; 0 if it was never set. Stored little-endian, as in the other languages.
bool reef_state_get_u32(const char *key, uint32_t *value, reef_failure *failure);
bool reef_state_set_u32(const char *key, uint32_t value, reef_failure *failure);
void reef_log_info(const char *context, reef_string message);
void reef_log_warn(const char *context, reef_string message);
void reef_gauge(const char *name, double value);

// ---- Failures; all give `false`, so that a function can end with `return reef_…_refused(…)`

bool reef_fail(reef_failure *failure, reef_string reason);
bool reef_experience_refused(reef_failure *failure, const reef_recipe_experience_experience_error_t *error);
bool reef_training_refused(reef_failure *failure, const reef_recipe_training_training_error_t *error);
bool reef_models_refused(reef_failure *failure, const reef_recipe_models_models_error_t *error);
bool reef_harness_refused(reef_failure *failure, const reef_recipe_harness_harness_error_t *error);
bool reef_verify_refused(reef_failure *failure, const reef_recipe_verify_verify_error_t *error);
bool reef_tokens_refused(reef_failure *failure, const reef_recipe_tokens_tokens_error_t *error);
bool reef_state_refused(reef_failure *failure, const reef_recipe_state_state_error_t *error);

#endif
