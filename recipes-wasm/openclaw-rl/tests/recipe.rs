//! The recipe against a host in memory: whom it follows, what it asks the judge and the trainer, what it proposes.

use reef_recipe::testing::{Call, FakeHost, FakeSample};
use reef_recipe::{
    Advantages, Bounds, Choice, Decision, Exchange, Failure, Message, Objective, Policy, Proposal, RatioSource, Recipe,
    Reduction, Term, Weight,
};
use reef_recipe_openclaw_rl::OpenclawRl;

const GOOD: &str = "\\boxed{1}";
const BAD: &str = "\\boxed{-1}";
const HINT: &str = "[HINT_START]answer in one word[HINT_END] \\boxed{1}";
const BOUNDS: Bounds = Bounds { low: 0.8, high: 1.28 };

fn host() -> FakeHost {
    FakeHost::of::<OpenclawRl>().config("batch_size", "1").config("votes", "1")
}

/// The exchange behind the sample of that number; the conversation is its own.
fn exchange(number: u32, texts: &[&str], answer: &str) -> Exchange {
    let message =
        |(index, text): (usize, &&str)| if index % 2 == 0 { Message::user(*text) } else { Message::assistant(*text) };
    Exchange {
        id: format!("record-{number}"),
        release: "0".repeat(40),
        at_ms: 0.0,
        session: None,
        tags: vec![],
        messages: texts.iter().enumerate().map(message).collect(),
        answer: answer.to_owned(),
        tools: true,
        prompt_tokens: 1,
        answer_tokens: 1,
    }
}

/// A sample with the prompt that the double renders, after tokens that no message holds.
fn sample(question: &str) -> FakeSample {
    let rendered = format!("tools; user: {question}\nassistant: ");
    let ids: Vec<u32> = rendered.bytes().map(u32::from).collect();
    FakeSample::scored(0.0).mask(&[1, 1]).messages(&[Message::user(question)]).prompt_tokens(&ids)
}

/// `count` turns, each followed by a complaint that names it.
#[expect(clippy::expect_used, reason = "a test that cannot start has failed")]
fn complained(count: u32) -> FakeHost {
    let mut host = host().config("batch_size", &count.to_string());
    for number in 0..count {
        let question = format!("question {number}");
        host = host.sample(sample(&question));
        let complaint = format!("complaint {number}");
        let turns = [
            exchange(100 + number, &[&question], "answer"),
            exchange(900 + number, &[&question, "answer", &complaint], "sorry"),
        ];
        host.ingest::<OpenclawRl>(&turns).expect("follows");
    }
    host
}

fn trained(host: &FakeHost) -> Option<(&[u32], &[Term])> {
    host.calls.iter().find_map(|call| match call {
        Call::Train { items, terms, .. } => Some((items.as_slice(), terms.as_slice())),
        _ => None,
    })
}

fn contexts(term: &Term) -> &[u32] {
    match &term.what {
        Objective::DistillTopK(what) => &what.contexts,
        _ => &[],
    }
}

fn scores(term: &Term) -> &[f32] {
    match &term.what {
        Objective::PolicyGradient(what) => match &what.advantages {
            Advantages::PerSample(scores) => scores,
            Advantages::PerToken(_) => &[],
        },
        _ => &[],
    }
}

#[test]
fn the_manifest_asks_for_what_is_used_and_explains_every_key() {
    let manifest = OpenclawRl::describe();
    assert_eq!((manifest.name.as_str(), manifest.needs_score, manifest.top_k), ("openclaw-rl", false, 4));
    let asked = ["log", "config", "experience", "training", "models", "tokens", "state", "metrics"];
    assert_eq!(manifest.capabilities, asked);
    assert!(manifest.config.iter().all(|key| !key.doc.is_empty()));
}

#[test]
fn the_readme_lists_every_key_with_its_default() {
    let readme = include_str!("../README.md");
    for key in OpenclawRl::describe().config {
        let row = format!("| `{}` | {} | {} |", key.name, key.default_value, key.doc);
        assert!(readme.contains(&row), "the README lacks the row\n{row}");
    }
}

#[test]
fn main_turns_become_samples_and_side_calls_do_not() {
    let mut host = host();
    let side = Exchange { tools: false, ..exchange(101, &["a title for it?"], "hello") };
    let judged = host.ingest::<OpenclawRl>(&[exchange(100, &["hi"], "hello"), side]).expect("follows");
    let [turn] = judged.as_slice() else { panic!("{judged:?}") };
    assert_eq!((turn.receipt.as_str(), turn.score, turn.metadata.as_str()), ("record-100", 0.0, "{\"judged\":false}"));
    assert_eq!(host.state.keys().collect::<Vec<_>>(), ["sessions"]);
}

#[test]
fn a_turn_is_ready_when_something_came_next_and_waits_while_its_session_is_open() {
    let mut host = host().sample(sample("hi"));
    host.ingest::<OpenclawRl>(&[exchange(100, &["hi"], "hello")]).expect("follows");
    let selection = host.select::<OpenclawRl>().expect("selects");
    assert_eq!((selection.choice, selection.retire.len()), (Choice::Wait("0 of 1 samples".into()), 0));

    host.ingest::<OpenclawRl>(&[exchange(101, &["hi", "hello", "be nice"], "sorry")]).expect("follows");
    let selection = host.sample(sample("hi")).select::<OpenclawRl>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![100]));
    assert!(selection.retire.is_empty(), "the last turn stays in the pool");
}

#[test]
fn what_can_never_be_judged_is_retired_with_the_reason() {
    let mut host = complained(1);
    host = host.sample(sample("stranger")).sample(sample("old").lag(5)).sample(sample("many").references(2));
    let selection = host.select::<OpenclawRl>().expect("selects");
    assert_eq!(selection.choice, Choice::Train(vec![100]));
    let retired: Vec<_> = selection.retire.iter().map(|gone| (gone.sample, gone.reason.as_str())).collect();
    assert_eq!(
        retired,
        [
            (101, "nothing is known to have come after it: its session ended, or went on from another answer"),
            (102, "sampled 5 releases ago, max_staleness is 4"),
            (103, "its report references 2 records; openclaw-rl learns from single turns"),
        ]
    );
}

#[test]
fn the_last_turn_of_a_session_that_fell_silent_is_retired_unjudged() {
    let mut host = host().sample(sample("hi"));
    host.ingest::<OpenclawRl>(&[exchange(100, &["hi"], "hello")]).expect("follows");
    assert!(host.clone().at_ms(900_000.0).select::<OpenclawRl>().expect("selects").retire.is_empty());
    assert_eq!(host.clone().at_ms(900_001.0).select::<OpenclawRl>().expect("selects").retire.len(), 1);
    let late = Exchange { at_ms: 900_001.0, ..exchange(101, &["hi", "hello", "still there?"], "yes") };
    host.ingest::<OpenclawRl>(&[late]).expect("follows");
    assert!(!host.state.keys().any(|key| key.starts_with("next/")), "a reply after the end is a new session");
}

#[test]
fn score_and_hint_make_both_terms_and_a_teacher_that_reads_the_hint() {
    let mut host = complained(1).answers("judge", BAD).answers("judge", HINT);
    assert_eq!(host.propose::<OpenclawRl>(), Ok(Proposal::Weights(9)));
    let [Call::Chat { binding, requests }, Call::Derive { item, prompt: Some(prompt), response: None }, ..] =
        host.calls.as_slice()
    else {
        panic!("{:?}", host.calls);
    };
    assert_eq!((binding.as_str(), requests.len(), requests[0].how.n), ("judge", 2, 1));
    for request in requests {
        let asked = &request.messages[1].content;
        assert!(asked.contains("user: question 0") && asked.contains("<answer>\nresponse\n"), "{asked}");
        assert!(asked.contains("<next from=\"user\">\ncomplaint 0\n"), "{asked}");
    }
    let prompt: String = prompt.iter().filter_map(|&id| char::from_u32(id)).collect();
    let wanted = "tools; user: question 0\n\n[Hint]\nanswer in one word\nassistant: ";
    assert_eq!((*item, prompt.as_str()), (100, wanted));

    let (items, terms) = trained(&host).expect("trains");
    let [ppo, distillation] = terms else { panic!("{terms:?}") };
    assert_eq!((items, scores(ppo), contexts(distillation)), (&[100][..], &[-1.0][..], &[1_000_000][..]));
    let (Objective::PolicyGradient(gradient), Objective::DistillTopK(top_k)) = (&ppo.what, &distillation.what) else {
        panic!("{terms:?}");
    };
    assert_eq!((gradient.weight, gradient.old), (Weight::Ppo(BOUNDS), RatioSource::Recomputed));
    assert_eq!((gradient.reduction, gradient.kl.is_some(), gradient.entropy), (Reduction::SampleTokenMean, false, 0.0));
    assert_eq!((&top_k.teacher, top_k.advantage_max, top_k.bounds), (&Policy::Base, 1.0, BOUNDS));
    let Some(Call::Train { optimizer, .. }) = host.calls.get(3) else { panic!("{:?}", host.calls) };
    assert_eq!((optimizer.learning_rate, optimizer.beta1, optimizer.beta2), (1e-4, 0.9, 0.98));
    assert_eq!((optimizer.weight_decay, optimizer.gradient_norm_max), (0.1, 1.0));
    assert!(!host.state.keys().any(|key| key.starts_with("next/")), "what was used is forgotten");
}

#[test]
fn each_turn_is_learned_from_as_its_votes_allow() {
    // Score and hint votes of four turns: score alone, hint alone, neither, a neutral score.
    let votes = [GOOD, "nothing", "nothing", HINT, "nothing", BAD, "\\boxed{0}", "nothing"];
    let mut host = votes.iter().fold(complained(4), |host, vote| host.answers("judge", vote));
    host.propose::<OpenclawRl>().expect("proposes");
    let (items, terms) = trained(&host).expect("trains");
    assert_eq!(items, [100, 101, 103]);
    assert_eq!(scores(&terms[0]), [1.0, 0.0, 0.0]);
    assert_eq!(contexts(&terms[1]), [100, 1_000_000, 103], "without a hint the teacher reads the turn itself");
    let told = ["turns", "turns_learned_from", "turns_hinted", "scored_good", "scored_bad", "scored_neutral"];
    assert_eq!(told.map(|name| host.metrics[name]), [4.0, 3.0, 1.0, 1.0, 0.0, 1.0]);
}

#[test]
fn several_votes_are_drawn_in_one_request_and_counted() {
    let mut host = complained(1).config("votes", "3");
    for vote in [GOOD, BAD, GOOD, "nothing", HINT, "nothing"] {
        host = host.answers("judge", vote);
    }
    host.propose::<OpenclawRl>().expect("proposes");
    let (_, terms) = trained(&host).expect("trains");
    assert_eq!((scores(&terms[0]), contexts(&terms[1])), (&[1.0][..], &[1_000_000][..]));
}

#[test]
fn a_failed_call_is_a_failed_vote_and_costs_nobody_else_theirs() {
    let mut host = complained(2).answers("judge", BAD).refuses_chat("complaint 0");
    assert_eq!(host.propose::<OpenclawRl>(), Ok(Proposal::Weights(9)));
    let (items, _) = trained(&host).expect("trains");
    assert_eq!((items, host.metrics["judge_requests_failed"]), (&[101][..], 2.0));
    // All together, then each of the four alone.
    let sizes: Vec<usize> = host
        .calls
        .iter()
        .filter_map(|call| match call {
            Call::Chat { requests, .. } => Some(requests.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [4, 1, 1, 1, 1]);
}

#[test]
fn without_a_judge_the_step_fails_and_nothing_is_forgotten() {
    let mut host = complained(1);
    let before = host.state.clone();
    assert!(matches!(host.propose::<OpenclawRl>(), Err(Failure::Capability(reason)) if reason.contains("judge")));
    assert_eq!(host.state, before);
}

#[test]
fn a_batch_without_a_valid_vote_is_skipped_and_consumed() {
    let mut host = complained(1).answers("judge", "no idea");
    assert!(matches!(host.propose::<OpenclawRl>(), Ok(Proposal::Skip(reason)) if reason.contains("no turn")));
    assert_eq!((trained(&host), host.logs.len()), (None, 1));
    assert!(!host.state.keys().any(|key| key.starts_with("next/")));
}

#[test]
fn a_hint_without_a_place_is_left_out_and_counted() {
    let host = complained(1).answers("judge", BAD).answers("judge", HINT);
    let mut foreign = host.sample(FakeSample::scored(0.0).prompt_tokens(&[1, 2, 3]));
    let turns = [exchange(101, &["prompt"], "answer"), exchange(902, &["prompt", "answer", "no"], "sorry")];
    foreign.ingest::<OpenclawRl>(&turns).expect("follows");
    foreign.propose::<OpenclawRl>().expect("proposes");
    let (items, terms) = trained(&foreign).expect("trains");
    assert_eq!((items, contexts(&terms[1])), (&[100, 101][..], &[1_000_000, 101][..]));
    assert_eq!(foreign.metrics["hints_unplaced"], 1.0);
}

#[test]
fn a_term_that_is_off_or_has_no_signal_is_left_out() {
    let terms = |key: &str, vote: &str| {
        let mut host = complained(1).answers("judge", vote).config(key, "0");
        let proposal = host.propose::<OpenclawRl>();
        (trained(&host).map(|(_, terms)| terms.len()), proposal)
    };
    assert_eq!(terms("rl_weight", GOOD).0, Some(1));
    assert_eq!(terms("distill_weight", GOOD).0, Some(1));
    let (trained, proposal) = terms("distill_weight", "\\boxed{0}");
    assert!(trained.is_none() && matches!(proposal, Ok(Proposal::Skip(reason)) if reason.contains("zero")));
    let mut host = complained(1).config("rl_weight", "0").config("distill_weight", "0");
    assert!(
        matches!(host.propose::<OpenclawRl>(), Err(Failure::InvalidConfig(reason)) if reason.starts_with("rl_weight"))
    );
}

#[test]
fn what_waits_for_a_step_is_bounded() {
    let mut host = host();
    for number in 0..300_u32 {
        let question = format!("question {number}");
        let turns =
            [exchange(1_000 + number, &[&question], "a"), exchange(5_000 + number, &[&question, "a", "no"], "b")];
        host.ingest::<OpenclawRl>(&turns).expect("follows");
    }
    let waiting: Vec<&String> = host.state.keys().filter(|key| key.starts_with("next/")).collect();
    assert_eq!((waiting.len(), waiting[0].as_str()), (256, "next/record-1044"));
    assert!(host.state["sessions"].len() < 64 * 1024);
}

#[test]
fn values_out_of_range_name_their_key() {
    let bad = [
        ("votes", "0"),
        ("judge_temperature", "11"),
        ("judge_tokens_max", "9000"),
        ("rl_weight", "-1"),
        ("advantage_max", "0"),
        ("eps_low", "1"),
        ("eps_high", "0"),
        ("learning_rate", "0"),
        ("weight_decay", "2"),
    ];
    for (key, value) in bad {
        let failure = complained(1).config(key, value).propose::<OpenclawRl>().expect_err(key);
        assert!(matches!(&failure, Failure::InvalidConfig(message) if message.starts_with(key)), "{failure:?}");
    }
    assert!(matches!(host().config("batch_size", "0").select::<OpenclawRl>(), Err(Failure::InvalidConfig(_))));
    assert!(matches!(host().config("session_ttl_s", "0").ingest::<OpenclawRl>(&[]), Err(Failure::InvalidConfig(_))));
}

#[test]
fn a_candidate_that_lost_more_than_the_tolerance_is_rejected() {
    let mut host = host().held_out("candidate", &[0.5, 0.4]).held_out("served", &[0.5, 0.6]);
    assert_eq!(host.evaluate::<OpenclawRl>().expect("judges").decision, Decision::Reject);
    let mut host = self::host();
    assert_eq!(host.evaluate::<OpenclawRl>().expect("judges").decision, Decision::Promote);
}
