//! The scheduler: batches, seeds, log-probs, stops, cancellation, limits.

use std::time::{Duration, Instant};

use tch::Kind;

use super::*;
use crate::error::EngineError;

#[test]
fn a_batch_answers_as_each_request_alone() {
    let questions = [
        "What is the capital of France?",
        "Count to five.",
        "Say hello.",
        "Why is the sky blue?",
        "What is the capital of France?",
    ];
    let alone: Vec<Vec<u32>> = questions.iter().map(|q| ids(&run(greedy(chat(q), 24)))).collect();
    assert_eq!(run_together(questions.iter().map(|q| greedy(chat(q), 24)).collect()), alone);
}

#[test]
fn the_answer_is_the_concatenated_text_and_its_tokens_decoded() {
    let answer = run(greedy(chat("What is the capital of France?"), 40));
    assert!(text(&answer).contains("Paris"), "{}", text(&answer));
    assert_eq!(text(&answer), engine().decode(&ids(&answer)).expect("decoded"));
    assert_eq!(answer.1.reason, FinishReason::Stop { matched: None });
    assert_eq!(answer.0.last().map(|token| (token.id, token.text.as_str())), Some((2, "")));
}

#[test]
fn equal_seeds_reproduce_an_answer_and_others_differ() {
    let sampled = |seed| {
        let sampling = Sampling { temperature: 1.0, top_p: 0.95, top_k: 50, seed };
        ids(&run(Request { sampling, ..greedy(chat("Tell me a story."), 16) }))
    };
    let first = sampled(11);
    assert_eq!(first, sampled(11));
    assert_ne!(first, sampled(12));
}

#[test]
fn log_probs_are_those_of_the_sampling_temperature() {
    let sampling = Sampling { temperature: 0.7, top_p: 1.0, top_k: 0, seed: 3 };
    let prompt = chat("Tell me a story.");
    let (tokens, _) = run(Request { sampling, top_logprobs: 5, ..greedy(prompt.clone(), 8) });
    let model = engine().model().expect("model");
    let all: Vec<i64> = prompt.iter().copied().chain(tokens.iter().map(|t| t.id)).map(i64::from).collect();
    let logprobs = tch::no_grad(|| {
        let hidden = model.hidden_train(&Tensor::from_slice(&all).unsqueeze(0), None).expect("hidden");
        (model.logits(&hidden.squeeze_dim(0)).expect("logits") / 0.7).log_softmax(-1, Kind::Float)
    });
    for (index, token) in tokens.iter().enumerate() {
        let row = logprobs.get((prompt.len() + index) as i64 - 1);
        assert!((row.double_value(&[i64::from(token.id)]) as f32 - token.logprob).abs() < 1e-3);
        assert!((row.exp().sum(Kind::Double).double_value(&[]) - 1.0).abs() < 1e-4);
        assert!(token.top.len() == 5 && token.top[0].1 >= token.top[4].1 && token.top[0].1 >= token.logprob);
    }
}

#[test]
fn stop_strings_never_leak() {
    let request = || greedy(chat("What is the capital of France?"), 24);
    let whole = text(&run(request()));
    let stop = whole.get(10..16).expect("long enough").to_owned();
    let answer = run(Request { stop: vec!["never seen".to_owned(), stop.clone()], ..request() });
    assert_eq!(answer.1.reason, FinishReason::Stop { matched: Some(stop.clone()) });
    assert_eq!(text(&answer), whole[..whole.find(&stop).expect("present")]);
}

#[test]
fn a_dropped_receiver_frees_its_row() {
    let own = Engine::load(EngineConfig { batch_max: 1, ..config(model_path()) }).expect("loaded");
    let mut first = own.generate(greedy(chat("Write a very long story."), 400)).expect("queued");
    assert!(matches!(first.blocking_recv(), Some(Event::Token(_))));
    let second = own.generate(greedy(chat("Say hello."), 4)).expect("queued");
    assert_eq!((own.stats().active, own.stats().queued), (1, 1));
    drop(first);
    assert_eq!(collect(second).0.len(), 4);
    let begin = Instant::now();
    while own.serving().active() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(5));
        std::thread::yield_now();
    }
    assert!(own.stats().output_tokens < 200);
}

#[test]
fn a_full_queue_refuses_and_bad_requests_are_named() {
    let own = Engine::load(EngineConfig { batch_max: 1, queue_max: 1, ..config(model_path()) }).expect("loaded");
    let mut held = vec![own.generate(greedy(chat("Write a long story."), 200)).expect("queued")];
    let refusal = (0..4).find_map(|_| match own.generate(greedy(chat("hello"), 1)) {
        Ok(events) => {
            held.push(events);
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(refusal, Some(EngineError::Overloaded { .. })), "{refusal:?}");
    let long = own.generate(greedy(vec![20; 512], 1));
    assert!(matches!(long, Err(EngineError::ContextExceeded { prompt: 512, max: 512 })));
    let sampling = |temperature, top_p| Sampling { temperature, top_p, top_k: 0, seed: 0 };
    for request in [
        greedy(Vec::new(), 1),
        greedy(vec![60_000], 1),
        greedy(vec![20], 0),
        Request { sampling: sampling(f32::NAN, 1.0), ..greedy(vec![20], 1) },
        Request { sampling: sampling(1.0, 0.0), ..greedy(vec![20], 1) },
        Request { stop: vec!["x".repeat(2000)], ..greedy(vec![20], 1) },
    ] {
        assert!(matches!(own.generate(request), Err(EngineError::Invalid(_))));
    }
}

#[test]
fn the_context_ends_an_answer() {
    let mut prompt = chat("Write a long story.");
    prompt.resize(508, 20);
    let sampling = Sampling { temperature: 2.0, top_p: 1.0, top_k: 0, seed: 1 };
    let (tokens, finish) = run(Request { sampling, ..greedy(prompt, 100) });
    assert_eq!((tokens.len(), finish.reason), (4, FinishReason::Length));
}

#[test]
fn two_adapters_in_one_batch_answer_as_each_alone() {
    let weights = [Weights::Adapter(adapter(1)), Weights::Base, Weights::Adapter(adapter(2))];
    let request = |weights: &Weights| Request { weights: weights.clone(), ..greedy(chat("Say hello."), 12) };
    let alone: Vec<Vec<u32>> = weights.iter().map(|w| ids(&run(request(w)))).collect();
    assert_eq!(run_together(weights.iter().map(request).collect()), alone);
    assert!(alone[0] != alone[1] && alone[1] != alone[2] && alone[0] != alone[2], "{alone:?}");
}

#[test]
fn a_failing_request_leaves_the_others_alone() {
    let broken = lora(1);
    let _ = tch::no_grad(|| broken.layers[0].o.b.shallow_clone().fill_(f64::NAN));
    let weights = Weights::Adapter(engine().adapter(&broken).expect("adapter"));
    let wanted = ids(&run(greedy(chat("Say hello."), 12)));
    let healthy = engine().generate(greedy(chat("Say hello."), 12)).expect("queued");
    let mut failing = engine().generate(Request { weights, ..greedy(chat("Count to five."), 12) }).expect("queued");
    assert!(matches!(failing.blocking_recv(), Some(Event::Failed(message)) if message.contains("not finite")));
    assert_eq!(ids(&collect(healthy)), wanted);
}

#[test]
fn what_a_failed_request_wrote_does_not_reach_the_next_one_in_its_row() {
    let own = Engine::load(EngineConfig { batch_max: 2, ..config(model_path()) }).expect("loaded");
    let broken = lora(1);
    let _ = tch::no_grad(|| broken.layers[0].o.b.shallow_clone().fill_(f64::NAN));
    let weights = Weights::Adapter(engine().adapter(&broken).expect("adapter"));
    let wanted = ids(&run(greedy(chat("Say hello."), 6)));
    let long = "Write a very long story about a sailor, a lighthouse and the sea. ".repeat(4);
    // The long request makes both rows longer than what the last one writes.
    let mut beside = own.generate(greedy(chat(&long), 300)).expect("queued");
    assert!(matches!(beside.blocking_recv(), Some(Event::Token(_))));
    let mut failing = own.generate(Request { weights, ..greedy(chat(&long), 12) }).expect("queued");
    assert!(matches!(failing.blocking_recv(), Some(Event::Failed(message)) if message.contains("not finite")));
    let next = own.generate(greedy(chat("Say hello."), 6)).expect("queued");
    assert_eq!(ids(&collect(next)), wanted);
    assert_eq!(own.stats().active, 1, "the long request ended too early for this test");
}

#[test]
fn a_temperature_next_to_zero_is_greedy() {
    let sampling = Sampling { temperature: 1e-38, top_p: 1.0, top_k: 0, seed: 5 };
    let prompt = chat("Say hello.");
    let wanted = run(greedy(prompt.clone(), 6));
    assert_eq!(ids(&run(Request { sampling, ..greedy(prompt, 6) })), ids(&wanted));
}
