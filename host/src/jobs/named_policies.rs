//! The policies that recipes name as teacher or reference: `base`, `served`, and bindings of the embedded engine.
//! A step loads them before its recipe is called, and its trainers take them when they are opened. A binding of a
//! model that runs elsewhere is refused by name: its log-probs of a whole vocabulary are not to be had.

use std::collections::BTreeMap;
use std::sync::Arc;

use reef_core::ReleaseId;
use reef_engine::train;
use reef_sandbox::TrainingError;

use super::trainer_thread::Files;
use crate::provider::config::{BindingSection, EMBEDDED};

/// The policies behind `policy.named`, beside `base` and `served`, which every step has.
#[derive(Debug, Default)]
pub struct NamedPolicies {
    /// Files of the releases that bindings of the embedded engine name; none for its base model.
    pub releases: Vec<(String, Files)>,
    /// Bindings of models that run elsewhere.
    pub remote: Vec<String>,
}

/// Loads what the bindings of the configuration name; `files` reads a release.
///
/// # Errors
/// Those of `files`.
pub async fn load<E, F: Future<Output = Result<Files, E>>>(
    bindings: &BTreeMap<String, BindingSection>,
    files: impl Fn(ReleaseId) -> F,
) -> Result<Arc<NamedPolicies>, E> {
    let mut named = NamedPolicies::default();
    for (name, binding) in bindings {
        match (binding.provider == EMBEDDED, ReleaseId::parse(&binding.model)) {
            (true, Ok(release)) => named.releases.push((name.clone(), files(release).await?)),
            // The configuration allows nothing else: the base model.
            (true, Err(_)) => named.releases.push((name.clone(), Files::new())),
            (false, _) => named.remote.push(name.clone()),
        }
    }
    Ok(Arc::new(named))
}

/// The bindings of the embedded engine as a step records them: what each names.
pub fn recorded(bindings: &BTreeMap<String, BindingSection>) -> BTreeMap<String, String> {
    let own = bindings.iter().filter(|(_, binding)| binding.provider == EMBEDDED);
    own.map(|(name, binding)| (name.clone(), binding.model.clone())).collect()
}

/// The bindings that a step recorded.
pub fn bindings(recorded: &BTreeMap<String, String>) -> BTreeMap<String, BindingSection> {
    let own = |model: &String| BindingSection { provider: EMBEDDED.to_owned(), model: model.clone() };
    recorded.iter().map(|(name, model)| (name.clone(), own(model))).collect()
}

impl NamedPolicies {
    /// The policy of this name. Trainers have the releases as their added policies, in the same order.
    ///
    /// # Errors
    /// `Unsupported` for a model that runs elsewhere, `Invalid` for a name without a model.
    pub fn find(&self, name: &str) -> Result<train::Policy, TrainingError> {
        match name {
            "base" => return Ok(train::Policy::Base),
            // The trainer starts from the head release.
            "served" => return Ok(train::Policy::Start),
            _ => {}
        }
        if let Some(index) = self.releases.iter().position(|(known, _)| known == name) {
            return Ok(train::Policy::Added(index));
        }
        let remedy = "use base, served, or a binding of the provider 'embedded'";
        if self.remote.iter().any(|known| known == name) {
            let told =
                format!("policy: the binding '{name}' is a model that runs elsewhere and tells no log-probs of a");
            return Err(TrainingError::Unsupported(format!("{told} whole vocabulary; {remedy}")));
        }
        Err(TrainingError::Invalid(format!("policy: there is no model binding '{name}'; {remedy}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_lead_to_policies_and_what_runs_elsewhere_is_refused_with_a_remedy() {
        let release = "a".repeat(40);
        let binding =
            |provider: &str, model: &str| BindingSection { provider: provider.to_owned(), model: model.to_owned() };
        let bindings = BTreeMap::from([
            ("first".to_owned(), binding(EMBEDDED, "base")),
            ("judge".to_owned(), binding("openai", "gpt")),
            ("teacher".to_owned(), binding(EMBEDDED, &release)),
        ]);
        let own = super::bindings(&recorded(&bindings));
        assert_eq!(
            own.into_iter().collect::<Vec<_>>(),
            [("first", "base"), ("teacher", &release)].map(|(name, model)| (name.to_owned(), binding(EMBEDDED, model)))
        );
        let read = |id: ReleaseId| async move { Ok::<_, String>(vec![(id.to_string(), vec![1])]) };
        let named = load(&bindings, read).await.expect("loaded");
        assert_eq!(named.releases[1].1, [(release, vec![1])]);
        for (name, policy) in [
            ("base", train::Policy::Base),
            ("served", train::Policy::Start),
            ("first", train::Policy::Added(0)),
            ("teacher", train::Policy::Added(1)),
        ] {
            assert_eq!(named.find(name), Ok(policy));
        }
        assert!(matches!(named.find("judge"), Err(TrainingError::Unsupported(told)) if told.contains("'judge'")));
        assert!(matches!(named.find("nobody"), Err(TrainingError::Invalid(told)) if told.contains("'embedded'")));
        let missing = load(&bindings, |_| async { Err::<Files, _>("gone") }).await;
        assert_eq!(missing.err(), Some("gone"));
    }
}
