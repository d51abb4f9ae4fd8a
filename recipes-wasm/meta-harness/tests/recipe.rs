//! The recipe against a host in memory: what the model reads, which children are tried and which of them serve. The
//! agent of these tests scores the share of the words `one`, `two` and `three` that its rules hold.

use reef_recipe::harness::Episode;
use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{Choice, Decision, Entry, EntryKind, Failure, Mutation, Proposal, Recipe};
use reef_recipe_meta_harness::MetaHarness;
use reef_recipe_meta_harness::population::identity;

fn play(entries: &[Entry], _: &str, _: u32) -> Episode {
    let held = ["one", "two", "three"].iter().filter(|word| entries.iter().any(|entry| entry.config.contains(*word)));
    Episode::scored(held.count() as f64 / 3.0)
}

fn rules(text: &str) -> Entry {
    Entry { id: "style".into(), kind: EntryKind::Rules, config: format!("{{\"text\":\"{text}\"}}") }
}

fn host() -> FakeHost {
    let tasks = ["a", "b", "c"];
    FakeHost::of::<MetaHarness>().entry(rules("zero")).tasks(&tasks).plays(play).sample(FakeSample::unscored())
}

fn answer(parent: &str, text: &str) -> String {
    format!(
        r#"{{"parent_id":"{}","hypothesis":"words help","changes":[{{"op":"put","kind":"rules","id":"style","text":"{text}"}}]}}"#,
        &identity(&[rules(parent)])[..12]
    )
}

fn asked(host: &FakeHost) -> Vec<String> {
    let chat = host.calls.iter().filter_map(|call| match call {
        Call::Chat { requests, .. } => Some(requests[0].messages[1].content.clone()),
        _ => None,
    });
    chat.collect()
}

fn skipped(proposal: Result<Proposal, Failure>) -> String {
    match proposal {
        Ok(Proposal::Skip(reason)) => reason,
        other => format!("not skipped: {other:?}"),
    }
}

#[test]
fn the_manifest_asks_for_what_is_used_and_the_readme_lists_every_key() {
    let manifest = MetaHarness::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score), ("meta-harness", false));
    assert_eq!(manifest.capabilities, ["log", "config", "experience", "models", "harness", "state", "metrics"]);
    let readme = include_str!("../README.md");
    for key in manifest.config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn a_child_with_a_higher_mean_serves_and_its_score_is_read_later() {
    let mut host = host().answers("proposer", &answer("zero", "one")).answers("proposer", &answer("one", "one two"));
    assert_eq!(host.propose::<MetaHarness>(), Ok(Proposal::Mutations(vec![Mutation::Put(rules("one"))])));
    let verdict = host.evaluate::<MetaHarness>().expect("judges");
    assert_eq!(verdict.decision, Decision::Promote);
    assert_eq!(verdict.reason, "6 wins, 0 losses, 0 ties on 6 pairs; sign test p = 0.016");
    host.release_candidate().expect("applies");
    assert_eq!(host.propose::<MetaHarness>(), Ok(Proposal::Mutations(vec![Mutation::Put(rules("one two"))])));
    let read = &asked(&host)[1];
    let (zero, one) = (&identity(&[rules("zero")])[..12], &identity(&[rules("one")])[..12]);
    let row = format!("{one} (serves now) parent {zero}: mean 0.3333, what served then 0.0000; words help; promoted");
    assert!(read.contains(&row), "{read}");
    assert!(read.contains(&format!("{zero} parent none: not scored; found serving; serves")), "{read}");
    assert!(read.contains(&format!("The texts of {zero}:\nrules/style\n<entry>\nzero\n</entry>")), "{read}");
}

#[test]
fn a_child_of_a_node_that_does_not_serve_is_the_difference_to_what_serves() {
    let other = Entry { id: "extra".into(), ..rules("more") };
    let mut host =
        FakeHost::of::<MetaHarness>().entry(rules("zero")).tasks(&["a"]).plays(play).sample(FakeSample::unscored());
    let grown = answer("zero", "one").replace("\"style\"", "\"extra\"");
    host = host.answers("proposer", &grown);
    host.propose::<MetaHarness>().expect("proposes");
    host.release_candidate().expect("applies");
    // A child of the first tree, without the entry that serves now.
    let mut host = host.answers("proposer", &answer("zero", "two"));
    let changes = vec![Mutation::remove(EntryKind::Rules, other.id), Mutation::Put(rules("two"))];
    assert_eq!(host.propose::<MetaHarness>(), Ok(Proposal::Mutations(changes)));
}

#[test]
fn a_harness_that_was_tried_is_an_attempt_and_not_tried_again() {
    let mut host = host().answers("proposer", &answer("zero", "four"));
    host.propose::<MetaHarness>().expect("proposes");
    assert_eq!(host.evaluate::<MetaHarness>().expect("judges").decision, Decision::Reject);
    let again = format!("the answer makes {} again, which is in the population", &identity(&[rules("four")])[..12]);
    assert_eq!(skipped(host.propose::<MetaHarness>()), again);
    assert!(matches!(host.propose::<MetaHarness>(), Ok(Proposal::Skip(_))));
    let spent = String::from_utf8(host.state["spent"].clone()).expect("text");
    assert!(spent.contains("\"attempts\":2") && spent.contains("\"candidates\":1"), "{spent}");
    assert!(asked(&host)[2].contains(&again));
}

#[test]
fn answers_that_cannot_be_used_are_reasons() {
    let unknown = answer("never", "one");
    let told =
        format!("the answer names the parent '{}', which is not in the population", &identity(&[rules("never")])[..12]);
    for (answer, reason) in [
        ("No.", "the answer holds no JSON object"),
        (unknown.as_str(), told.as_str()),
        (answer("zero", "zero").as_str(), "the answer changes nothing: every entry is as it was"),
        (
            answer("zero", "x").replace("\"rules\"", "\"tool\"").as_str(),
            "the answer changes the kind 'tool'; it may change rules, skill",
        ),
    ] {
        let mut host = host().answers("proposer", answer);
        assert_eq!(skipped(host.propose::<MetaHarness>()), reason);
        assert!(host.state.contains_key("spent"), "the attempt is recorded");
    }
}

#[test]
fn an_equal_mean_is_no_improvement_and_few_pairs_are_held() {
    let mut same = host().answers("proposer", &answer("zero", "four"));
    same.propose::<MetaHarness>().expect("proposes");
    assert_eq!(same.evaluate::<MetaHarness>().expect("judges").decision, Decision::Reject);
    let mut few = host().config("episode_repeats", "1").answers("proposer", &answer("zero", "one"));
    few.propose::<MetaHarness>().expect("proposes");
    assert_eq!(few.evaluate::<MetaHarness>().expect("judges").decision, Decision::Hold);
}

#[test]
fn both_budgets_count_the_whole_search() {
    let mut host = host().config("max_candidates", "1").answers("proposer", &answer("zero", "one"));
    assert!(matches!(host.select::<MetaHarness>().expect("selects").choice, Choice::Train(_)));
    host.propose::<MetaHarness>().expect("proposes");
    let waits = host.select::<MetaHarness>().expect("selects").choice;
    assert_eq!(waits, Choice::Wait("the search has used its 1 candidates".into()));
    let mut host = host.config("max_target_episodes", "11");
    let verdict = host.evaluate::<MetaHarness>().expect("judges");
    assert_eq!(
        (verdict.decision, verdict.reason.as_str()),
        (Decision::Hold, "not compared: 12 episodes are needed and 0 of max_target_episodes 11 used")
    );
    let mut host = host.config("max_target_episodes", "12").config("max_candidates", "0");
    assert_eq!(host.evaluate::<MetaHarness>().expect("judges").decision, Decision::Promote);
    let waits = host.select::<MetaHarness>().expect("selects").choice;
    assert_eq!(waits, Choice::Wait("the search has used its 12 episodes".into()));
}

#[test]
fn the_model_can_be_shown_the_incumbent_alone() {
    let mut host = host().config("mode", "\"incumbent_only\"").answers("proposer", &answer("zero", "four"));
    host.propose::<MetaHarness>().expect("proposes");
    host.evaluate::<MetaHarness>().expect("judges");
    host.propose::<MetaHarness>().expect("answers");
    assert!(!asked(&host)[1].contains("four\n</entry>"), "{}", asked(&host)[1]);
    let failure = host.config("mode", "\"all\"").select::<MetaHarness>().expect_err("no mode");
    assert_eq!(failure, Failure::InvalidConfig("mode: 'all' is neither full_history nor incumbent_only".into()));
}

#[test]
fn a_host_without_harness_is_a_reason() {
    let mut none = host().without_harness("not available");
    assert_eq!(skipped(none.propose::<MetaHarness>()), "the harness is not available: harness: not available");
}
