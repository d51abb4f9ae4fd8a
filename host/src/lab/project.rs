//! `reef recipe new` and `reef recipe build`: a folder with a recipe that works, and its component by one command.
//! Templates and build scripts are those of the checkout's `sdk` folder; nothing is built by a program that is not
//! already there, and what is missing is told with the command that installs it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;

use crate::error::StartError;

/// Names in the templates, in the three spellings that languages use.
const TEMPLATE_NAMES: [&str; 3] = ["my-recipe", "my_recipe", "MyRecipe"];
/// The Rust template's way to its SDK.
const TEMPLATE_SDK: &str = "path = \"..\"";
/// Where the `sdk` folder is, unless it is beside the source that this program was built from.
const SDK_VARIABLE: &str = "REEF_SDK";
/// Names that do not build: words of the language, crates that a recipe is built with, and what the template uses.
const RUST_RESERVED: &str = "abstract alloc as async await become box break const continue core crate do dyn else enum \
    extern false final fn for gen if impl in let libm loop macro match mod move mut override priv proc-macro pub \
    reef-recipe ref return self static std struct super test trait true try type typeof unsafe unsized use virtual \
    where while wit-bindgen yield batch capability context key manifest optimizer policy-gradient pool proposal recipe \
    result selection trainer vec weight";
/// The same, with modules of the standard library and of the build that a file of the name would hide.
const PYTHON_RESERVED: &str = "and as assert async await break class continue def del elif else except finally for \
    from global if import in is lambda nonlocal not or pass raise return try while with yield abc array ast asyncio \
    base64 bisect builtins cmath code codecs collections contextlib copy copyreg dataclasses datetime decimal dis \
    encodings enum errno fractions functools gc hashlib heapq importlib inspect io itertools json keyword linecache \
    locale logging marshal math numbers opcode operator os pathlib pickle platform posix posixpath queue random re \
    reprlib select selectors signal site socket ssl stat statistics string struct subprocess sys tempfile test \
    textwrap threading time token tokenize traceback types typing unicodedata uuid warnings weakref zipfile zlib \
    componentize-py-async-support componentize-py-runtime componentize-py-types poll-loop reef-app reef-recipe \
    wit-world optimizer policy-gradient trainer weight";
/// Bytes of a recipe's name.
const NAME_BYTES_MAX: usize = 64;
/// Files and folders of a template.
const TEMPLATE_FILES_MAX: usize = 64;

/// A language with an SDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Rust, with cargo.
    Rust,
    /// Python, with componentize-py.
    Python,
    /// TypeScript or JavaScript, with QuickJS.
    Js,
    /// C, with zig cc.
    C,
}

impl Language {
    const ALL: [Self; 4] = [Self::Rust, Self::Python, Self::Js, Self::C];

    fn folder(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
            Self::Js => "js",
            Self::C => "c",
        }
    }

    /// Names that do not build in the language.
    fn reserved(self) -> &'static str {
        match self {
            Self::Rust => RUST_RESERVED,
            Self::Python => PYTHON_RESERVED,
            Self::Js | Self::C => "",
        }
    }

    /// Is this file a source in the language?
    fn writes(self, file: &Path) -> bool {
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match self {
            Self::Rust => file.file_name().is_some_and(|name| name == "Cargo.toml"),
            Self::Python => ending == "py",
            Self::Js => matches!(ending, "ts" | "js" | "mjs"),
            Self::C => ending == "c",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.folder())
    }
}

fn config(told: String) -> StartError {
    StartError::Config(told)
}

/// The `sdk` folder of the checkout.
fn sdk() -> Result<PathBuf, StartError> {
    let folder = match std::env::var_os(SDK_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk"),
    };
    folder.canonicalize().map_err(|error| {
        config(format!(
            "the folder with the SDKs, {}, is not there: {error}; set {SDK_VARIABLE} to the folder sdk of a checkout",
            folder.display()
        ))
    })
}

/// Makes a folder with a recipe of this name that builds as it is; the file to edit first.
pub fn create(name: &str, language: Language, folder: &Path) -> Result<PathBuf, StartError> {
    check_name(name, language)?;
    let shown = folder.display();
    if folder.exists() {
        return Err(config(format!("{shown} is there already; choose another folder with --folder")));
    }
    let sdk = sdk()?;
    let template = sdk.join(language.folder()).join("template");
    let names = spellings(name);
    let mut made = Vec::new();
    copy((&template, folder), &|text| renamed(text, &names, &sdk.join("rust")), &mut made)
        .map_err(|error| config(format!("{shown} cannot be written: {error}")))?;
    let source = made.into_iter().find(|file| language.writes(file) || file.ends_with("src/lib.rs"));
    source.ok_or_else(|| config(format!("the template {} has no source", template.display())))
}

fn check_name(name: &str, language: Language) -> Result<(), StartError> {
    let valid = name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && !name.contains("--")
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if valid && language.reserved().split(' ').any(|reserved| reserved == name) {
        return Err(config(format!(
            "'{name}' means something else in {language}, so a recipe of that name does not build; choose another, e.g. 'my-{name}'"
        )));
    }
    if valid {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_BYTES_MAX).filter(|c| !c.is_control()).collect();
    Err(config(format!(
        "'{shown}' is no name of a recipe; use lower-case letters, digits and single '-', a letter first"
    )))
}

/// `my-recipe`, `my_recipe` and `MyRecipe` of a name.
fn spellings(name: &str) -> [String; 3] {
    let capital = |word: &str| {
        let (first, rest) = word.split_at(1.min(word.len()));
        first.to_uppercase() + rest
    };
    [name.to_owned(), name.replace('-', "_"), name.split('-').map(capital).collect()]
}

fn renamed(text: &str, names: &[String; 3], sdk: &Path) -> String {
    let with_sdk = text.replace(TEMPLATE_SDK, &format!("path = {:?}", sdk.display().to_string()));
    TEMPLATE_NAMES.iter().zip(names).fold(with_sdk, |text, (old, new)| text.replace(old, new))
}

/// Copies a template, text by text, renaming files as well.
fn copy((from, to): (&Path, &Path), change: &dyn Fn(&str) -> String, made: &mut Vec<PathBuf>) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)?.take(TEMPLATE_FILES_MAX) {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Left behind by a build inside the template.
        if matches!(name.as_str(), "target" | "__pycache__" | "node_modules" | "Cargo.lock") || name.ends_with(".wasm")
        {
            continue;
        }
        let target = to.join(change(&name));
        if entry.file_type()?.is_dir() {
            copy((&entry.path(), &target), change, made)?;
        } else {
            std::fs::write(&target, change(&std::fs::read_to_string(entry.path())?))?;
            made.push(target);
        }
    }
    Ok(())
}

/// Builds the recipe in a folder, or of a source file; the component's path.
pub fn build(source: &Path, out: Option<PathBuf>) -> Result<PathBuf, StartError> {
    let (language, file) = find_source(source)?;
    let out = out.unwrap_or_else(|| default_out(&file));
    let shown = file.display();
    let status = match language {
        Language::Rust => return build_rust(&file, &out),
        other => {
            let script = sdk()?.join(other.folder()).join("build.sh");
            let mut command = Command::new("bash");
            command.arg(script).arg(&file).arg(&out).stdin(Stdio::null()).status()
        }
    };
    match status {
        Ok(status) if status.success() => Ok(out),
        Ok(_) => Err(StartError::Recipe(format!(
            "{shown} does not build, see above; tools that are missing are installed by scripts/setup-languages.sh {language}"
        ))),
        Err(error) => Err(StartError::Recipe(format!("bash cannot be started to build {shown}: {error}"))),
    }
}

/// The one source that a path means.
fn find_source(path: &Path) -> Result<(Language, PathBuf), StartError> {
    let shown = path.display();
    let language = |file: &Path| Language::ALL.into_iter().find(|language| language.writes(file));
    if path.is_file() {
        let known = language(path).map(|language| (language, path.to_path_buf()));
        return known.ok_or_else(|| config(format!("{shown} is none of Cargo.toml, .py, .ts, .js, .c")));
    }
    let entries = std::fs::read_dir(path).map_err(|error| config(format!("{shown} cannot be read: {error}")))?;
    let mut found: Vec<_> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|file| file.is_file())
        .filter_map(|file| language(&file).map(|language| (language, file)))
        .collect();
    found.sort_by(|a, b| a.1.cmp(&b.1));
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(config(format!("{shown} has no recipe; make one with: reef recipe new NAME --lang rust"))),
        (Some(_), false) => Err(config(format!("{shown} has more than one source; name the file"))),
    }
}

fn default_out(file: &Path) -> PathBuf {
    if file.ends_with("Cargo.toml") {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = folder.canonicalize().ok().and_then(|folder| folder.file_name().map(|name| name.to_os_string()));
        return folder.join(name.unwrap_or_else(|| "recipe".into())).with_extension("wasm");
    }
    file.with_extension("wasm")
}

/// Cargo says where it put the component, so nothing here guesses folders.
fn build_rust(manifest: &Path, out: &Path) -> Result<PathBuf, StartError> {
    let failed = |told: String| StartError::Recipe(format!("{} does not build: {told}", manifest.display()));
    let output = Command::new("cargo")
        .args([
            "build",
            "--target",
            "wasm32-wasip2",
            "--profile",
            "recipe",
            "--message-format",
            "json-render-diagnostics",
        ])
        .arg("--manifest-path")
        .arg(manifest)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("cargo cannot be started: {error}; install Rust with rustup")))?;
    if !output.status.success() {
        return Err(failed("see above".to_owned()));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let component = messages.lines().rev().find_map(component_of).ok_or_else(|| {
        failed("it makes no component; Cargo.toml needs [lib] crate-type = [\"cdylib\", \"rlib\"]".to_owned())
    })?;
    std::fs::copy(&component, out).map_err(|error| failed(format!("{} cannot be written: {error}", out.display())))?;
    Ok(out.to_path_buf())
}

/// The component that a message of cargo tells of.
fn component_of(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let files = message.get("filenames")?.as_array()?;
    let file = files.iter().filter_map(serde_json::Value::as_str).find(|file| file.ends_with(".wasm"))?;
    Some(PathBuf::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_have_three_spellings() {
        assert_eq!(spellings("best-of-4"), ["best-of-4", "best_of_4", "BestOf4"]);
        for bad in ["", "Best", "../x", "a--b", "a-", "1a", "a b", "ä"] {
            assert!(check_name(bad, Language::C).is_err(), "{bad}");
        }
        assert!(check_name("best-of-4", Language::Rust).is_ok());
    }

    #[test]
    fn names_that_would_not_build_are_refused_before_anything_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        for (language, names) in [
            (Language::Rust, ["fn", "test", "core", "reef-recipe", "recipe", "weight"]),
            (Language::Python, ["import", "json", "sys", "types", "reef-recipe", "zlib"]),
        ] {
            for name in names {
                let target = folder.path().join(name);
                let told = create(name, language, &target).expect_err(name).to_string();
                assert!(told.contains(&format!("'{name}'")) && told.contains("choose another"), "{told}");
                assert!(!target.exists(), "{name}");
            }
        }
        assert!(check_name("json", Language::Js).is_ok() && check_name("json", Language::Rust).is_ok());
    }

    #[test]
    fn every_language_s_template_becomes_a_recipe_of_the_name() {
        let folder = tempfile::tempdir().expect("a folder");
        for language in Language::ALL {
            let target = folder.path().join(language.folder());
            let source = create("good-one", language, &target).expect("made");
            let text = std::fs::read_to_string(&source).expect("readable");
            assert!(text.contains("good-one") && !text.contains("my-recipe"), "{language}: {text}");
            assert_eq!(find_source(&target).expect("found").0, language);
            let again = create("good-one", language, &target).expect_err("there").to_string();
            assert!(again.contains("is there already"), "{again}");
        }
    }

    #[test]
    fn a_folder_without_one_source_is_told_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = build(folder.path(), None).expect_err("empty").to_string();
        assert!(told.contains("reef recipe new"), "{told}");
        std::fs::write(folder.path().join("a.py"), "").expect("written");
        std::fs::write(folder.path().join("b.c"), "").expect("written");
        let told = build(folder.path(), None).expect_err("two").to_string();
        assert!(told.contains("more than one source"), "{told}");
    }
}
