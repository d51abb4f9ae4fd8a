//! The WIT of Reef in Rust, written by `wit-bindgen`. The rest of the SDK wraps it; recipes do not call
//! it. On a machine other than `wasm32` the imports do not exist and only the types are of use.
//! The optional exports are worlds of their own, so that a component exports only what it has.
#![expect(unexpected_cfgs, reason = "wit-bindgen guards what needs std by a feature that this crate does not have")]

wit_bindgen::generate!({
    path: "../../wit/recipe/0.2.0",
    world: "recipe",
    pub_export_macro: true,
    default_bindings_module: "reef_recipe::bindings",
    additional_derives: [PartialEq],
    std_feature,
});

/// Sample handles as they cross the boundary.
pub type Handles = alloc::vec::Vec<u32>;

/// The export `migration`.
pub mod migration {
    wit_bindgen::generate!({
        path: "../../wit/recipe/0.2.0",
        world: "with-migration",
        pub_export_macro: true,
        default_bindings_module: "reef_recipe::bindings::migration",
        additional_derives: [PartialEq],
        std_feature,
        with: { "reef:recipe/types@0.2.0": crate::bindings::reef::recipe::types },
    });
}

/// The export `live`.
pub mod live {
    wit_bindgen::generate!({
        path: "../../wit/recipe/0.2.0",
        world: "with-live",
        pub_export_macro: true,
        default_bindings_module: "reef_recipe::bindings::live",
        additional_derives: [PartialEq],
        std_feature,
        with: { "reef:recipe/types@0.2.0": crate::bindings::reef::recipe::types },
    });
}

/// The export `requests`.
pub mod requests {
    wit_bindgen::generate!({
        path: "../../wit/recipe/0.2.0",
        world: "with-requests",
        pub_export_macro: true,
        default_bindings_module: "reef_recipe::bindings::requests",
        additional_derives: [PartialEq],
        std_feature,
        with: { "reef:recipe/types@0.2.0": crate::bindings::reef::recipe::types },
    });
}

/// The export of a verifier.
pub mod verifier {
    wit_bindgen::generate!({
        path: "../../wit/recipe/0.2.0",
        world: "verifier",
        pub_export_macro: true,
        default_bindings_module: "reef_recipe::bindings::verifier",
        additional_derives: [PartialEq],
        std_feature,
        with: { "reef:recipe/verify@0.2.0": crate::bindings::reef::recipe::verify },
    });
}
