//! Everything that is generated from the WIT of `reef:recipe`, and nothing else.
//! Training and model calls are async, because the host runs them off the guest's threads; the rest answers at once.

wasmtime::component::bindgen!({
    path: "../../../wit/recipe/0.1.0",
    world: "weight-recipe",
    imports: {
        "reef:recipe/training": async,
        "reef:recipe/models": async,
    },
    exports: { default: async },
});
