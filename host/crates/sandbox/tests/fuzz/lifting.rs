//! Random answers of a guest. One guest of each generation copies what the host put into its state over its own data
//! and returns it, so that nothing has to be compiled for an input.

use reef_core::{Message, RecordId, ReleaseId};
use reef_sandbox::{
    Call, Capability, Choice, Exchange, Grants, Recipe, RequestView, Sandbox, SandboxConfig, Selection,
};

use crate::guest::*;
use crate::mutation::EDGES;
use crate::newer::Newer;
use crate::rounds::{Random, rounds};
use crate::rules;
use crate::runner::process_bytes;
use crate::wit_value::{V, bare, case, f, l, n, ok, some, t};

/// Bytes of an answer with everything that it points at.
const IMAGE_BYTES: usize = 1_024;
/// Key of the state under which the answer lies.
const KEY: &str = "m";
/// Memory of the process that any number of inputs may take.
const GROWTH_BYTES_MAX: u64 = 512 << 20;

/// Exports that answer, in the order of the first byte of an input.
const EXPORTS: [(&str, &str); 6] = [
    ("strategy", "select-samples"),
    ("strategy", "propose-update"),
    ("strategy", "evaluate"),
    ("live", "ingest"),
    ("migration", "migrate"),
    ("requests", "transform-request"),
];

/// Copies the state's value to the data and returns the address in its first word.
fn replaying(key: [u32; 2]) -> String {
    format!(
        "(call $get (i32.const {}) (i32.const {}) (i32.const 64))
         (memory.copy (i32.const {DATA_AT}) (i32.load (i32.const 72)) (i32.load (i32.const 76)))
         (i32.load (i32.const {DATA_AT}))",
        key[0], key[1]
    )
}

/// The guests: of 0.1.0, and of 0.2.0 with every export. `transform-request` has no state to read, so that its
/// answers are fixed and come from [`requests`].
pub struct Replayers {
    older: Recipe,
    newer: Recipe,
}

impl Replayers {
    pub async fn load(sandbox: &Sandbox) -> Self {
        let mut older = Guest::good().importing("state", "get", "(param i32 i32 i32)");
        let body = replaying(older.data.text(KEY));
        older = Guest { select: body.clone(), propose: body.clone(), evaluate: body, ..older };
        let mut newer = Newer::good().importing("state", "get");
        let body = replaying(newer.data.text(KEY));
        for (interface, function) in &EXPORTS[..4] {
            newer = newer.doing(interface, function, &body);
        }
        let newer = sandbox.load(newer.bytes(), &Grants::all()).await.expect("loads");
        Self { older: load(sandbox, older).await.expect("loads"), newer }
    }

    /// The first good answer comes through both guests as what it says, so that the targets try what they claim to.
    async fn answers_arrive(&self, image: &[u8]) {
        for recipe in [&self.older, &self.newer] {
            let state = [(KEY.to_owned(), image.to_vec())].into_iter().collect();
            let selected = recipe.select_samples(Call { state, ..call() }).await.result.expect("selection");
            assert_eq!(selected, Selection { choice: Choice::Train(vec![0, 1]), retire: vec![(2, "stale".into())] });
        }
    }

    /// The answer of both generations, checked.
    pub async fn check(&self, input: &[u8]) -> Result<(), String> {
        let [export, image @ ..] = input else { return Ok(()) };
        let call = || {
            let state = [(KEY.to_owned(), image.to_vec())].into_iter().collect();
            Call { state, ..call() }
        };
        for recipe in [&self.older, &self.newer] {
            match export % 4 {
                0 => rules::outcome(&recipe.select_samples(call()).await, rules::selection)?,
                1 => rules::outcome(&recipe.propose_update(call()).await, rules::proposal)?,
                2 => rules::outcome(&recipe.evaluate(call(), 0).await, rules::verdict)?,
                _ if recipe.exports().live => {
                    let outcome = recipe.ingest(call(), vec![exchange("r1"), exchange("r2")]).await;
                    rules::outcome(&outcome, |judged| rules::judgements(judged))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn exchange(id: &str) -> Exchange {
    Exchange {
        id: RecordId::parse(id.to_owned()).expect("id"),
        release: ReleaseId::parse("a".repeat(40)).expect("id"),
        at_ms: 0,
        session: None,
        tags: vec![],
        messages: vec![],
        answer: String::new(),
        tools: false,
        prompt_tokens: 0,
        answer_tokens: 0,
    }
}

/// Good answers of every export, each laid out as the guest would: the export's number and the image.
pub fn good_answers() -> Vec<(u8, Vec<u8>)> {
    let group = |name: &str, slots: Vec<V>| f([t(name), l(slots)]);
    let message = |role: &str| f([t(role), t("hello")]);
    let answers: Vec<(u8, V)> = vec![
        (0, ok(f([case(1, l([n(0), n(1)])), l([f([n(2), t("stale")])])]))),
        (0, ok(f([case(0, t("too few")), l([])]))),
        (0, ok(f([case(2, l([group("a", vec![n(0)]), group("b", vec![n(2), n(1)])])), l([])]))),
        (0, case(1, case(0, t("batch")))),
        (1, ok(case(3, t("warm-up")))),
        (1, ok(case(0, n(30)))),
        (1, ok(case(1, l([case(1, f([bare(3), t("skill")]))])))),
        (1, ok(case(2, l([f([t("served"), l([]), some(n(7)), bare(0), some(t("base"))])])))),
        (2, ok(f([bare(0), t("good"), l([f([t("score"), n(0.5)]), f([t("loss"), n(1e300)])])]))),
        (2, case(1, case(2, t("no")))),
        (3, ok(l([f([t("r1"), n(0.5), t("{\"why\": [1, 2]}")]), f([t("r2"), n(-1), t("{}")])]))),
        (4, ok(l([f([t("a"), l([n(7), n(8)])]), f([t("b"), l([])])]))),
        (5, some(l([message("system"), message("user")]))),
    ];
    let image = |(export, answer): (u8, V)| {
        let (interface, function) = EXPORTS[export as usize];
        let mut guest = Newer::good();
        guest.data = Data::default();
        // The first word is the answer's address.
        let head = guest.data.put(&[0; 8]);
        let at = guest.put_result(interface, function, &answer);
        assert_eq!(head, DATA_AT);
        let mut image = guest.data.bytes().to_vec();
        image[..4].copy_from_slice(&at.to_le_bytes());
        (export, image)
    };
    answers.into_iter().map(image).collect()
}

/// A word as it would stand in an answer: an address, a small number, an edge, or anything.
fn word(random: &mut Random) -> u32 {
    match random.below(10) {
        0..4 => DATA_AT + 4 * random.below(IMAGE_BYTES / 4) as u32,
        4..7 => random.below(5) as u32,
        7 => random.pick(&EDGES) as u32,
        8 => DATA_AT + random.below(400_000) as u32,
        _ => random.next() as u32,
    }
}

/// The image of an answer: a good one with some words changed, or nothing but words.
pub fn image(random: &mut Random, good: &[(u8, Vec<u8>)], exports: u8) -> Vec<u8> {
    let (export, mut image) = good[random.below(good.len())].clone();
    let export = if random.once_in(4) { random.below(exports.into()) as u8 } else { export };
    if random.once_in(3) {
        image = (0..IMAGE_BYTES / 4).flat_map(|_| word(random).to_le_bytes()).collect();
        let at = DATA_AT + 4 * random.below(IMAGE_BYTES / 4) as u32;
        image[..4].copy_from_slice(&at.to_le_bytes());
    }
    for _ in 0..random.below(6) {
        let at = random.below(image.len() / 4) * 4;
        match random.below(3) {
            0 => image[at + random.below(4)] = random.next() as u8,
            _ => image[at..at + 4].copy_from_slice(&word(random).to_le_bytes()),
        }
    }
    [&[export][..], &image].concat()
}

fn limits() -> SandboxConfig {
    SandboxConfig { output_bytes_max: 1 << 20, ..small() }
}

/// Every deciding export, random answers of guests of both generations → a value that obeys the rules or a typed fault,
/// and bounded memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_answers_of_a_guest_obey_the_rules() {
    let sandbox = sandbox(limits());
    let replayers = Replayers::load(&sandbox).await;
    let good: Vec<_> = good_answers().into_iter().filter(|(export, _)| *export < 4).collect();
    for (export, image) in &good {
        let input = [&[*export][..], image].concat();
        replayers.check(&input).await.expect("good answers are fine");
    }
    replayers.answers_arrive(&good[0].1).await;
    let before = process_bytes("VmHWM");
    let make = |random: &mut Random| image(random, &good, 4);
    rounds("lifting", make, async |input| replayers.check(input).await).await;
    let grown = process_bytes("VmHWM").saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more");
    still_works(&sandbox).await;
}

/// The answer of a sealed export lies in the guest itself.
async fn sealed(sandbox: &Sandbox, template: &[u8], input: &[u8]) -> Result<(), String> {
    let [export, image @ ..] = input else { return Ok(()) };
    let bytes = crate::manifests::patched(template, image);
    let grants: Grants = Capability::ALL.into_iter().collect();
    let recipe = sandbox.load(bytes, &grants).await.map_err(|error| error.to_string())?;
    if export % 2 == 0 {
        let outcome = recipe.migrate(call(), "1.0.0").await;
        return rules::outcome(&outcome, |entries| {
            let fits = entries.iter().all(|(key, value)| (1..=256).contains(&key.len()) && value.len() <= 65_536);
            rules::ensure(fits, || format!("{entries:?}"))
        });
    }
    let messages = vec![Message { role: "user".into(), content: "hi".into() }];
    let request = RequestView { messages, session: None, tags: vec![] };
    let outcome = recipe.transform_request(call(), request).await;
    rules::outcome(&outcome, |messages| messages.as_deref().map_or(Ok(()), rules::conversation))
}

/// migrate and transform-request, random answers → a value that obeys the rules or a typed fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_answers_of_sealed_exports_obey_the_rules() {
    let sandbox = sandbox(SandboxConfig { wall_transform_ms: 1_000, ..limits() });
    let template = {
        let mut guest = Newer::good();
        let at = guest.data.put(&crate::manifests::marker());
        let body = format!(
            "(memory.copy (i32.const {DATA_AT}) (i32.const {at}) (i32.const {IMAGE_BYTES})) (i32.load (i32.const {DATA_AT}))"
        );
        guest.doing("migration", "migrate", &body).doing("requests", "transform-request", &body).bytes()
    };
    let good: Vec<_> = good_answers().into_iter().filter(|(export, _)| *export >= 4).collect();
    for (export, image) in &good {
        sealed(&sandbox, &template, &[&[*export][..], image].concat()).await.expect("good answers are fine");
    }
    let make = |random: &mut Random| image(random, &good, 6);
    rounds("sealed", make, async |input| sealed(&sandbox, &template, input).await).await;
    still_works(&sandbox).await;
}
