//! Steps of a small random network: what an answer may not depend on.

use std::convert::Infallible;
use std::sync::Arc;

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};

use super::*;

const WIDTH: usize = 48;
const FFN: usize = 70;
const VOCABULARY: usize = 50;
const LAYERS: usize = 2;

struct Numbers(ChaCha12Rng);

impl Numbers {
    fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.0.random::<f32>() - 0.5).collect()
    }

    fn linear(&mut self, rows: &[usize], columns: usize, bias: bool) -> Linear {
        let parts =
            rows.iter().map(|rows| Matrix::pack(&Rows::F32(self.take(rows * columns)), *rows, columns).expect("fits"));
        let parts: Vec<Matrix> = parts.collect();
        let bias = bias.then(|| self.take(rows.iter().sum()));
        Linear::new(parts, bias).expect("parts")
    }
}

/// Qwen's biases and norms included.
fn network() -> Network {
    let mut numbers = Numbers(ChaCha12Rng::seed_from_u64(3));
    let config = NetworkConfig {
        width: WIDTH,
        heads: 4,
        heads_kv: 2,
        head_width: 20,
        ffn_width: FFN,
        norm_eps: 1e-5,
        rotations: (0..10).map(|i| 0.5f64.powi(i)).collect(),
        context: 100,
    };
    let blocks = (0..LAYERS).map(|_| Block {
        attention_norm: numbers.take(WIDTH),
        qkv: numbers.linear(&[80, 40, 40], WIDTH, true),
        query_norm: Some(numbers.take(20)),
        key_norm: Some(numbers.take(20)),
        o: numbers.linear(&[WIDTH], 80, false),
        ffn_norm: numbers.take(WIDTH),
        gate_up: numbers.linear(&[FFN, FFN], WIDTH, false),
        down: numbers.linear(&[WIDTH], FFN, false),
    });
    let blocks = blocks.collect();
    let embedding = Matrix::pack(&Rows::F32(numbers.take(VOCABULARY * WIDTH)), VOCABULARY, WIDTH).expect("fits");
    Network::new(config, embedding, blocks, numbers.take(WIDTH), None).expect("network")
}

fn adapter(network: &Network, seed: u64, rank: usize) -> Adapter {
    let mut numbers = Numbers(ChaCha12Rng::seed_from_u64(seed));
    let shapes = [(WIDTH, 80), (WIDTH, 40), (WIDTH, 40), (80, WIDTH), (WIDTH, FFN), (WIDTH, FFN), (FFN, WIDTH)];
    let layers = (0..LAYERS).map(|layer| {
        let mut index = 0;
        Ok::<_, Infallible>(shapes.map(|(input, output)| {
            index += 1;
            // Not every projection has factors.
            let (a, b) = (numbers.take(rank * input), numbers.take(rank * output));
            (!(index + layer + seed as usize).is_multiple_of(4)).then_some(Factors { rank, a, b })
        }))
    });
    Adapter::new(network, layers).expect("no error").expect("adapter")
}

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * 7 + seed * 13) % VOCABULARY as u32).collect()
}

fn take(pages: &Pages, positions: usize) -> Vec<Arc<Page>> {
    (0..positions.div_ceil(PAGE)).map(|_| pages.take().expect("a page")).collect()
}

/// Logits after the last token, fed in parts that end at `cuts` and at the end.
fn logits(network: &Network, tokens: &[u32], cuts: &[usize], adapter: Option<&Adapter>) -> Vec<f32> {
    let (mut work, pages) = (Workspace::new(2).expect("threads"), network.pages(20));
    let mut held = take(&pages, tokens.len());
    let mut start = 0;
    let mut last = Vec::new();
    for end in cuts.iter().copied().chain([tokens.len()]) {
        let part = Span { tokens: &tokens[start..end], start, pages: &mut held, adapter, logits: true };
        network.step(&mut work, &mut [part], &mut last).expect("step");
        start = end;
    }
    last
}

#[test]
fn parts_of_any_size_give_the_same_logits() {
    let network = network();
    let tokens = tokens(1, 70);
    let whole = logits(&network, &tokens, &[], None);
    assert!(whole.iter().all(|logit| logit.is_finite()) && whole.len() == VOCABULARY);
    for cuts in [&[1usize][..], &[15], &[16], &[17], &[31, 32, 33], &[64, 69], &[5, 21, 37, 53]] {
        assert_eq!(logits(&network, &tokens, cuts, None), whole, "{cuts:?}");
    }
    let singly: Vec<usize> = (1..70).collect();
    assert_eq!(logits(&network, &tokens, &singly, None), whole);
}

#[test]
fn a_batch_with_adapters_gives_each_its_own_logits() {
    let network = network();
    let adapters = [adapter(&network, 1, 4), adapter(&network, 2, 16), adapter(&network, 3, 20)];
    let which = [None, Some(&adapters[0]), Some(&adapters[0]), Some(&adapters[1]), None, Some(&adapters[2])];
    let texts: Vec<Vec<u32>> = (0..6).map(|i| tokens(i, 3 + 9 * i as usize)).collect();
    let alone: Vec<Vec<f32>> =
        texts.iter().zip(which).map(|(text, adapter)| logits(&network, text, &[], adapter)).collect();
    let (mut work, pages) = (Workspace::new(3).expect("threads"), network.pages(40));
    let mut held: Vec<Vec<Arc<Page>>> = texts.iter().map(|text| take(&pages, text.len())).collect();
    let mut spans: Vec<Span<'_>> = texts
        .iter()
        .zip(which)
        .zip(&mut held)
        .map(|((tokens, adapter), pages)| Span { tokens, start: 0, pages, adapter, logits: true })
        .collect();
    let mut together = Vec::new();
    network.step(&mut work, &mut spans, &mut together).expect("step");
    for (index, (together, alone)) in together.chunks_exact(VOCABULARY).zip(&alone).enumerate() {
        assert_eq!(together, alone, "{index}");
    }
    assert_ne!(logits(&network, &texts[5], &[], None), alone[5]);
}

#[test]
fn shared_pages_are_read_and_never_written() {
    let network = network();
    let (mut work, pages) = (Workspace::new(1).expect("threads"), network.pages(20));
    let tokens = tokens(2, 40);
    let mut first = take(&pages, 40);
    let span = Span { tokens: &tokens[..32], start: 0, pages: &mut first, adapter: None, logits: false };
    let mut made = vec![1.0];
    network.step(&mut work, &mut [span], &mut made).expect("step");
    assert!(made.is_empty());
    let mut second: Vec<Arc<Page>> = first[..2].iter().map(Arc::clone).chain(take(&pages, 8)).collect();
    let span = Span { tokens: &tokens[32..], start: 32, pages: &mut second, adapter: None, logits: true };
    network.step(&mut work, &mut [span], &mut made).expect("step");
    assert_eq!(made, logits(&network, &tokens, &[], None));
    let span = Span { tokens: &tokens[20..], start: 20, pages: &mut second, adapter: None, logits: true };
    assert_eq!(network.step(&mut work, &mut [span], &mut made), Err(StepError::Shared));
    let span = Span { tokens: &[50], start: 32, pages: &mut second, adapter: None, logits: true };
    assert_eq!(network.step(&mut work, &mut [span], &mut made), Err(StepError::Token(50)));
    let span = Span { tokens: &tokens, start: 32, pages: &mut second, adapter: None, logits: true };
    assert_eq!(network.step(&mut work, &mut [span], &mut made), Err(StepError::Position(72)));
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    let rows = Rows::F32(vec![0.0; 40]);
    assert!(Matrix::pack(&rows, 5, 9).is_none() && Matrix::pack(&rows, 0, 40).is_none());
    let part = || Matrix::pack(&rows, 5, 8).expect("fits");
    let other = Matrix::pack(&rows, 8, 5).expect("fits");
    assert!(Linear::new(vec![part(), other], None).is_none() && Linear::new(Vec::new(), None).is_none());
    assert!(Linear::new(vec![part()], Some(vec![0.0; 4])).is_none());
    let network = network();
    assert!(Adapter::new::<Infallible>(&network, []).expect("no error").is_none());
}
