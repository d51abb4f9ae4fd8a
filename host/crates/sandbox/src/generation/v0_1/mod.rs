//! `reef:recipe@0.1.0`: frozen, and loadable for ever. Translates its types and hands everything on.

mod answers;
mod host;

use std::collections::BTreeSet;
use std::sync::Arc;

use wasmtime::Store;
use wasmtime::component::{Component, HasSelf, Linker};

use super::{Broken, Export, LinkError, Linked, Running};
use crate::Capability;
use crate::call_state::CallState;
use crate::hooks::Exports;
use bindings::WeightRecipePre;
use bindings::reef::recipe;

/// Everything that is generated from the WIT, and nothing else. Training and model calls are async, because the
/// host runs them off the guest's threads; the rest answers at once.
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../../wit/recipe/0.1.0",
        world: "weight-recipe",
        imports: {
            "reef:recipe/training": async,
            "reef:recipe/models": async,
        },
        exports: { default: async },
    });
}

/// What a manifest may ask for.
pub(super) const CAPABILITIES: [Capability; 7] = [
    Capability::Experience,
    Capability::Training,
    Capability::Models,
    Capability::State,
    Capability::Config,
    Capability::Log,
    Capability::Metrics,
];

struct Recipe(WeightRecipePre<CallState>);

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
            Capability::State => recipe::state::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Config => recipe::config::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Log => recipe::log::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Metrics => recipe::metrics::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Harness | Capability::Verify | Capability::Tokens | Capability::Requests => Ok(()),
        };
        linked.map_err(LinkError::Invalid)?;
    }
    let pre = linker.instantiate_pre(component).map_err(LinkError::Invalid)?;
    Ok(Arc::new(Recipe(WeightRecipePre::new(pre).map_err(LinkError::Export)?)))
}

impl Linked for Recipe {
    fn exports(&self) -> Exports {
        Exports::default()
    }

    fn call<'a>(&'a self, store: &'a mut Store<CallState>, export: Export) -> Running<'a> {
        Box::pin(async move {
            let recipe = self.0.instantiate_async(&mut *store).await.map_err(Broken::Instantiation)?;
            let strategy = recipe.reef_recipe_strategy();
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
                Export::Migrate { .. } | Export::Ingest(_) | Export::TransformRequest(_) | Export::Check { .. } => {
                    return Err(Broken::Missing);
                }
            };
            returned.map_err(Broken::Guest)
        })
    }
}
