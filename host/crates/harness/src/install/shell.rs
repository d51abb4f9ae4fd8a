//! Text into POSIX shell: words and documents that come out of a shell byte for byte as they went in.

use serde_json::{Map, Value};

use crate::adapter::{PROMPT_NAME, Piece, Template};

/// Start of the line that ends a document.
const END: &str = "REEF_END";

/// A word that the shell takes literally.
pub fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A word made of a template: bound values literally, what is known on the client by the shell's variables.
pub fn filled(template: &Template, values: &Map<String, Value>) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Literal(text) => word(text),
        Piece::Name(name) => match name.as_str() {
            "home" => "\"$reef_home\"".to_owned(),
            "token" => "\"$REEF_TOKEN\"".to_owned(),
            "session" => "\"$REEF_SESSION\"".to_owned(),
            PROMPT_NAME => "\"$1\"".to_owned(),
            bound => word(&match values.get(bound) {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => String::new(),
            }),
        },
    };
    let all: String = template.pieces().iter().map(piece).collect();
    if all.is_empty() { word("") } else { all }
}

/// `command <<'END'` with the text as the document. A text without a line end at its end gets one; `needs_cut` says so.
pub fn document(command: &str, text: &str) -> String {
    let mut end = END.to_owned();
    while text.lines().any(|line| line == end) {
        end.push('_');
    }
    let last = if needs_cut(text) { "\n" } else { "" };
    format!("{command} <<'{end}'\n{text}{last}{end}\n")
}

/// Does a document end with a line end that the text does not have?
pub fn needs_cut(text: &str) -> bool {
    !text.is_empty() && !text.ends_with('\n')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const SHELLS: [&str; 2] = ["dash", "bash"];

    fn output(shell: &str, script: &str) -> Vec<u8> {
        let done =
            Command::new(shell).args(["-c", script]).env("LC_ALL", "C").output().expect("Debian has both shells");
        assert!(done.status.success(), "{shell}: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    }

    fn hostile() -> impl Strategy<Value = String> {
        let any_text = any::<String>().prop_map(|text| text.replace('\0', ""));
        prop_oneof![
            Just("'\"'; exit 9 #\n$(exit 9) `exit 9` \\ $REEF_TOKEN !! ~ * {a,b}\n".to_owned()),
            Just("REEF_END\nREEF_END_\n'REEF_END'".to_owned()),
            Just("\u{81}\u{88}\u{7f}\r\n\\\n".to_owned()),
            "['\"$`\\\\\n!REF_END]{0,40}",
            any_text,
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_word_comes_out_as_it_went_in(text in hostile()) {
            for shell in SHELLS {
                let script = format!("printf '%s' {}", word(&text));
                prop_assert_eq!(output(shell, &script), text.as_bytes(), "{}", shell);
            }
        }

        #[test]
        fn a_document_comes_out_as_it_went_in(text in hostile()) {
            let expected = if needs_cut(&text) { format!("{text}\n") } else { text.clone() };
            for shell in SHELLS {
                prop_assert_eq!(output(shell, &document("cat", &text)), expected.as_bytes(), "{}", shell);
            }
        }

        #[test]
        fn a_template_takes_bound_values_literally_and_client_values_from_the_shell(value in hostile()) {
            let template = Template::parse("a{{model}}b{{home}}c{{token}}'").expect("a template");
            let values = json!({ "model": value }).as_object().cloned().expect("an object");
            for shell in SHELLS {
                let script = format!("reef_home='/h $x'; REEF_TOKEN='*'; printf '%s' {}", filled(&template, &values));
                prop_assert_eq!(output(shell, &script), format!("a{value}b/h $xc*'").into_bytes(), "{}", shell);
            }
        }
    }
}
