//! Everything beside the recipe of the README: what the modules ask of a host, and how the double answers.

use reef_recipe::experience::{Alternatives, AssemblyFailure, UnusableReport};
use reef_recipe::harness::{self, Episode, EpisodeStatus, Tree};
use reef_recipe::prelude::*;
use reef_recipe::testing::{Call, FakeHost, FakeSample, Level};
use reef_recipe::{
    ChatRequest, Distillation, Divergence, EntryKind, Exchange, Judgement, KlPenalty, Live, Migration, Mutation,
    RatioSource, Request, Requests, StateEntry, config,
};

struct Everything;

const RATE: Key<f64> = Key::number("rate", 0.5, "a number without a range");
const COUNT: Key<u32> = Key::count("count", 3, "a whole number without a range");

impl Recipe for Everything {
    fn describe() -> Manifest {
        let asks = [Capability::Harness, Capability::Verify, Capability::Tokens];
        Manifest::harness("everything", "2.0.0").asks(&asks).key(RATE).key(COUNT).top_k(4).re_evaluate_every(10)
    }
    fn select(_: &Context, _: &Pool) -> Result<Selection> {
        Ok(Selection::wait("never"))
    }
    fn propose(_: &Context, _: &Batch) -> Result<Proposal> {
        Ok(vec![Mutation::remove(EntryKind::Rules, "style")].into())
    }
}

impl Migration for Everything {
    fn migrate(from_version: &str, entries: Vec<StateEntry>) -> Result<Vec<StateEntry>> {
        let [count] = entries.as_slice() else {
            return Err(Failure::other(format!("no state of {from_version}")));
        };
        let count: u32 = count.read().ok_or_else(|| Failure::other("the count is no number"))?;
        Ok(vec![StateEntry::new("total", &f64::from(count))])
    }
}

impl Live for Everything {
    fn ingest(_: &Context, exchanges: &[Exchange]) -> Result<Vec<Judgement>> {
        state::set("seen", &(exchanges.len() as u32))?;
        Ok(exchanges.iter().map(|exchange| Judgement::new(exchange.id.as_str(), 0.5)).collect())
    }
}

impl Requests for Everything {
    fn transform(request: &Request) -> Option<Vec<Message>> {
        let asks_for_less = request.tags.iter().any(|(name, value)| name == "style" && value == "short");
        asks_for_less.then(|| [vec![Message::system("Be brief.")], request.messages.clone()].concat())
    }
}

struct Exact;

impl Verifier for Exact {
    fn check(task: &str, answer: &str) -> Result<Outcome, String> {
        let wanted = reef_recipe::json::text(task).ok_or("the task is not a JSON string")?;
        Ok(if answer.trim() == wanted { Outcome::pass("equal") } else { Outcome::fail("different") })
    }
}

reef_recipe::export!(Everything);
reef_recipe::export_migration!(Everything);
reef_recipe::export_live!(Everything);
reef_recipe::export_requests!(Everything);

fn host() -> FakeHost {
    FakeHost::of::<Everything>()
}

fn exchange() -> Exchange {
    Exchange {
        id: "record-1".into(),
        release: "0".repeat(40),
        at_ms: 1.0,
        session: None,
        tags: vec![],
        messages: vec![Message::user("hello")],
        answer: "hi".into(),
        tools: false,
        prompt_tokens: 3,
        answer_tokens: 1,
    }
}

#[test]
fn a_manifest_carries_ranges_and_how_often_to_look_again() {
    let manifest = Everything::describe();
    assert_eq!((manifest.top_k, manifest.re_evaluate_every), (4, 10));
    assert_eq!(manifest.capabilities, ["log", "harness", "verify", "tokens", "config"]);
    assert_eq!((manifest.config[0].minimum, manifest.config[0].maximum), (None, None));
    assert_eq!((manifest.config[1].minimum, manifest.config[1].maximum), (Some(0.0), None));
}

#[test]
fn every_declared_key_can_be_listed() {
    let listed = host().config("rate", "2").call(config::get_all).expect("listed");
    assert_eq!(listed, [("count".to_owned(), "3".to_owned()), ("rate".to_owned(), "2".to_owned())]);
}

#[test]
fn texts_and_alternatives_of_a_sample_are_there_when_they_were_recorded() {
    let recorded = Alternatives { k: 1, ids: vec![7], logprobs: vec![-0.1] };
    let sample = FakeSample::scored(1.0)
        .top_k(recorded.clone())
        .tag("style", "short")
        .session("s")
        .messages(&[Message::user("2 + 2?")])
        .response_text("4");
    let mut host = host().sample(sample).sample(FakeSample::scored(0.0).mask(&[1, 0, 1]));
    host.call(|| {
        assert_eq!(experience::messages(100)?, [Message::user("2 + 2?")]);
        assert_eq!(experience::response_text(100)?, "4");
        assert_eq!(experience::tags(100)?, [("style".to_owned(), "short".to_owned())]);
        assert_eq!((experience::session(100)?, experience::session(101)?), (Some("s".to_owned()), None));
        assert_eq!(experience::top_k(100)?, recorded);
        assert!(matches!(experience::top_k(101), Err(Failure::Capability(reason)) if reason.contains("not recorded")));
        assert_eq!(experience::turns(101)?[0].length, 3);
        assert_eq!(Batch::from(vec![100, 101]).action_counts()?, [1, 2]);
        Ok(())
    })
    .expect("reads");
}

#[test]
fn reports_that_are_no_samples_say_why() {
    let report = UnusableReport { report: "report-1".into(), why: AssemblyFailure::Fork(2) };
    assert_eq!(host().unusable(report.clone()).call(experience::unusable), Ok(vec![report]));
}

#[test]
fn a_loss_may_be_a_sum_with_every_option_of_its_terms() {
    let mut host = host().sample(FakeSample::scored(1.0));
    host.call(|| {
        let batch = Batch::from(vec![100]);
        let gradient = PolicyGradient::new(Weight::Ratio, vec![0.5])
            .reduced(Reduction::TokenSum)
            .to_recomputed()
            .kl(0.1, Policy::Base)
            .entropy(0.01);
        let teacher = Distillation::new(Policy::Ema, Divergence::FORWARD).reading(&batch).weighted(&[2.0]);
        let trainer = Trainer::open()?;
        trainer.forward_backward(&batch, Loss::of(1.0, gradient).and(0.5, teacher).and(0.1, Objective::Nll))?;
        trainer.optimizer_step(Optimizer::adamw(1e-3))?;
        trainer.update_ema(0.01)
    })
    .expect("trains");
    let [_, Call::ForwardBackward { terms, .. }, Call::OptimizerStep(_), Call::UpdateEma(0.01)] = host.calls.as_slice()
    else {
        panic!("{:?}", host.calls);
    };
    assert_eq!(terms.iter().map(|term| term.factor).collect::<Vec<_>>(), [1.0, 0.5, 0.1]);
    let Objective::PolicyGradient(gradient) = &terms[0].what else {
        panic!("{terms:?}");
    };
    assert_eq!(gradient.advantages, Advantages::PerSample(vec![0.5]));
    assert_eq!(gradient.kl, Some(KlPenalty { coefficient: 0.1, reference: Policy::Base }));
    assert_eq!((gradient.old, gradient.reduction), (RatioSource::Recomputed, Reduction::TokenSum));
}

#[test]
fn a_gradient_of_the_recipes_own_has_one_number_a_token() {
    let mut host = host().sample(FakeSample::scored(1.0).mask(&[1, 1]));
    let outcome = host.call(|| {
        let (batch, trainer) = (Batch::from(vec![100]), Trainer::open()?);
        let logprobs = trainer.forward(Policy::Current, &batch)?;
        let gradients = logprobs.parts().map(<[f32]>::to_vec).collect();
        trainer.backward(&batch, &gradients)?;
        trainer.backward(&batch, &[vec![1.0f32]].into_iter().collect())
    });
    assert!(matches!(outcome, Err(Failure::Capability(reason)) if reason.contains("1 numbers for 2 tokens")));
    assert_eq!(host.calls[2], Call::Backward { items: vec![100], gradients: vec![-1.0, -1.0] });
}

#[test]
fn a_derived_sample_reads_as_the_one_it_came_from_except_for_what_changed() {
    let mut host = host().sample(FakeSample::scored(1.0).mask(&[1, 0]));
    let ids = host.call(|| {
        let prompted = Trainer::derive(100, Some(&tokens::encode("hint")?), None)?;
        let answered = Trainer::derive(100, None, Some(&[5, 6, 7]))?;
        assert_eq!(experience::prompt_tokens(prompted)?, tokens::encode("hint")?);
        let both = Samples::from(vec![prompted, answered]);
        assert_eq!((both.response_lengths()?, both.action_counts()?), (vec![2, 3], vec![1, 3]));
        assert_eq!(both.logprobs()?.values(), [-1.0, 0.0, 0.0, 0.0, 0.0]);
        Ok(both)
    });
    let gone = host.call(|| ids.expect("derives").scores());
    assert!(gone.is_err(), "a derived sample is valid for its call only");
}

#[test]
fn one_answer_and_many_come_from_the_same_call() {
    let mut host = host().answers("judge", "yes").answers("judge", "no");
    host.call(|| {
        let conversation = [Message::user("is it?")];
        assert_eq!(models::ask("judge", &conversation, Sampling::greedy(8))?.text, "yes");
        let request = ChatRequest { messages: conversation.to_vec(), how: Sampling::at(1.0, 8).draws(3).seeded(1) };
        let answers = models::chat("judge", &[request])?;
        let texts: Vec<_> = answers.iter().flatten().map(|answer| answer.text.as_str()).collect();
        assert_eq!(texts, ["no", "yes", "no"]);
        assert_eq!((models::spent()?.calls, models::bindings()?), (4, vec!["judge".to_owned()]));
        assert!(models::ask("oracle", &conversation, Sampling::greedy(8)).is_err());
        Ok(())
    })
    .expect("asks");
    let mut host = host.scores_answers("judge", &[-0.5]);
    assert_eq!(host.call(|| models::score("judge", &[], "yes")), Ok(vec![-0.5]));
}

#[test]
fn verifiers_grade_and_refuse() {
    let mut host = host().verifier::<Exact>("exact");
    assert_eq!(host.call(verify::verifiers), Ok(vec!["exact".to_owned()]));
    assert!(host.call(|| verify::check("exact", "\"4\"", " 4 ")).is_ok_and(|outcome| outcome.passed));
    assert!(host.call(|| verify::check("exact", "\"4\"", "5")).is_ok_and(|outcome| outcome.score == 0.0));
    let refused = host.call(|| verify::check("exact", "4", "4"));
    assert!(matches!(refused, Err(Failure::Capability(reason)) if reason.contains("not a JSON string")));
    assert!(host.call(|| verify::check("other", "\"4\"", "4")).is_err());
}

#[test]
fn a_harness_is_read_tried_and_changed() {
    let outcome = Episode { status: EpisodeStatus::Scored, score: 0.5, trace: String::new(), seconds: 1.0 };
    let mut host = host().episode("build", outcome.clone());
    let put = vec![Mutation::put(EntryKind::Rules, "style", "{}")];
    assert_eq!(host.call(|| harness::check(&put)), Ok(()));
    assert!(host.call(|| harness::check(&[Mutation::remove(EntryKind::Rules, "style")])).is_err());
    assert_eq!(host.call(harness::tasks), Ok(vec!["build".to_owned()]));
    assert_eq!(host.call(|| harness::run_episode(&Tree::Changed(put.clone()), "build", 1)), Ok(outcome));
    assert!(matches!(host.propose::<Everything>(), Ok(Proposal::Mutations(changes)) if changes.len() == 1));
}

#[test]
fn state_is_listed_and_carried_over_to_a_new_version() {
    let mut host = host();
    host.call(|| state::set("count", &7u32)).expect("writes");
    assert_eq!(host.call(state::keys), Ok(vec!["count".to_owned()]));
    host.migrate::<Everything>("1.0.0").expect("migrates");
    assert_eq!(host.call(|| state::get::<f64>("total")), Ok(Some(7.0)));
    assert!(host.migrate::<Everything>("1.0.0").is_err(), "the total is no count");
    assert_eq!(host.call(state::keys), Ok(vec!["total".to_owned()]));
}

#[test]
fn live_exchanges_are_judged_and_requests_rewritten() {
    let mut host = host();
    let judged = host.ingest::<Everything>(&[exchange()]).expect("judges");
    assert_eq!((judged[0].receipt.as_str(), judged[0].score, judged[0].metadata.as_str()), ("record-1", 0.5, "{}"));
    assert_eq!(host.call(|| state::get::<u32>("seen")), Ok(Some(1)));

    let mut request = Request { messages: vec![Message::user("hello")], session: None, tags: vec![] };
    assert_eq!(Everything::transform(&request), None);
    request.tags.push(("style".into(), "short".into()));
    assert_eq!(Everything::transform(&request).map(|messages| messages.len()), Some(2));
}

#[test]
fn a_line_of_the_log_says_where_it_comes_from() {
    let mut host = host();
    host.call(|| {
        log::info!("{} of {}", 1, 2);
        log::warn!(context: "critic", "flat");
        Ok(())
    })
    .expect("logs");
    let lines: Vec<_> =
        host.logs.iter().map(|line| (line.level, line.context.as_str(), line.message.as_str())).collect();
    assert_eq!(lines, [(Level::Info, "surface", "1 of 2"), (Level::Warn, "critic", "flat")]);
}
