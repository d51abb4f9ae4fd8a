//! Random manifests. A guest of each generation is made once; what `describe` answers is patched into its data.

use reef_sandbox::{Grants, Sandbox};

use crate::guest::*;
use crate::mutation::EDGES;
use crate::newer::Newer;
use crate::rounds::{Random, rounds};
use crate::rules;
use crate::wit_value::{V, bare, f, l, n, some, t};

/// Bytes of a manifest with everything that it points at.
const IMAGE_BYTES: usize = 1_024;

/// What the image of an answer takes the place of: bytes that no component has.
pub fn marker() -> Vec<u8> {
    (0..IMAGE_BYTES).map(|at| (at * 37 + 11) as u8).collect()
}

/// The component with the image, filled up with zeros, in place of the marker.
pub fn patched(template: &[u8], image: &[u8]) -> Vec<u8> {
    let marker = marker();
    let at = template.windows(IMAGE_BYTES).position(|bytes| bytes == marker).expect("the marker");
    let mut bytes = template.to_vec();
    let image: Vec<u8> = image.iter().copied().chain(std::iter::repeat(0)).take(IMAGE_BYTES).collect();
    bytes[at..at + IMAGE_BYTES].copy_from_slice(&image);
    bytes
}

/// A guest whose `describe` answers what stands in the image at [`DATA_AT`], at the address in its first word.
pub fn template() -> Vec<u8> {
    let mut guest = Newer::good();
    let at = guest.data.put(&marker());
    let body = format!(
        "(memory.copy (i32.const {DATA_AT}) (i32.const {at}) (i32.const {IMAGE_BYTES})) (i32.load (i32.const {DATA_AT}))"
    );
    guest.doing("strategy", "describe", &body).bytes()
}

pub async fn check(sandbox: &Sandbox, template: &[u8], image: &[u8]) -> Result<(), String> {
    match sandbox.load(patched(template, image), &Grants::all()).await {
        Ok(recipe) => {
            rules::manifest(recipe.manifest())?;
            rules::outcome(&recipe.select_samples(call()).await, rules::selection)
        }
        Err(error) => rules::refusal(&error),
    }
}

const NAMES: [&str; 8] = ["probe", "a-1", "", "../evil", "UPPER", "a\u{1b}[31m", "x.y_z", "größe"];
const VERSIONS: [&str; 8] =
    ["1.0.0", "1.0", "1.0.0-rc.1+b", "", "01.0.0", "1.0.0\n", "9999999999999999999999.0.0", "1..0"];
const DEFAULTS: [&str; 16] = [
    "8",
    "-0",
    "1e308",
    "1e999",
    "true",
    "\"text\"",
    "null",
    "[[[[1]]]]",
    "{\"a\":{}}",
    "",
    " 1 ",
    "1 2",
    "\"\\ud800\"",
    "\"\u{7f}\"",
    "18446744073709551616",
    "0.1e-400",
];
const CAPABILITIES: [&str; 8] = ["log", "experience", "requests", "harness", "network", "", "LOG", "log\u{0}"];

fn bound(random: &mut Random) -> V {
    const NUMBERS: [f64; 7] = [0.0, -1.0, 9.0, 1e308, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    if random.once_in(2) { bare(0) } else { some(n(random.pick(&NUMBERS))) }
}

/// A manifest of odd but readable parts.
fn manifest(random: &mut Random) -> V {
    let key = |random: &mut Random| {
        let kind = bare(random.below(3) as u32);
        let (name, default) = (t(random.pick(&NAMES)), t(random.pick(&DEFAULTS)));
        f([name, kind, default, bound(random), bound(random), t("doc\r\n")])
    };
    let field = |random: &mut Random| {
        f([t(random.pick(&NAMES)), bare(random.below(3) as u32), n(random.below(2) as u32), t("\u{202e}doc")])
    };
    let few = |random: &mut Random, make: &dyn Fn(&mut Random) -> V| {
        let count = random.below(3);
        l((0..count).map(|_| make(random)).collect::<Vec<_>>())
    };
    let name = if random.once_in(3) { t(random.pick(&NAMES)) } else { t("probe") };
    let version = if random.once_in(3) { t(random.pick(&VERSIONS)) } else { t("1.0.0") };
    let surface = bare(if random.once_in(5) { random.below(3) as u32 } else { 0 });
    let fields = few(random, &field);
    let keys = few(random, &key);
    let capability = |random: &mut Random| t(random.pick(&CAPABILITIES));
    let capabilities = if random.once_in(2) { few(random, &capability) } else { l([]) };
    let top_k = if random.once_in(4) { random.pick(&EDGES) as u32 } else { 0 };
    f([name, version, surface, n(0), fields, keys, capabilities, n(top_k), n(random.next() as u32)])
}

/// The image of a manifest, sometimes with some of its words changed.
pub fn image(random: &mut Random) -> Vec<u8> {
    let mut guest = Newer::good();
    guest.data = Data::default();
    guest.data.put(&[0; 8]);
    let value = manifest(random);
    let at = guest.put_result("strategy", "describe", &value);
    let mut image = guest.data.bytes().to_vec();
    image[..4].copy_from_slice(&at.to_le_bytes());
    image.resize(IMAGE_BYTES.max(image.len()), 0);
    if random.once_in(2) {
        for _ in 0..=random.below(4) {
            let place = random.below(image.len() / 4) * 4;
            let word = match random.below(4) {
                0 => DATA_AT + random.below(IMAGE_BYTES) as u32,
                1 => random.pick(&EDGES) as u32,
                2 => random.below(4) as u32,
                _ => random.next() as u32,
            };
            image[place..place + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
    image
}

/// Loading recipes with random manifests → a manifest that obeys the rules, or a typed error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_manifests_obey_the_rules() {
    let (sandbox, template) = (sandbox(crate::loader::quick()), template());
    rounds("manifests", image, async |input| check(&sandbox, &template, input).await).await;
    still_works(&sandbox).await;
}
