//! The WIT of Reef in Rust, written by `wit-bindgen`. The rest of the SDK wraps it; recipes do not call
//! it. On a machine other than `wasm32` the imports do not exist and only the types are of use.
#![expect(unexpected_cfgs, reason = "wit-bindgen guards what needs std by a feature that this crate does not have")]

wit_bindgen::generate!({
    path: "../../wit/recipe/0.1.0",
    world: "weight-recipe",
    pub_export_macro: true,
    default_bindings_module: "reef_recipe::bindings",
    additional_derives: [PartialEq],
    std_feature,
});

/// Sample handles as they cross the boundary.
pub type Handles = alloc::vec::Vec<u32>;
