//! `reef:recipe@0.2.0`. Translates its types and hands everything on.

mod answers;
mod experience;
mod harness;
mod host;
mod training;

use std::collections::BTreeSet;
use std::sync::Arc;

use wasmtime::Store;
use wasmtime::component::{Component, HasSelf, InstancePre, Linker};

use super::{Broken, Export, LinkError, Linked, Returned, Running};
use crate::Capability;
use crate::call_state::CallState;
use crate::hooks::Exports;
use bindings::exports::reef::recipe::{live, migration, requests, strategy};
use bindings::reef::recipe;

/// Everything that is generated from the WIT of recipes, and nothing else. What the host runs off the guest's
/// threads is async; the rest answers at once.
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../../wit/recipe/0.2.0",
        inline: "package reef:host@0.2.0;
            world any-recipe {
                include reef:recipe/recipe@0.2.0;
                include reef:recipe/with-migration@0.2.0;
                include reef:recipe/with-live@0.2.0;
                include reef:recipe/with-requests@0.2.0;
            }",
        world: "reef:host/any-recipe",
        imports: {
            "reef:recipe/training": async,
            "reef:recipe/models": async,
            "reef:recipe/harness": async,
            "reef:recipe/verify": async,
            "reef:recipe/tokens": async,
            "reef:recipe/experience.messages": async,
            "reef:recipe/experience.tags": async,
            "reef:recipe/experience.session": async,
            "reef:recipe/experience.response-text": async,
        },
        exports: { default: async },
    });
}

/// Everything that is generated from the WIT of verifiers.
mod verifier {
    wasmtime::component::bindgen!({
        path: "../../../wit/recipe/0.2.0",
        world: "verifier",
        exports: { default: async },
    });
}

const MIGRATION: &str = "reef:recipe/migration@0.2.0";
const LIVE: &str = "reef:recipe/live@0.2.0";
const REQUESTS: &str = "reef:recipe/requests@0.2.0";

struct Recipe {
    pre: InstancePre<CallState>,
    strategy: strategy::GuestIndices,
    migration: Option<migration::GuestIndices>,
    live: Option<live::GuestIndices>,
    requests: Option<requests::GuestIndices>,
}

struct Verifier(verifier::VerifierPre<CallState>);

pub(super) fn link(
    mut linker: Linker<CallState>,
    component: &Component,
    capabilities: &BTreeSet<Capability>,
) -> Result<Arc<dyn Linked>, LinkError> {
    type Own = HasSelf<CallState>;
    for capability in capabilities {
        let linked = match capability {
            Capability::Experience => recipe::experience::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Training => recipe::training::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Models => recipe::models::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Verify => recipe::verify::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Tokens => recipe::tokens::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::State => recipe::state::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Config => recipe::config::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Log => recipe::log::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Metrics => recipe::metrics::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Harness => recipe::harness::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Requests => Ok(()),
        };
        linked.map_err(LinkError::Invalid)?;
    }
    let has = |name: &str| component.get_export_index(None, name).is_some();
    let pre = linker.instantiate_pre(component).map_err(LinkError::Invalid)?;
    // An optional export is there or not; one that is there must have the right type.
    let recipe = Recipe {
        strategy: strategy::GuestIndices::new(&pre).map_err(LinkError::Export)?,
        migration: has(MIGRATION).then(|| migration::GuestIndices::new(&pre)).transpose().map_err(LinkError::Export)?,
        live: has(LIVE).then(|| live::GuestIndices::new(&pre)).transpose().map_err(LinkError::Export)?,
        requests: has(REQUESTS).then(|| requests::GuestIndices::new(&pre)).transpose().map_err(LinkError::Export)?,
        pre,
    };
    Ok(Arc::new(recipe))
}

pub(super) fn link_verifier(linker: &Linker<CallState>, component: &Component) -> Result<Arc<dyn Linked>, LinkError> {
    let pre = linker.instantiate_pre(component).map_err(LinkError::Invalid)?;
    Ok(Arc::new(Verifier(verifier::VerifierPre::new(pre).map_err(LinkError::Export)?)))
}

impl Linked for Recipe {
    fn exports(&self) -> Exports {
        Exports { migration: self.migration.is_some(), live: self.live.is_some(), requests: self.requests.is_some() }
    }

    fn call<'a>(&'a self, store: &'a mut Store<CallState>, export: Export) -> Running<'a> {
        Box::pin(async move {
            let instance = self.pre.instantiate_async(&mut *store).await.map_err(Broken::Instantiation)?;
            let strategy = self.strategy.load(&mut *store, &instance).map_err(Broken::Instantiation)?;
            let context = answers::context(&store.data().context);
            let batch = store.data().batch.clone();
            let returned = match export {
                Export::Describe => strategy.call_describe(store).await.map(answers::manifest),
                Export::SelectSamples => {
                    strategy.call_select_samples(store, &context, &batch).await.map(answers::selection)
                }
                Export::ProposeUpdate => {
                    strategy.call_propose_update(store, &context, &batch).await.map(answers::proposal)
                }
                Export::Evaluate(candidate) => {
                    strategy.call_evaluate(store, &context, candidate).await.map(answers::verdict)
                }
                Export::Migrate { from_version, entries } => {
                    let indices = self.migration.as_ref().ok_or(Broken::Missing)?;
                    let migration = indices.load(&mut *store, &instance).map_err(Broken::Instantiation)?;
                    let entries: Vec<_> = entries.into_iter().map(answers::entry).collect();
                    migration.call_migrate(store, &from_version, &entries).await.map(answers::migrated)
                }
                Export::Ingest(exchanges) => {
                    let indices = self.live.as_ref().ok_or(Broken::Missing)?;
                    let live = indices.load(&mut *store, &instance).map_err(Broken::Instantiation)?;
                    let exchanges: Vec<_> = exchanges.into_iter().map(answers::exchange).collect();
                    live.call_ingest(store, &context, &exchanges).await.map(answers::judgements)
                }
                Export::TransformRequest(request) => {
                    let indices = self.requests.as_ref().ok_or(Broken::Missing)?;
                    let requests = indices.load(&mut *store, &instance).map_err(Broken::Instantiation)?;
                    let request = answers::request(request);
                    requests.call_transform_request(store, &request).await.map(answers::transformed)
                }
                Export::Check { .. } => return Err(Broken::Missing),
            };
            returned.map_err(Broken::Guest)
        })
    }
}

impl Linked for Verifier {
    fn exports(&self) -> Exports {
        Exports::default()
    }

    fn call<'a>(&'a self, store: &'a mut Store<CallState>, export: Export) -> Running<'a> {
        Box::pin(async move {
            let Export::Check { task, answer } = export else { return Err(Broken::Missing) };
            let verifier = self.0.instantiate_async(&mut *store).await.map_err(Broken::Instantiation)?;
            let verification = verifier.reef_recipe_verification();
            let checked = verification.call_check(store, &task, &answer).await.map_err(Broken::Guest)?;
            Ok(Returned::Checked(checked.map(answers::check)))
        })
    }
}
