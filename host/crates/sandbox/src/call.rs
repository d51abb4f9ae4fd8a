//! One call of a recipe: what the caller gives, what comes back, and the functions that make it.
//! Calls wait for a slot, run on the sandbox's threads in a fresh store, and end in a value or a fault.
//! The trainer and the models of a call come back with its outcome; nothing a failed call staged does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use reef_core::{AssemblyError, CallReport, Message, RecordId, Sample};
use serde_json::{Map, Value};
use tracing::Instrument;

use crate::admission::Permit;
use crate::call_state::CallState;
use crate::generation::{Export, Returned};
use crate::hooks::{self, Exchange, Judgement, RequestView};
use crate::load::Recipe;
use crate::output::{self, Proposal, Selection, Verdict};
use crate::run::{Ended, run};
use crate::state::is_host_key;
use crate::traffic::Bytes;
use crate::{Cancel, Capability, Fault, FaultKind, Harness, Models, Records, Tokens, Training, Verifiers};

/// A sample and its distance from the head.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSample {
    /// The sample.
    pub sample: Sample,
    /// Releases between the sampling release and the head.
    pub lag: u32,
}

/// The inputs of a call that are not data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Whose call it is; calls are admitted per tenant.
    pub tenant: String,
    /// The scenario that learns.
    pub scenario: String,
    /// Number of the step, from 1.
    pub step: u32,
    /// Milliseconds since the Unix epoch when the step began.
    pub now_ms: i64,
    /// Seed of the step.
    pub seed: u32,
    /// Release that serves now.
    pub head: String,
    /// Samples of a larger lag are not usable.
    pub max_staleness: u32,
}

/// Everything that one call needs.
pub struct Call {
    /// Inputs that are not data.
    pub context: Context,
    /// Samples that handles point into.
    pub samples: Arc<Vec<PoolSample>>,
    /// Indices into `samples`, each once: the handles that the guest gets, in this order.
    pub batch: Vec<u32>,
    /// The operator's configuration of the recipe.
    pub config: Map<String, Value>,
    /// The recipe's state in this scenario.
    pub state: BTreeMap<String, Vec<u8>>,
    /// The trainer; required by `propose-update` of a recipe that uses `training`.
    pub training: Option<Box<dyn Training>>,
    /// The models; a call without them answers model calls with an error.
    pub models: Option<Box<dyn Models>>,
    /// The harness; a call without it answers with an error.
    pub harness: Option<Box<dyn Harness>>,
    /// The tokenizer; a call without it answers with an error.
    pub tokens: Option<Arc<dyn Tokens>>,
    /// The records behind the samples; a call without them answers with an error.
    pub records: Option<Arc<dyn Records>>,
    /// Verifiers by name.
    pub verifiers: Verifiers,
    /// Reports that are no samples, and why; shown to `select-samples` only.
    pub unusable: Vec<(RecordId, AssemblyError)>,
    /// Ends the call from outside. Give the trainer and the models a clone, so that they end soon as well.
    pub cancel: Cancel,
}

impl Call {
    /// A call with nothing to work on.
    pub fn new(context: Context) -> Self {
        Self {
            context,
            samples: Arc::default(),
            batch: Vec::new(),
            config: Map::new(),
            state: BTreeMap::new(),
            training: None,
            models: None,
            harness: None,
            tokens: None,
            records: None,
            verifiers: Verifiers::default(),
            unusable: Vec::new(),
            cancel: Cancel::new(),
        }
    }
}

impl Bytes for Context {
    fn bytes(&self) -> u64 {
        const NUMBERS_BYTES: u64 = 20;
        (&self.tenant, &self.scenario, &self.head).bytes().saturating_add(NUMBERS_BYTES)
    }
}

/// What is left of a call.
pub struct Outcome<T> {
    /// The value, or why there is none.
    pub result: Result<T, Fault>,
    /// What the call used.
    pub report: CallReport,
    /// Staged writes in key order, `None` deletes; empty after a fault.
    pub state: Vec<(String, Option<Vec<u8>>)>,
    /// Gauges; kept after a fault, because they help to explain it.
    pub metrics: BTreeMap<String, f64>,
    /// The trainer, unless a cancelled call left it behind in a host call that did not end.
    pub training: Option<Box<dyn Training>>,
    /// The models, likewise.
    pub models: Option<Box<dyn Models>>,
    /// The harness, likewise.
    pub harness: Option<Box<dyn Harness>>,
}

impl Recipe {
    /// What to do with the pool: `call.batch` lists unconsumed samples, oldest first.
    pub async fn select_samples(&self, call: Call) -> Outcome<Selection> {
        let ended = self.enter(Export::SelectSamples, call).await;
        self.conclude(ended, |returned, state| match returned {
            Returned::Selection(Ok(raw)) => output::selection(raw, state),
            Returned::Selection(Err(raw)) => Err(output::failure(raw)),
            _ => Err(mixed_up()),
        })
    }

    /// One update from the samples of `call.batch`, in the order of the selection.
    pub async fn propose_update(&self, call: Call) -> Outcome<Proposal> {
        let ended = self.enter(Export::ProposeUpdate, call).await;
        self.conclude(ended, |returned, state| match returned {
            Returned::Proposal(Ok(raw)) => output::proposal(raw, state),
            Returned::Proposal(Err(raw)) => Err(output::failure(raw)),
            _ => Err(mixed_up()),
        })
    }

    /// The recipe's word on a candidate.
    pub async fn evaluate(&self, call: Call, candidate: u32) -> Outcome<Verdict> {
        let ended = self.enter(Export::Evaluate(candidate), call).await;
        self.conclude(ended, |returned, _| match returned {
            Returned::Verdict(Ok(raw)) => output::verdict(raw),
            Returned::Verdict(Err(raw)) => Err(output::failure(raw)),
            _ => Err(mixed_up()),
        })
    }

    /// The state that `from_version` of this recipe left in `call.state`, carried over: the whole new state.
    /// A recipe without `migration` is not called and ends in a fault.
    pub async fn migrate(&self, call: Call, from_version: &str) -> Outcome<BTreeMap<String, Vec<u8>>> {
        let own = call.state.iter().filter(|(key, _)| !is_host_key(key));
        let entries = own.map(|(key, value)| (key.clone(), value.clone())).collect();
        let export = Export::Migrate { from_version: from_version.to_owned(), entries };
        let ended = self.enter(export, call).await;
        self.conclude(ended, |returned, state| match returned {
            Returned::Migrated(Ok(raw)) => hooks::migrated(raw, state),
            Returned::Migrated(Err(raw)) => Err(output::failure(raw)),
            _ => Err(mixed_up()),
        })
    }

    /// Scores for exchanges that were recorded, oldest first. State that the recipe writes is in the outcome.
    /// A recipe without `live` is not called and ends in a fault.
    pub async fn ingest(&self, call: Call, exchanges: Vec<Exchange>) -> Outcome<Vec<Judgement>> {
        let handed: BTreeSet<RecordId> = exchanges.iter().map(|exchange| exchange.id.clone()).collect();
        let ended = self.enter(Export::Ingest(exchanges), call).await;
        self.conclude(ended, |returned, _| match returned {
            Returned::Judgements(Ok(raw)) => hooks::judgements(raw, &handed),
            Returned::Judgements(Err(raw)) => Err(output::failure(raw)),
            _ => Err(mixed_up()),
        })
    }

    /// The messages to answer instead of those of the request; `None` = as it is, and so after a fault.
    /// A recipe without `requests`, or without the grant, is not called and ends in a fault.
    pub async fn transform_request(&self, call: Call, request: RequestView) -> Outcome<Option<Vec<Message>>> {
        let ended = self.enter(Export::TransformRequest(request), call).await;
        self.conclude(ended, |returned, _| match returned {
            Returned::Transformed(raw) => hooks::transformed(raw),
            _ => Err(mixed_up()),
        })
    }

    async fn enter(&self, export: Export, mut call: Call) -> Result<Ended, Unanswered> {
        let checked = self.check(&export, &call);
        let tenant = call.context.tenant.clone();
        let cancel = call.cancel.clone();
        if export != Export::SelectSamples {
            call.unusable.clear();
        }
        let limits = self.shared().config().of_call(&tenant, &self.manifest().name);
        let mut state = CallState::new(call, limits, self.label().into(), Some(self.manifest_shared()));
        state.sealed = export.sealed().then_some(export.name());
        if let Err(fault) = checked {
            return Ok(Ended::refused(export.name(), state, fault));
        }
        let admitted = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Fault::new(FaultKind::Cancelled, "the call was cancelled before it ran")),
            admitted = self.shared().admission().enter(&tenant) => admitted,
        };
        match admitted {
            Ok(permit) => self.spawn(export, state, permit).await,
            Err(fault) => Ok(Ended::refused(export.name(), state, fault)),
        }
    }

    /// Runs the call on the sandbox's runtime. Dropping the returned future ends the call.
    async fn spawn(&self, export: Export, state: CallState, mut permit: Permit) -> Result<Ended, Unanswered> {
        let function = export.name();
        let span = tracing::info_span!("recipe_call", function, recipe = %state.label, step = state.context.step);
        let (shared, linked) = (Arc::clone(self.shared()), self.linked());
        let lane = permit.lane();
        let meter = Arc::clone(&state.meter);
        permit.measure(Arc::clone(&meter));
        let task = async move {
            let ended = run(&shared, linked.as_ref(), state, export).await;
            permit.charge(ended.report.fuel);
            ended
        };
        let joined = self.shared().lanes().run(lane, meter, task.instrument(span)).await;
        joined.map_err(|error| {
            let told = format!("the call's task ended without an answer: {error}");
            Unanswered { function, fault: Fault::new(FaultKind::HostBug, told) }
        })
    }

    /// Refuses calls that break a rule of the caller, before any guest code runs.
    fn check(&self, export: &Export, call: &Call) -> Result<(), Fault> {
        self.manifest().check_config(&call.config).map_err(|told| Fault::new(FaultKind::Declined, told))?;
        self.check_optional(export)?;
        if matches!(export, Export::ProposeUpdate)
            && call.training.is_none()
            && self.imports().contains(&Capability::Training)
        {
            let told = format!(
                "recipe {} uses training and propose-update was called without a trainer",
                self.manifest().name
            );
            return Err(Fault::new(FaultKind::MissingCapability, told));
        }
        check_batch(call).map_err(|told| Fault::new(FaultKind::HostBug, told))
    }
}

/// A call whose task is gone, and with it all that the call had.
struct Unanswered {
    function: &'static str,
    fault: Fault,
}

impl Recipe {
    /// Optional exports are called only where they are there and granted.
    fn check_optional(&self, export: &Export) -> Result<(), Fault> {
        let (exports, name) = (self.exports(), &self.manifest().name);
        let there = match export {
            Export::Migrate { .. } => exports.migration,
            Export::Ingest(_) => exports.live,
            Export::TransformRequest(_) => exports.requests,
            _ => true,
        };
        if there {
            return Ok(());
        }
        let told = format!("recipe {name} does not export {}, or the operator does not grant it", export.name());
        Err(Fault::new(FaultKind::MissingCapability, told))
    }
}

/// Handles point at samples, each once, and the columns of every sample have the same length.
fn check_batch(call: &Call) -> Result<(), String> {
    let mut seen = vec![false; call.samples.len()];
    for index in &call.batch {
        let (Some(seen), Some(item)) = (seen.get_mut(*index as usize), call.samples.get(*index as usize)) else {
            return Err(format!("the batch names sample {index} of {}", call.samples.len()));
        };
        if std::mem::replace(seen, true) {
            return Err(format!("the batch names sample {index} twice"));
        }
        let trajectory = &item.sample.trajectory;
        let length = trajectory.mask.len();
        if trajectory.logprobs.len() != length
            || trajectory.tokens.len() != trajectory.prompt_length.saturating_add(length)
        {
            return Err(format!("sample {index} has columns of different lengths"));
        }
    }
    Ok(())
}

fn mixed_up() -> Fault {
    Fault::new(FaultKind::HostBug, "the answer of another function came back")
}

impl Recipe {
    /// Validates the answer, tells the listener and takes the store's data apart.
    fn conclude<T>(
        &self,
        ended: Result<Ended, Unanswered>,
        validate: impl FnOnce(Returned, &CallState) -> Result<T, Fault>,
    ) -> Outcome<T> {
        let Ended { result, state, mut report } = match ended {
            Ok(ended) => ended,
            Err(unanswered) => return self.lost(unanswered),
        };
        let result = result.and_then(|returned| validate(returned, &state));
        self.shared().ended(&mut report, result.as_ref().err());
        if let Err(fault) = &result {
            tracing::warn!(function = report.function, recipe = %state.label, blame = ?fault.blame(), "recipe call failed: {fault}");
        }
        Outcome {
            state: if result.is_ok() { state.bucket.into_writes() } else { Vec::new() },
            result,
            report,
            metrics: state.gauges.values,
            training: state.training.worker,
            models: state.models.worker,
            harness: state.harness.worker,
        }
    }

    fn lost<T>(&self, Unanswered { function, fault }: Unanswered) -> Outcome<T> {
        let mut report = CallReport { function: function.to_owned(), ..CallReport::default() };
        self.shared().ended(&mut report, Some(&fault));
        tracing::warn!(function, recipe = self.label(), blame = ?fault.blame(), "recipe call failed: {fault}");
        Outcome {
            result: Err(fault),
            report,
            state: Vec::new(),
            metrics: BTreeMap::new(),
            training: None,
            models: None,
            harness: None,
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("context", &self.context).field("batch", &self.batch.len()).finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").field("result", &self.result).field("report", &self.report).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A call's state without a guest.

    use reef_core::{RecordId, ReleaseId, Trajectory};
    use serde_json::json;

    use super::*;
    use crate::{ConfigKey, Manifest, SandboxConfig, Surface, ValueKind};

    pub(crate) fn manifest() -> Manifest {
        let batch = ConfigKey {
            name: "batch".into(),
            kind: ValueKind::Number,
            default: json!(32),
            minimum: None,
            maximum: None,
            doc: String::new(),
        };
        Manifest {
            name: "probe".into(),
            version: "1.0.0".into(),
            surface: Surface::Weights,
            needs_score: false,
            report_fields: Vec::new(),
            config: vec![batch],
            capabilities: Default::default(),
            top_k: 0,
            re_evaluate_every: 0,
        }
    }

    /// Sample `index`: a response of `index + 1` tokens, every second one sampled at -0.5, score `index`.
    fn sample(index: u32) -> PoolSample {
        let response = 0..=index;
        let mask: Vec<u8> = response.clone().map(|t| u8::from(t % 2 == 0)).collect();
        let trajectory = Trajectory {
            tokens: [1, 2].into_iter().chain(response.map(|t| 10 + t)).collect(),
            prompt_length: 2,
            logprobs: mask.iter().map(|m| if *m == 1 { -0.5 } else { 0.0 }).collect(),
            mask,
            turns: Vec::new(),
            alternatives: reef_core::Alternatives::default(),
        };
        let sample = Sample {
            report: RecordId::parse(format!("report-{index}")).expect("id"),
            records: vec![RecordId::parse(format!("record-{index}")).expect("id")],
            score: Some(f64::from(index)),
            metadata: json!({ "task": format!("t{index}") }).as_object().expect("object").clone(),
            trajectory,
            temperature: 1.0,
            release: ReleaseId::parse("a".repeat(40)).expect("id"),
            release_sequence: 0,
            prompt_key: "k".into(),
            sequence: i64::from(index),
        };
        PoolSample { sample, lag: index }
    }

    /// A call with `count` samples, of which `batch` are handed out.
    pub(crate) fn state(count: u32, batch: Vec<u32>) -> CallState {
        let context = Context {
            tenant: "t".into(),
            scenario: "s".into(),
            step: 1,
            now_ms: 1_000,
            seed: 7,
            head: "a".repeat(40),
            max_staleness: 4,
        };
        let samples = Arc::new((0..count).map(sample).collect());
        let call = Call { samples, batch, ..Call::new(context) };
        CallState::new(call, Arc::new(SandboxConfig::default()), "probe@1.0.0".into(), None)
    }
}
