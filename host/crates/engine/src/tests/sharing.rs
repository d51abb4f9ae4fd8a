//! Pages of keys and values: shared prefixes, swaps of adapters, too little room; lines of tenants.

use std::time::{Duration, Instant};

use super::*;
use crate::error::EngineError;

const STORY: &str = "Write a very long story about a sailor, a lighthouse, the sea, and a letter that was never sent.";

fn own(batch_max: usize, pages: usize) -> Engine {
    // A page of this model: 16 tokens · 30 layers · 2 · 192 numbers.
    let cache_bytes_max = pages * 16 * 30 * 2 * 192 * 4;
    Engine::load(EngineConfig { batch_max, cache_bytes_max, ..config(model_path()) }).expect("loaded")
}

fn run_on(own: &Engine, request: Request) -> (Vec<Token>, Finish) {
    collect(own.generate(request).expect("queued"))
}

#[test]
fn a_prompt_that_was_computed_before_is_found_and_answers_the_same() {
    let own = own(4, 64);
    let prompt = chat(STORY);
    let cold = run_on(&own, greedy(prompt.clone(), 20));
    let warm = run_on(&own, greedy(prompt.clone(), 20));
    assert_eq!((cold.1.reused, warm.1.reused), (0, (prompt.len() - 1) / 16 * 16));
    // Not merely the same ids: the same log-probs, bit for bit.
    assert_eq!(warm.0, cold.0);
    let mut longer = prompt.clone();
    longer.extend(ids(&cold));
    let follow = run_on(&own, greedy(longer.clone(), 4));
    assert!(follow.1.reused > prompt.len() - 16, "{}", follow.1.reused);
    assert_eq!(follow.0, run_on(&self::own(4, 64), greedy(longer, 4)).0);
}

#[test]
fn a_swap_of_weights_never_finds_pages_of_the_others() {
    let own = own(4, 64);
    let request = |weights| Request { weights, ..greedy(chat(STORY), 12) };
    for round in 0..3 {
        // Equal files, another adapter: what one computed is not the other's.
        let weights = Weights::Adapter(own.adapter(&lora(1)).expect("adapter"));
        let first = run_on(&own, request(weights.clone()));
        let base = run_on(&own, request(Weights::Base));
        assert_eq!((first.1.reused, base.1.reused > 0), (0, round > 0));
        assert_eq!(run_on(&own, request(weights)).0, first.0);
        let cold = self::own(1, 64);
        assert_eq!(run_on(&cold, request(Weights::Adapter(cold.adapter(&lora(1)).expect("adapter")))).0, first.0);
        assert_eq!(run_on(&cold, request(Weights::Base)).0, base.0);
    }
    let stats = own.stats();
    assert!(stats.pages_used <= stats.pages_max && stats.pages_kept <= stats.pages_used, "{stats:?}");
}

#[test]
fn requests_that_start_together_share_their_prompt() {
    let own = own(8, 64);
    let prompt = chat(STORY);
    let request = |seed| {
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed };
        Request { sampling, ..greedy(prompt.clone(), 6) }
    };
    let together: Vec<_> = (0..6).map(|seed| own.generate(request(seed)).expect("queued")).collect();
    let answers: Vec<_> = together.into_iter().map(collect).collect();
    assert!(answers.iter().skip(1).all(|answer| answer.1.reused >= (prompt.len() - 1) / 16 * 16));
    for (seed, answer) in answers.iter().enumerate() {
        assert_eq!(run_on(&self::own(1, 64), request(seed as u64)).0, answer.0, "{seed}");
    }
}

#[test]
fn too_few_pages_slow_requests_down_and_change_nothing() {
    // 512 tokens of context: 32 pages are one request's most, six want 15 each.
    let own = own(8, 32);
    let request = |seed| {
        let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed };
        Request { sampling, ..greedy(chat(&format!("{seed}. {STORY}")), 170) }
    };
    let together: Vec<_> = (0..6).map(|seed| own.generate(request(seed)).expect("queued")).collect();
    let answers: Vec<_> = together.into_iter().map(collect).collect();
    let alone = self::own(1, 64);
    for (seed, answer) in answers.iter().enumerate() {
        // How much of a prompt was found in the cache depends on who was where when pages ran out.
        let (tokens, finish) = run_on(&alone, request(seed as u64));
        assert_eq!((&tokens, &finish.reason, &finish.text), (&answer.0, &answer.1.reason, &answer.1.text), "{seed}");
    }
    assert_eq!((own.stats().active, own.stats().queued), (0, 0));
}

#[test]
fn tenants_take_turns_and_a_full_line_is_its_owners() {
    let own = Engine::load(EngineConfig { batch_max: 1, queue_max: 6, ..config(model_path()) }).expect("loaded");
    let ask = |tenant: &str, tokens_max| {
        own.generate(Request { tenant: tenant.to_owned(), ..greedy(chat("Say hello."), tokens_max) })
    };
    let mut first = ask("busy", 300).expect("queued");
    assert!(matches!(first.blocking_recv(), Some(Event::Token(_))));
    let busy: Vec<_> = (0..6).map(|_| ask("busy", 1).expect("queued")).collect();
    assert!(matches!(ask("busy", 1), Err(EngineError::Overloaded { queued: 6 })));
    let light = ask("light", 1).expect("another tenant's line has room");
    drop(first);
    // The light tenant's request is the second that runs: at most two of the busy one's end before it.
    assert_eq!(collect(light).0.len(), 1);
    let waiting = busy.iter().filter(|events| events.is_empty()).count();
    assert!(waiting >= 3, "{waiting} of the busy tenant's still wait");
    assert_eq!(busy.into_iter().map(|events| collect(events).0.len()).sum::<usize>(), 6);
}

/// The busy tenant sends long prompts first; the light one's short prompt need not wait until they are computed.
#[test]
fn a_short_prompt_of_another_tenant_overtakes_long_ones() {
    let own = Engine::load(EngineConfig { context_max: 2048, batch_max: 8, ..config(model_path()) }).expect("loaded");
    let of = |tenant: &str, prompt: Vec<u32>| {
        own.generate(Request { tenant: tenant.to_owned(), ..greedy(prompt, 1) }).expect("queued")
    };
    let long = |n: u32| -> Vec<u32> {
        std::iter::once(1000 + n).chain((0..1500).map(|at| 500 + (at * 7 + n) % 400)).collect()
    };
    let busy: Vec<_> = (0..3).map(|n| of("busy", long(n))).collect();
    // All of them have been let run.
    while own.stats().prompt_tokens < 3 * 1501 {
        std::thread::yield_now();
    }
    let light = of("light", chat("Say hello."));
    assert_eq!(collect(light).0.len(), 1);
    let running = busy.iter().filter(|events| events.is_empty()).count();
    assert!(running >= 1, "every long prompt was computed first");
    assert!(busy.into_iter().all(|events| collect(events).0.len() == 1));
}

#[test]
fn the_last_row_is_for_a_tenant_that_has_none() {
    let own = Engine::load(EngineConfig { batch_max: 2, tenants: 2, ..config(model_path()) }).expect("loaded");
    let ask = |tenant: &str, tokens_max| {
        own.generate(Request { tenant: tenant.to_owned(), ..greedy(chat(STORY), tokens_max) }).expect("queued")
    };
    let mut first = ask("busy", 300);
    assert!(matches!(first.blocking_recv(), Some(Event::Token(_))));
    let second = ask("busy", 1);
    assert_eq!(collect(ask("light", 1)).0.len(), 1, "it runs beside the first");
    assert!(second.is_empty() && own.stats().queued == 1, "the busy tenant keeps to its row");
    drop(first);
    assert_eq!(collect(second).0.len(), 1);
}

#[test]
fn what_a_tenant_asked_shows_in_nobody_elses_answers() {
    let own = own(4, 64);
    let of = |tenant: &str| run_on(&own, Request { tenant: tenant.to_owned(), ..greedy(chat(STORY), 2) });
    assert_eq!(of("one").1.reused, 0);
    assert!(of("one").1.reused > 0);
    assert_eq!(of("two").1.reused, 0);
}

#[test]
fn a_prompt_that_takes_several_steps_is_not_told_as_found() {
    let own = Engine::load(EngineConfig { context_max: 2048, ..config(model_path()) }).expect("loaded");
    let prompt: Vec<u32> = (0..1400).map(|at| 500 + at % 397).collect();
    let cold = run_on(&own, greedy(prompt.clone(), 1));
    let warm = run_on(&own, greedy(prompt.clone(), 1));
    assert_eq!((cold.1.reused, warm.1.reused), (0, (prompt.len() - 1) / 16 * 16));
}

#[test]
fn a_waiting_request_that_nobody_waits_for_is_dropped() {
    let own = Engine::load(EngineConfig { batch_max: 1, ..config(model_path()) }).expect("loaded");
    let mut first = own.generate(greedy(chat(STORY), 300)).expect("queued");
    assert!(matches!(first.blocking_recv(), Some(Event::Token(_))));
    let unwanted = chat("Count to a thousand.");
    let before = own.stats().prompt_tokens;
    drop(own.generate(greedy(unwanted, 200)).expect("queued"));
    let last = greedy(chat("Say hello."), 1);
    let wanted = last.prompt.len() as u64;
    let last = own.generate(last).expect("queued");
    drop(first);
    assert_eq!(collect(last).0.len(), 1);
    let began = Instant::now();
    while own.serving().active() > 0 && began.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    assert_eq!((own.stats().prompt_tokens - before, own.serving().active()), (wanted, 0), "it was never let run");
}

#[test]
fn a_file_of_few_bits_is_served_as_it_is() {
    let asked = EngineConfig { weights: ServedWeights::Int4, ..config(model_path()) };
    let few = Engine::load(asked).expect("loaded");
    let prompt = chat("What is the capital of France?");
    assert_eq!(run_on(&few, greedy(prompt.clone(), 12)).0, run(greedy(prompt, 12)).0);
}

#[test]
fn a_constraint_holds_and_log_probs_stay_the_models() {
    let constraint = crate::guide::Constraint::Regex("(Paris|London)!".to_owned());
    let guide = || Some(engine().guide(&constraint).expect("guide"));
    let answer = run(Request { guide: guide(), ..greedy(chat("What is the capital of France?"), 12) });
    assert!(["Paris!", "London!"].contains(&text(&answer).as_str()), "{}", text(&answer));
    assert_eq!(answer.1.reason, FinishReason::Stop { matched: None });
    let free = run(greedy(chat("What is the capital of France?"), 1));
    assert!(answer.0[0].logprob <= free.0[0].logprob && answer.0[0].logprob.is_finite());
    for seed in 0..6 {
        let sampling = Sampling { temperature: 2.0, top_p: 1.0, top_k: 0, seed };
        let request = Request { guide: guide(), sampling, ..greedy(chat("What is the capital of France?"), 12) };
        assert!(["Paris!", "London!"].contains(&text(&run(request)).as_str()));
    }
}

#[test]
fn requests_that_nobody_waits_for_make_room_in_a_full_line() {
    let own = Engine::load(EngineConfig { batch_max: 1, queue_max: 3, ..config(model_path()) }).expect("loaded");
    let mut first = own.generate(greedy(chat(STORY), 300)).expect("queued");
    assert!(matches!(first.blocking_recv(), Some(Event::Token(_))));
    let left: Vec<_> = (0..3).map(|_| own.generate(greedy(chat("Say hello."), 1)).expect("queued")).collect();
    assert!(matches!(own.generate(greedy(chat("Say hello."), 1)), Err(EngineError::Overloaded { queued: 3 })));
    drop(left);
    let last = own.generate(greedy(chat("Say hello."), 1)).expect("the others are gone");
    assert_eq!(own.stats().queued, 1);
    drop(first);
    assert_eq!(collect(last).0.len(), 1);
}

#[test]
fn a_schema_that_allows_nothing_is_refused_before_it_runs() {
    let schema = serde_json::json!({ "$defs": { "a": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" });
    let refusal = engine().guide(&crate::guide::Constraint::JsonSchema(schema)).expect_err("refused");
    assert!(matches!(&refusal, EngineError::Invalid(message) if message.contains("JSON schema")), "{refusal}");
}
