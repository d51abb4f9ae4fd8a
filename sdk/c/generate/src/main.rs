//! Writes the C bindings of the recipe interface: `recipe.h` and `recipe.c`, every optional export included.
//! Called by `sdk/c/generate.sh`; the invariant is that equal interface text gives equal files.
//! It compiles no C and knows no recipe.

use std::path::PathBuf;

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

/// All that a recipe may export. `build.sh` embeds a smaller world: the exports that the source defines.
const WORLD: &str = "package reef:c;
world everything {
  include reef:recipe/recipe@0.2.0;
  include reef:recipe/with-migration@0.2.0;
  include reef:recipe/with-live@0.2.0;
  include reef:recipe/with-requests@0.2.0;
}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [interface, target] = arguments.as_slice() else {
        return Err("two folders are needed: the interface (wit/recipe/0.2.0) and where the bindings go".into());
    };
    let mut resolve = Resolve::default();
    resolve.push_dir(interface)?;
    let package = resolve.push_str("world.wit", WORLD)?;
    let world = resolve.select_world(&[package], Some("everything"))?;

    // The component's type is embedded after linking, so that no object file has to be committed.
    let options =
        wit_bindgen_c::Opts { no_object_file: true, rename_world: Some("recipe".into()), ..Default::default() };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files)?;

    std::fs::create_dir_all(target)?;
    for (name, contents) in files.iter() {
        std::fs::write(target.join(name), contents)?;
    }
    Ok(())
}
