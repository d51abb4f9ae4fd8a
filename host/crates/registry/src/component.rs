//! The names of what a component imports and exports, for the config of its artefact. Publishing calls it.
//! It reads only the outermost sections and judges nothing: the sandbox does.

use wasmparser::{Encoding, Parser, Payload};

use crate::RegistryError;
use crate::manifest::Interfaces;

/// Imports and exports of one component.
const NAMES_MAX: usize = 1024;

/// Lists the interfaces of a component; a core module or other bytes are refused.
pub(crate) fn interfaces(component: &[u8]) -> Result<Interfaces, RegistryError> {
    let refuse = |cause: String| {
        RegistryError::Config(format!(
            "the file is not a WebAssembly component ({cause}); build the recipe for wasm32-wasip2 and publish that file"
        ))
    };
    let mut found = Interfaces::default();
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(|error| refuse(error.to_string()))? {
            Payload::Version { encoding, .. } => {
                if depth == 0 && encoding != Encoding::Component {
                    return Err(refuse("it is a core module".to_owned()));
                }
                depth += 1;
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    found.imports.push(import.map_err(|error| refuse(error.to_string()))?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    found.exports.push(export.map_err(|error| refuse(error.to_string()))?.name.name.to_owned());
                }
            }
            _ => {}
        }
        if found.imports.len() + found.exports.len() > NAMES_MAX {
            return Err(refuse(format!("it has more than {NAMES_MAX} imports and exports")));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_names_are_listed_and_no_others() {
        let text = r#"(component
            (import "reef:recipe/log@0.1.0" (instance $log))
            (component $inner (import "hidden:inner/thing" (instance)))
            (export "reef:recipe/select@0.1.0" (instance $log)))"#;
        let found = interfaces(&wat::parse_str(text).expect("valid")).expect("a component");
        assert_eq!(found.imports, ["reef:recipe/log@0.1.0"]);
        assert_eq!(found.exports, ["reef:recipe/select@0.1.0"]);
    }

    #[test]
    fn only_components_have_interfaces() {
        assert_eq!(interfaces(b"\0asm\x0d\0\x01\0").expect("the empty component"), Interfaces::default());
        for (bytes, part) in
            [(&b"\0asm\x01\0\0\0"[..], "core module"), (b"<html>", "not a WebAssembly"), (b"", "not a")]
        {
            let refusal = interfaces(bytes).expect_err(part).to_string();
            assert!(refusal.contains(part) && refusal.contains("wasm32-wasip2"), "{refusal}");
        }
    }
}
