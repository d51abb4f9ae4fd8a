//! Training by several workers: real processes of this test binary over TCP, and peers that die or lie.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reef_core::ReleaseId;

use super::super::control::TrainControl;
use super::super::fixture::{alone, sample, tiny_model, trainer_over};
use super::super::reduce::Reduce;
use super::super::trainer::{Setting, Trainer};
use super::super::workers::testing::{member, star, threads_of};
use super::super::workers::{Launch, Transport, Workers};
use super::{ADAM, Policy, PolicyGradient, Reduction, Weight, advantages, objective, refs, response_tokens, samples};
use crate::engine::ServingLoad;
use crate::error::EngineError;
use crate::lora_config::LoraConfig;

/// Tells a process of this binary that it is a worker.
const WORKER: &str = "REEF_TEST_TRAINING_WORKER";

/// In a process that `workers` starts this is the worker; else it says that no worker is made by accident.
#[test]
fn a_process_without_instructions_is_no_worker() {
    if std::env::var_os(WORKER).is_some() {
        member(tiny_model()).expect("it works until the first rank ends");
        return;
    }
    let refused = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "train::tests::workers::a_process_without_instructions_is_no_worker"])
        .env(WORKER, "1")
        .stdin(std::process::Stdio::null())
        .output()
        .expect("it starts");
    assert!(!refused.status.success(), "without instructions it fails");
    assert!(String::from_utf8_lossy(&refused.stdout).contains("instructions of a training worker"));
}

/// So many ranks, this process included.
fn workers(world: usize) -> Workers {
    joined_by(world, Transport::Tcp)
}

fn joined_by(world: usize, transport: Transport) -> Workers {
    let name = "train::tests::workers::a_process_without_instructions_is_no_worker";
    // The environment of a child is set by `env`, because a launch has none.
    let program = std::env::current_exe().expect("this program").into_os_string();
    let arguments = vec![format!("{WORKER}=1").into(), program, "--exact".into(), name.into()];
    Workers::new(Launch { program: "env".into(), arguments }, world, transport).expect("workers")
}

fn fresh() -> LoraConfig {
    LoraConfig { rank: 4, alpha: 8.0, seed: 1, ..LoraConfig::default() }
}

/// A trainer over the tiny model with these workers.
fn open(workers: &mut Workers, files: &[(String, Vec<u8>)]) -> Result<Trainer, EngineError> {
    let control = TrainControl::default();
    let reduce = star(workers, threads_of(&alone(Arc::default())), &control)?;
    let setting = Setting { reduce, ..alone(Arc::new(ServingLoad::default())) };
    Trainer::over(tiny_model(), setting, &fresh(), files)
}

fn apart(some: &[f32], others: &[f32]) -> f32 {
    assert_eq!(some.len(), others.len());
    let largest = others.iter().fold(0.0f32, |most, number| most.max(number.abs()));
    some.iter().zip(others).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn two_and_three_processes_have_the_gradient_of_one() {
    let samples = samples();
    let terms = objective(Weight::Masked { low: 0.2, high: 6.0 }, &samples);
    // After one step no factor is 0 any more, so every parameter has a gradient.
    let mut one = trainer_over(&tiny_model(), None);
    one.train(&refs(&samples), &terms, &ADAM).expect("step");
    let files = one.checkpoint().expect("files");
    let mut one = trainer_over(&tiny_model(), Some(&files));
    let alone = one.forward_backward(&refs(&samples), &terms).expect("pass");
    for world in [2, 3] {
        let mut workers = workers(world);
        let mut several = open(&mut workers, &files).expect("trainer");
        let together = several.forward_backward(&refs(&samples), &terms).expect("pass");
        let far = apart(&several.gradient.flat(), &one.gradient.flat());
        assert!(far < 1e-5, "{world} ranks: {far}");
        for (name, value) in &alone {
            assert!((together[name] - value).abs() < 1e-5 * value.abs().max(1.0), "{name}: {value} {together:?}");
        }
    }
}

#[test]
fn all_ranks_hold_the_same_adapter_after_every_kind_of_call() {
    let samples = samples();
    let items = refs(&samples);
    let calls = |trainer: &mut Trainer| {
        let teacher = trainer.add_policy(&[]).expect("the base model");
        assert_eq!(teacher, Policy::Added(0));
        trainer.train(&items, &objective(Weight::Reinforce, &samples), &ADAM).expect("step");
        trainer.update_ema(0.1).expect("average");
        trainer.forward_backward(&items, &objective(Weight::Ratio, &samples)).expect("pass");
        trainer.backward(&items, &advantages(&samples)).expect("pass");
        trainer.optimizer_step(&ADAM).expect("step");
        trainer.forward_backward(&items, &objective(Weight::Ratio, &samples)).expect("pass");
        // Nothing to learn, and the gradient is forgotten everywhere.
        let zeros = PolicyGradient::new(Weight::Reinforce, vec![0.0; response_tokens(&samples)], Reduction::TokenSum);
        assert_eq!(trainer.train(&items, &[zeros.into()], &ADAM).expect("skipped")["skipped"], 1.0);
        trainer.train(&items, &objective(Weight::Ratio, &samples), &ADAM).expect("step");
        trainer.checkpoint().expect("files")
    };
    let mut workers = workers(2);
    let mut several = open(&mut workers, &[]).expect("trainer");
    let files = calls(&mut several);
    // The norms that both ranks settle on after each call are those of equal adapters, bit for bit; once more, on
    // the state of now: a rank that had another adapter would have another gradient.
    several.forward_backward(&items, &objective(Weight::Ratio, &samples)).expect("in step");
    let mut one = trainer_over(&tiny_model(), None);
    let wanted = calls(&mut one);
    for ((name, bytes), (wanted_name, wanted_bytes)) in files.iter().zip(&wanted) {
        assert_eq!((name, bytes.len()), (wanted_name, wanted_bytes.len()));
    }
    let logp = |trainer: &mut Trainer| trainer.forward(Policy::Current, &items).expect("log-probs");
    assert!(apart(&logp(&mut several), &logp(&mut one)) < 1e-4);
    // A second trainer beside the first, and a first one again, are their own.
    let mut second = open(&mut workers, &files).expect("trainer");
    assert!(second.checkpoint().expect("files") == files);
    second.train(&items, &objective(Weight::Ratio, &samples), &ADAM).expect("step");
    several.train(&items, &objective(Weight::Ratio, &samples), &ADAM).expect("step");
    drop(several);
    second.train(&items, &objective(Weight::Ratio, &samples), &ADAM).expect("step");
}

#[test]
fn a_worker_that_dies_fails_the_step_and_the_next_trainer_has_new_ones() {
    let samples = samples();
    let mut workers = workers(2);
    let mut trainer = open(&mut workers, &[]).expect("trainer");
    let terms = objective(Weight::Reinforce, &samples);
    trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
    workers.kill();
    let lost = trainer.train(&refs(&samples), &terms, &ADAM).expect_err("its worker is dead");
    assert!(matches!(lost, EngineError::Worker { rank: 1, .. }), "{lost}");
    let after = trainer.checkpoint().expect_err("nobody knows what the other did");
    assert!(after.to_string().contains("open another trainer"), "{after}");
    drop(trainer);
    let mut trainer = open(&mut workers, &[]).expect("new workers");
    trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
    // One that dies between two steps costs none of them.
    drop(trainer);
    workers.kill();
    let mut trainer = open(&mut workers, &[]).expect("new workers");
    trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
}

/// A trainer of rank 0 whose only peer is `lie`, which speaks over a connection of its own.
fn against(lie: impl FnOnce(TcpStream) + Send + 'static, silence_max: Duration) -> (Trainer, TrainControl) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("address");
    std::thread::spawn(move || lie(TcpStream::connect(address).expect("connects")));
    let (stream, _) = listener.accept().expect("accepted");
    let link = super::super::workers::testing::leader(stream, silence_max).expect("link");
    let setting = alone(Arc::new(ServingLoad::default()));
    let control = setting.control.clone();
    let setting = Setting { reduce: Reduce::Loopback { link, trainer: 0 }, ..setting };
    (Trainer::over(tiny_model(), setting, &fresh(), &[]).expect("opened"), control)
}

/// Reads one frame and throws it away.
fn skip(stream: &mut TcpStream) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("a head");
    let length = u64::from_le_bytes(head[1..].try_into().expect("8 bytes"));
    std::io::copy(&mut stream.take(length), &mut std::io::sink()).expect("a body");
}

fn send(stream: &mut TcpStream, kind: u8, length: u64, body: &[u8]) {
    stream.write_all(&[&[kind][..], &length.to_le_bytes(), body].concat()).expect("sent");
}

/// Answers the call that opens the trainer, and reads the next one.
fn opened(stream: &mut TcpStream) {
    skip(stream);
    send(stream, 5, 8, &0f64.to_le_bytes());
    skip(stream);
}

#[test]
fn a_worker_that_lies_is_named_and_the_weights_stay_as_they_were() {
    type Lie = fn(TcpStream);
    let lies: [(Lie, &str); 6] = [
        (
            |mut stream| {
                opened(&mut stream);
                send(&mut stream, 3, 8, &[0; 8])
            },
            "bytes of gradient",
        ),
        (
            |mut stream| {
                opened(&mut stream);
                send(&mut stream, 3, u64::MAX, &[])
            },
            "at most",
        ),
        (
            |mut stream| {
                opened(&mut stream);
                send(&mut stream, 4, 0, &[])
            },
            "frame of kind 4",
        ),
        (
            |mut stream| {
                opened(&mut stream);
                send(&mut stream, 6, 4, b"oops")
            },
            "oops",
        ),
        (
            |mut stream| {
                opened(&mut stream);
                send(&mut stream, 3, 100, &[0; 8])
            },
            "middle of a frame",
        ),
        (|mut stream| opened(&mut stream), "in the middle of a step"),
    ];
    let samples = samples();
    for (lie, told) in lies {
        let (mut trainer, _) = against(lie, Duration::from_secs(60));
        let before = trainer.policies.current.to_files().expect("files");
        let refused = trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM);
        let refused = refused.expect_err(told).to_string();
        assert!(refused.starts_with("training worker 1: ") && refused.contains(told), "{told}: {refused}");
        assert!(before == trainer.policies.current.to_files().expect("files"), "{told}");
    }
}

#[test]
fn a_worker_whose_gradient_differs_or_is_not_finite_is_found_out() {
    let samples = samples();
    let numbers = trainer_over(&tiny_model(), None).gradient.flat().len();
    let part = move |number: f32| {
        let sums = Vec::<u8>::from_iter([0u8; 8 * super::super::tally::SUMS as usize]);
        [number.to_le_bytes().repeat(numbers), sums].concat()
    };
    let (mut trainer, _) = against(
        move |mut stream| {
            opened(&mut stream);
            let part = part(f32::NAN);
            send(&mut stream, 3, part.len() as u64, &part);
        },
        Duration::from_secs(60),
    );
    let refused = trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect_err("NaN");
    assert!(refused.to_string().contains("not finite"), "{refused}");

    let (mut trainer, _) = against(
        move |mut stream| {
            opened(&mut stream);
            let part = part(0.0);
            send(&mut stream, 3, part.len() as u64, &part);
            skip(&mut stream);
            send(&mut stream, 5, 8, &1f64.to_le_bytes());
        },
        Duration::from_secs(60),
    );
    let refused = trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect_err("another");
    assert!(refused.to_string().contains("not that of the others"), "{refused}");
}

#[test]
fn a_silent_worker_is_waited_for_no_longer_than_told_or_than_the_step_lives() {
    let silent = |mut stream: TcpStream| {
        opened(&mut stream);
        // Until the other end closes it.
        let _ = stream.read(&mut [0]);
    };
    let samples = samples();
    let terms = objective(Weight::Reinforce, &samples);
    let (mut trainer, _) = against(silent, Duration::from_millis(200));
    let refused = trainer.train(&refs(&samples), &terms, &ADAM).expect_err("silence").to_string();
    assert!(refused.contains("said nothing for 0.2 s"), "{refused}");

    let (mut trainer, control) = against(silent, Duration::from_secs(600));
    let began = Instant::now();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        control.cancel();
    });
    assert!(matches!(trainer.train(&refs(&samples), &terms, &ADAM), Err(EngineError::Cancelled)));
    assert!(began.elapsed() < Duration::from_secs(300), "the watchdog ends the wait");
}

#[test]
fn nccl_between_processors_is_refused_with_what_it_needs() {
    let refused = open(&mut joined_by(2, Transport::Nccl), &[]).expect_err("no GPU").to_string();
    assert!(refused.starts_with("device nccl: ") && refused.contains("training.reduce: tcp"), "{refused}");
}

#[test]
fn a_program_that_is_no_worker_is_told_with_its_end() {
    let no = |program: &str| {
        let mut workers = Workers::new(Launch { program: program.into(), arguments: Vec::new() }, 2, Transport::Tcp)
            .expect("workers");
        open(&mut workers, &[]).expect_err("no worker").to_string()
    };
    assert!(no("/no/such/program").contains("cannot be started"));
    let refused = no("false");
    assert!(refused.contains("training worker 1") || refused.contains("ended"), "{refused}");
    for world in [0, 1, 65] {
        assert!(
            Workers::new(Launch { program: "false".into(), arguments: Vec::new() }, world, Transport::Tcp).is_err()
        );
    }
}

#[test]
fn only_what_the_release_sampled_itself_is_compared_with_serving() {
    let release = ReleaseId::parse("a".repeat(40)).expect("id");
    let open = |files: &[(String, Vec<u8>)]| {
        let setting = Setting { release: Some(release.clone()), ..alone(Arc::default()) };
        Trainer::over(tiny_model(), setting, &fresh(), files).expect("trainer")
    };
    let mut trainer = open(&[]);
    let mut samples = [sample(0, &[5, 9, 11, 3, 42], 2), sample(1, &[5, 9, 11, 3, 17], 2), sample(2, &[7, 8, 9], 1)];
    super::record(&mut trainer, &mut samples);
    // The first is its own and half a nat off; the second is another release's, the third is no record.
    for token in &mut samples[0].trajectory.logprobs {
        *token += 0.5;
    }
    samples[0].release = release.clone();
    samples[2].release = release.clone();
    samples[2].records.clear();
    samples[1].trajectory.logprobs = vec![-40.0; 2];
    samples[2].trajectory.logprobs = vec![0.0];
    let terms = objective(Weight::Reinforce, &samples);
    let first = trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
    assert!((first["own_logprob_abs_diff"] - 0.5).abs() < 1e-5, "{first:?}");
    let again = trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
    assert!(!again.contains_key("own_logprob_abs_diff"), "the adapter has moved: {again:?}");
    let resumed = open(&trainer.checkpoint().expect("files")).train(&refs(&samples), &terms, &ADAM).expect("step");
    assert!(resumed.contains_key("own_logprob_abs_diff"), "{resumed:?}");
}

#[test]
fn effective_tokens_are_those_with_a_gradient() {
    let mut trainer = trainer_over(&tiny_model(), None);
    let mut samples = [sample(0, &[5, 9, 11, 3, 42], 3), sample(1, &[5, 9, 11, 3, 17], 2)];
    super::record(&mut trainer, &mut samples);
    samples[0].trajectory.mask[0] = 0;
    // A ratio of e is outside the bounds.
    samples[1].trajectory.logprobs[0] -= 1.0;
    let gradient = |advantages: &[f32]| {
        let weight = Weight::Masked { low: 0.5, high: 2.0 };
        PolicyGradient::new(weight, advantages.to_vec(), Reduction::TokenSum)
    };
    let mut effective = |gradient: PolicyGradient| {
        trainer.forward_backward(&refs(&samples), &[gradient.into()]).expect("pass")["effective_tokens"]
    };
    assert_eq!(effective(gradient(&[1.0; 5])), 3.0, "one is an observation, one is dropped");
    assert_eq!(effective(gradient(&[1.0, 0.0, 1.0, 1.0, 1.0])), 2.0, "one has no advantage");
    assert_eq!(effective(PolicyGradient { entropy: 0.1, ..gradient(&[1.0; 5]) }), 4.0, "entropy acts on all actions");
}
