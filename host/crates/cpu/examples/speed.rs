//! Tokens per second of `Network::step` on random 4-bit weights of SmolLM2-135M's shape:
//! `cargo run --release -p reef-cpu --example speed [threads [streams]]`.
#![expect(clippy::expect_used, reason = "a measurement ends where it cannot go on")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use reef_cpu::{
    Adapter, Block, Factors, Groups, Linear, Matrix, Network, NetworkConfig, PAGE, Page, Pages, Rows, Span, Workspace,
};

const WIDTH: usize = 576;
const HEADS: usize = 9;
const HEADS_KV: usize = 3;
const HEAD_WIDTH: usize = 64;
const FFN: usize = 1536;
const LAYERS: usize = 30;
const VOCABULARY: usize = 49_152;

fn main() {
    let argument = |place| std::env::args().nth(place).and_then(|number| number.parse().ok());
    let (threads, only): (usize, Option<usize>) = (argument(1).unwrap_or(2), argument(2));
    let network = network();
    let adapter = adapter(&network);
    let pages = network.pages(4096);
    let mut work = Workspace::new(threads).expect("threads");
    println!("{threads} threads, {:.1} MB of weights a token", network.bytes() as f64 / 1e6);
    let wanted = |streams: &&usize| only.is_none_or(|only| only == **streams);
    let rows = [1, 8, 32].iter().filter(wanted).flat_map(|streams| [(*streams, None), (*streams, Some(&adapter))]);
    for (streams, adapter) in rows {
        let rates: Vec<f64> = (0..5).map(|_| decode(&network, &mut work, &pages, streams, adapter)).collect();
        println!(
            "decode {streams:>2} streams{}: {:.1} tok/s",
            if adapter.is_some() { " LoRA" } else { "" },
            median(rates)
        );
    }
    if only.is_some() {
        return;
    }
    let rates: Vec<f64> = (0..5).map(|_| prefill(&network, &mut work, &pages)).collect();
    println!("prefill 512: {:.1} tok/s", median(rates));
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn decode(network: &Network, work: &mut Workspace, pages: &Pages, streams: usize, adapter: Option<&Adapter>) -> f64 {
    const STEPS: usize = 48;
    let take = |count: usize| (0..count).map(|_| pages.take().expect("a page")).collect::<Vec<Arc<Page>>>();
    let mut held: Vec<Vec<Arc<Page>>> = (0..streams).map(|_| take((32 + STEPS).div_ceil(PAGE))).collect();
    let prompt: Vec<u32> = (0..32).collect();
    let (mut began, mut logits) = (Instant::now(), Vec::new());
    for step in 0..=STEPS {
        let (tokens, start) = if step == 0 { (&prompt[..], 0) } else { (&prompt[step % 32..][..1], 31 + step) };
        let mut spans: Vec<Span<'_>> =
            held.iter_mut().map(|pages| Span { tokens, start, pages, adapter, logits: true }).collect();
        network.step(work, &mut spans, &mut logits).expect("step");
        if step == 0 {
            began = Instant::now();
        }
    }
    (STEPS * streams) as f64 / began.elapsed().as_secs_f64()
}

fn prefill(network: &Network, work: &mut Workspace, pages: &Pages) -> f64 {
    let mut held: Vec<Arc<Page>> = (0..512 / PAGE).map(|_| pages.take().expect("a page")).collect();
    let tokens: Vec<u32> = (0..512).collect();
    let began = Instant::now();
    let span = Span { tokens: &tokens, start: 0, pages: &mut held, adapter: None, logits: true };
    network.step(work, &mut [span], &mut Vec::new()).expect("step");
    512.0 / began.elapsed().as_secs_f64()
}

fn groups(bits: u8, rows: usize, columns: usize) -> Matrix {
    let low = if bits == 4 { 0 } else { -100 };
    let quants = (0..rows * columns).map(|i| (i * 7919 % if bits == 4 { 16 } else { 200 }) as i8 + low).collect();
    let count = rows * columns / 32;
    let m = if bits == 4 { vec![-0.0625; count] } else { Vec::new() };
    let groups = Groups { bits, width: 32, quants, d: vec![1.0 / 128.0; count], m };
    Matrix::pack(&Rows::Groups(groups), rows, columns).expect("shape")
}

fn network() -> Network {
    let config = NetworkConfig {
        width: WIDTH,
        heads: HEADS,
        heads_kv: HEADS_KV,
        head_width: HEAD_WIDTH,
        ffn_width: FFN,
        norm_eps: 1e-5,
        rotations: (0..HEAD_WIDTH / 2).map(|i| 1e5f64.powf(-2.0 * i as f64 / HEAD_WIDTH as f64)).collect(),
        context: 1024,
    };
    let linear = |rows: &[usize], columns: usize| {
        Linear::new(rows.iter().map(|rows| groups(4, *rows, columns)).collect(), None).expect("parts")
    };
    let keys = HEADS_KV * HEAD_WIDTH;
    let block = || Block {
        attention_norm: vec![1.0; WIDTH],
        qkv: linear(&[WIDTH, keys, keys], WIDTH),
        query_norm: None,
        key_norm: None,
        o: linear(&[WIDTH], WIDTH),
        ffn_norm: vec![1.0; WIDTH],
        gate_up: linear(&[FFN, FFN], WIDTH),
        down: linear(&[WIDTH], FFN),
    };
    let blocks = (0..LAYERS).map(|_| block()).collect();
    Network::new(config, groups(8, VOCABULARY, WIDTH), blocks, vec![1.0; WIDTH], None).expect("network")
}

fn adapter(network: &Network) -> Adapter {
    let keys = HEADS_KV * HEAD_WIDTH;
    let shapes =
        [(WIDTH, WIDTH), (WIDTH, keys), (WIDTH, keys), (WIDTH, WIDTH), (WIDTH, FFN), (WIDTH, FFN), (FFN, WIDTH)];
    let layer = |_| {
        let factors = |(i, o)| Some(Factors { rank: 16, a: vec![1e-3; 16 * i], b: vec![1e-3; 16 * o] });
        Ok::<_, Infallible>(shapes.map(factors))
    };
    Adapter::new(network, (0..LAYERS).map(layer)).expect("no error").expect("adapter")
}
