//! Figures of this machine, printed by hand:
//! `cargo test -p reef-engine speed -- --ignored --nocapture`.

use std::time::Instant;

use super::*;

#[test]
#[ignore = "prints figures of this machine"]
fn speed() {
    let config = EngineConfig { batch_max: 32, context_max: 1024, ..config(model_path()) };
    let own = Engine::load(config).expect("loaded");
    let run = |requests: Vec<Request>| {
        let begin = Instant::now();
        let started: Vec<_> = requests.into_iter().map(|request| own.generate(request).expect("queued")).collect();
        let tokens: usize = started.into_iter().map(|events| collect(events).0.len()).sum();
        (tokens as f64, begin.elapsed().as_secs_f64())
    };
    let story = |shift: u32| (0..600).map(|i| 1000 + shift + i * 7).collect::<Vec<u32>>();
    run(vec![greedy(story(0), 1)]);
    let (_, seconds) = run(vec![greedy(story(1), 1)]);
    println!("prefill: {:.0} tok/s", 600.0 / seconds);
    for weights in [Weights::Base, Weights::Adapter(adapter(1))] {
        for rows in [1u32, 8, 32] {
            let request = |i: u32| {
                let sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: 0, seed: u64::from(i) };
                let prompt = vec![1000 + i, 2000, 3000, 4000 + i];
                Request { sampling, weights: weights.clone(), ..greedy(prompt, 48) }
            };
            let (tokens, seconds) = run((0..rows).map(request).collect());
            println!("decode, adapter {}, {rows} rows: {:.0} tok/s", weights.adapter().is_some(), tokens / seconds);
        }
    }
}
