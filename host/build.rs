//! Gives this package's binaries the run path of libtorch, which torch-sys leaves out, and the version of the WASM
//! runtime, which decides what a call costs in fuel.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
    println!("cargo:rerun-if-changed=../Cargo.lock");
    let lock = std::fs::read_to_string("../Cargo.lock").unwrap_or_default();
    let package = lock.split("[[package]]").find(|package| package.contains("name = \"wasmtime\"\n"));
    let version = package.and_then(|package| package.lines().find_map(|line| line.strip_prefix("version = ")));
    let version = version.map_or("unknown", |version| version.trim_matches('"'));
    println!("cargo:rustc-env=REEF_WASMTIME_VERSION={version}");
}
