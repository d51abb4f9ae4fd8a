// The words of reef_recipe.h over the generated bindings, and the exports that call what a recipe defines.
// Compiled into every recipe by build.sh; what a recipe does not use is dropped by the linker.
#include "reef_recipe.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX 1024

// The component's type is embedded after linking; the generated code asks for this symbol so as to link an object
// file that this build does without.
void __component_type_object_force_link_recipe(void);
void __component_type_object_force_link_recipe(void) {}

// Memory that is there, or a trap: a recipe cannot do anything about a full sandbox.
static void *grown(void *old, size_t bytes) {
  void *place = realloc(old, bytes ? bytes : 1);
  if (place == NULL) abort();
  return place;
}

#define APPEND(LIST, ...) \
  do { \
    (LIST).ptr = grown((LIST).ptr, ((LIST).len + 1) * sizeof *(LIST).ptr); \
    (LIST).ptr[(LIST).len++] = __VA_ARGS__; \
  } while (0)

reef_string reef_text(const char *text) {
  size_t length = strlen(text);
  reef_string string = {grown(NULL, length), length};
  memcpy(string.ptr, text, length);
  return string;
}

reef_string reef_textf(const char *format, ...) {
  char text[TEXT_BYTES_MAX];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return reef_text(text);
}

// A text that is only read during a call of the host.
static reef_string borrowed(const char *text) { return (reef_string){(uint8_t *)text, strlen(text)}; }

// ---- Failures

bool reef_fail(reef_failure *failure, reef_string reason) {
  *failure = (reef_failure){.tag = REEF_RECIPE_TYPES_FAILURE_OTHER, .val.other = reason};
  return false;
}

static bool config_failed(reef_failure *failure, reef_string reason) {
  *failure = (reef_failure){.tag = REEF_RECIPE_TYPES_FAILURE_INVALID_CONFIG, .val.invalid_config = reason};
  return false;
}

// What the cases of an error variant carry.
typedef enum { NOTHING, NUMBER, TEXT, ENTRY } payload;
typedef struct { payload payload; const char *before, *after; } refusal;

static bool refused(reef_failure *failure, const char *interface, const refusal *as, const void *value) {
  reef_string reason;
  const reef_string *text = as->payload == ENTRY ? &((const reef_recipe_types_entry_name_t *)value)->id : value;
  switch (as->payload) {
    case NOTHING: reason = reef_textf("%s: %s", interface, as->before); break;
    case NUMBER: reason = reef_textf("%s: %s%u%s", interface, as->before, (unsigned)*(const uint32_t *)value, as->after); break;
    default: reason = reef_textf("%s: %s%.*s%s", interface, as->before, (int)text->len, (const char *)text->ptr, as->after);
  }
  *failure = (reef_failure){.tag = REEF_RECIPE_TYPES_FAILURE_CAPABILITY, .val.capability = reason};
  return false;
}

#define NO_SAMPLE {NUMBER, "", " is not a sample of this call"}
#define OVER_BUDGET {TEXT, "over budget: ", ""}
#define PLAIN {TEXT, "", ""}
#define CANCELLED {NOTHING, "the step was cancelled", ""}

// One function an interface; the table is in the order of its error variant.
#define REFUSED(NAME, TYPE, ...) \
  bool reef_##NAME##_refused(reef_failure *failure, const TYPE *error) { \
    static const refusal cases[] = {__VA_ARGS__}; \
    return refused(failure, #NAME, &cases[error->tag], &error->val); \
  }

REFUSED(experience, reef_recipe_experience_experience_error_t, NO_SAMPLE, OVER_BUDGET, {TEXT, "not recorded: ", ""}, PLAIN)
REFUSED(training, reef_recipe_training_training_error_t, NO_SAMPLE, {NUMBER, "", " is not a trainer of this call"}, PLAIN,
        OVER_BUDGET, {TEXT, "this host cannot do it: ", ""}, CANCELLED, PLAIN)
REFUSED(models, reef_recipe_models_models_error_t, {TEXT, "no binding '", "' in this call"}, PLAIN, OVER_BUDGET, CANCELLED, PLAIN)
REFUSED(harness, reef_recipe_harness_harness_error_t, {ENTRY, "the tree has no entry '", "'"}, {TEXT, "no task '", "'"},
        {TEXT, "refused: ", ""}, OVER_BUDGET, CANCELLED, PLAIN)
REFUSED(verify, reef_recipe_verify_verify_error_t, {TEXT, "no verifier '", "'"}, PLAIN, OVER_BUDGET, PLAIN)
REFUSED(tokens, reef_recipe_tokens_tokens_error_t, PLAIN, OVER_BUDGET, PLAIN)
REFUSED(state, reef_recipe_state_state_error_t, PLAIN, OVER_BUDGET, PLAIN)

// ---- Configuration

bool reef_key_number(const reef_key *key, double *value, reef_failure *failure) {
  char text[TEXT_BYTES_MAX];
  reef_string name = borrowed(key->name), set;
  if (reef_recipe_config_get(&name, &set)) snprintf(text, sizeof text, "%.*s", (int)set.len, (const char *)set.ptr);
  else snprintf(text, sizeof text, "%s", key->initial);

  const char *wanted = key->whole ? "a whole number" : "a number";
  char *end;
  *value = strtod(text, &end);
  if (end == text || *end != '\0' || (key->whole && (*value < 0 || *value > UINT32_MAX || *value != (double)(uint32_t)*value)))
    return config_failed(failure, reef_textf("%s: %s is not %s", key->name, text, wanted));
  if (key->limited && !(*value >= key->low && *value <= key->high))
    return config_failed(failure, reef_textf("%s: %s is not %s from %.10g to %.10g", key->name, text, wanted, key->low, key->high));
  return true;
}

bool reef_key_count(const reef_key *key, uint32_t *value, reef_failure *failure) {
  double number;
  if (!reef_key_number(key, &number, failure)) return false;
  *value = (uint32_t)number;
  return true;
}

// ---- Manifest

void reef_weights_recipe(reef_manifest *manifest, const char *name, const char *version) {
  *manifest = (reef_manifest){.name = reef_text(name), .version = reef_text(version), .surface = REEF_RECIPE_TYPES_SURFACE_WEIGHTS};
}

void reef_asks(reef_manifest *manifest, const char *capability) {
  for (size_t i = 0; i < manifest->capabilities.len; i++) {
    const reef_string *known = &manifest->capabilities.ptr[i];
    if (known->len == strlen(capability) && memcmp(known->ptr, capability, known->len) == 0) return;
  }
  APPEND(manifest->capabilities, reef_text(capability));
}

void reef_declares(reef_manifest *manifest, const reef_key *key) {
  reef_asks(manifest, "config");
  APPEND(manifest->config, (reef_recipe_types_config_key_t){
    .name = reef_text(key->name), .kind = REEF_RECIPE_TYPES_VALUE_KIND_NUMBER, .default_value = reef_text(key->initial),
    .minimum = {key->limited, key->low}, .maximum = {key->limited, key->high}, .doc = reef_text(key->doc)});
}

// ---- Columns

#define COLUMN(NAME, TYPE) \
  bool reef_##NAME(const reef_samples *samples, TYPE *column, reef_failure *failure) { \
    reef_recipe_experience_list_sample_t items = {samples->ptr, samples->len}; \
    reef_recipe_experience_experience_error_t error; \
    return reef_recipe_experience_##NAME(&items, column, &error) || reef_experience_refused(failure, &error); \
  }

COLUMN(scores, recipe_list_f64_t)
COLUMN(lags, recipe_list_u32_t)
COLUMN(prompt_lengths, recipe_list_u32_t)
COLUMN(response_lengths, recipe_list_u32_t)
COLUMN(mean_logprobs, recipe_list_f64_t)
COLUMN(prompt_keys, recipe_list_string_t)

// ---- Decisions

void reef_wait(reef_selection *selection, reef_string reason) {
  selection->choice = (reef_recipe_types_choice_t){.tag = REEF_RECIPE_TYPES_CHOICE_WAIT, .val.wait = reason};
}

void reef_train(reef_selection *selection, const reef_sample *samples, size_t count) {
  reef_sample *copy = grown(NULL, count * sizeof *samples);
  memcpy(copy, samples, count * sizeof *samples);
  selection->choice = (reef_recipe_types_choice_t){.tag = REEF_RECIPE_TYPES_CHOICE_TRAIN, .val.train = {copy, count}};
}

void reef_retire(reef_selection *selection, reef_sample sample, const char *reason) {
  APPEND(selection->retire, (reef_recipe_types_retirement_t){sample, reef_text(reason)});
}

void reef_weights(reef_proposal *proposal, reef_candidate candidate) {
  *proposal = (reef_proposal){.tag = REEF_RECIPE_TYPES_PROPOSAL_WEIGHTS, .val.weights = candidate};
}

void reef_skip(reef_proposal *proposal, const char *reason) {
  *proposal = (reef_proposal){.tag = REEF_RECIPE_TYPES_PROPOSAL_SKIP, .val.skip = reef_text(reason)};
}

static void decide(reef_verdict *verdict, reef_recipe_types_decision_t decision, reef_string reason) {
  verdict->decision = decision;
  verdict->reason = reason;
}

void reef_promote(reef_verdict *verdict, reef_string reason) { decide(verdict, REEF_RECIPE_TYPES_DECISION_PROMOTE, reason); }
void reef_hold(reef_verdict *verdict, reef_string reason) { decide(verdict, REEF_RECIPE_TYPES_DECISION_HOLD, reason); }
void reef_reject(reef_verdict *verdict, reef_string reason) { decide(verdict, REEF_RECIPE_TYPES_DECISION_REJECT, reason); }

void reef_measure(reef_verdict *verdict, const char *name, double value) {
  APPEND(verdict->measurements, (reef_recipe_types_measurement_t){reef_text(name), value});
}

// ---- Training

reef_objective reef_policy_gradient(reef_weight weight, float *advantages, size_t samples) {
  reef_objective objective = {.tag = REEF_RECIPE_TRAINING_OBJECTIVE_POLICY_GRADIENT};
  objective.val.policy_gradient = (reef_recipe_training_policy_gradient_t){
    .weight = weight,
    .old = REEF_RECIPE_TRAINING_RATIO_SOURCE_ROLLOUT,
    .advantages = {.tag = REEF_RECIPE_TRAINING_ADVANTAGES_PER_SAMPLE, .val.per_sample = {advantages, samples}},
    .reduction = REEF_RECIPE_TRAINING_REDUCTION_SAMPLE_TOKEN_MEAN,
  };
  return objective;
}

bool reef_open(reef_trainer *trainer, reef_failure *failure) {
  reef_recipe_training_training_error_t error;
  return reef_recipe_training_open(trainer, &error) || reef_training_refused(failure, &error);
}

bool reef_train_step(reef_trainer trainer, const reef_samples *batch, reef_objective objective, reef_optimizer how,
                     reef_failure *failure) {
  reef_recipe_training_list_sample_t items = {batch->ptr, batch->len};
  reef_recipe_training_term_t term = {1, objective};
  reef_recipe_training_list_term_t terms = {&term, 1};
  reef_recipe_training_list_measurement_t measured;
  reef_recipe_training_training_error_t error;
  return reef_recipe_training_train(trainer, &items, &terms, &how, &measured, &error) || reef_training_refused(failure, &error);
}

bool reef_checkpoint(reef_trainer trainer, reef_candidate *candidate, reef_failure *failure) {
  reef_recipe_training_training_error_t error;
  return reef_recipe_training_checkpoint(trainer, candidate, &error) || reef_training_refused(failure, &error);
}

// ---- State, log, metrics

bool reef_state_get_u32(const char *key, uint32_t *value, reef_failure *failure) {
  reef_string name = borrowed(key);
  recipe_option_list_u8_t found;
  reef_recipe_state_state_error_t error;
  if (!reef_recipe_state_get(&name, &found, &error)) return reef_state_refused(failure, &error);
  *value = 0;
  if (!found.is_some) return true;
  if (found.val.len != 4) return reef_fail(failure, reef_textf("state %s: its %zu bytes are of another type", key, found.val.len));
  for (int i = 0; i < 4; i++) *value |= (uint32_t)found.val.ptr[i] << (8 * i);
  return true;
}

bool reef_state_set_u32(const char *key, uint32_t value, reef_failure *failure) {
  reef_string name = borrowed(key);
  uint8_t bytes[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16), (uint8_t)(value >> 24)};
  recipe_list_u8_t list = {bytes, sizeof bytes};
  reef_recipe_state_state_error_t error;
  return reef_recipe_state_set(&name, &list, &error) || reef_state_refused(failure, &error);
}

static void log_line(reef_recipe_log_level_t level, const char *context, reef_string message) {
  reef_string where = borrowed(context);
  reef_recipe_log_log(level, &where, &message);
}

void reef_log_info(const char *context, reef_string message) { log_line(REEF_RECIPE_LOG_LEVEL_INFO, context, message); }
void reef_log_warn(const char *context, reef_string message) { log_line(REEF_RECIPE_LOG_LEVEL_WARN, context, message); }

void reef_gauge(const char *name, double value) {
  reef_string text = borrowed(name);
  reef_recipe_metrics_gauge(&text, value);
}

// ---- The exports

// What a recipe does not define is not called: build.sh leaves its interface out of the component.
#pragma weak reef_evaluate
#pragma weak reef_migrate
#pragma weak reef_ingest
#pragma weak reef_transform_request

void exports_reef_recipe_strategy_describe(reef_manifest *ret) { reef_describe(ret); }

bool exports_reef_recipe_strategy_select_samples(reef_context *ctx, reef_samples *pool, reef_selection *ret, reef_failure *err) {
  *ret = (reef_selection){0};
  return reef_select(ctx, pool, ret, err);
}

bool exports_reef_recipe_strategy_propose_update(reef_context *ctx, reef_samples *batch, reef_proposal *ret, reef_failure *err) {
  *ret = (reef_proposal){0};
  return reef_propose(ctx, batch, ret, err);
}

bool exports_reef_recipe_strategy_evaluate(reef_context *ctx, reef_candidate subject, reef_verdict *ret, reef_failure *err) {
  *ret = (reef_verdict){0};
  if (reef_evaluate) return reef_evaluate(ctx, subject, ret, err);
  reef_promote(ret, reef_text("the recipe leaves the decision to the operator's gate"));
  return true;
}

bool exports_reef_recipe_migration_migrate(reef_string *from_version, exports_reef_recipe_migration_list_state_entry_t *entries,
                                           exports_reef_recipe_migration_list_state_entry_t *ret, reef_failure *err) {
  *ret = (exports_reef_recipe_migration_list_state_entry_t){0};
  return reef_migrate(from_version, entries, ret, err);
}

bool exports_reef_recipe_live_ingest(reef_context *ctx, exports_reef_recipe_live_list_exchange_t *exchanges,
                                     exports_reef_recipe_live_list_judgement_t *ret, reef_failure *err) {
  *ret = (exports_reef_recipe_live_list_judgement_t){0};
  return reef_ingest(ctx, exchanges, ret, err);
}

bool exports_reef_recipe_requests_transform_request(exports_reef_recipe_requests_request_t *request,
                                                    exports_reef_recipe_requests_list_message_t *ret) {
  *ret = (exports_reef_recipe_requests_list_message_t){0};
  return reef_transform_request(request, ret);
}
