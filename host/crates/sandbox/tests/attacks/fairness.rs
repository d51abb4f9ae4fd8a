//! One tenant that spins beside tenants with short calls: the others get their answers, and the spinning calls their
//! deadline. How long both take is measured by `reef bench --sandbox`.

use std::time::{Duration, Instant};

use reef_sandbox::{FaultKind, Recipe, Sandbox, SandboxConfig};

use crate::guest::*;

/// Guest time after which a spinning call is stopped.
const SPIN_MS: u64 = 200;
/// Calls of the spinning tenant that are in flight.
const SPINNERS: usize = 4;
/// Tenants with short calls, each one call at a time.
const LIGHT_TENANTS: usize = 9;
/// Pause of a light tenant between two calls.
const PAUSE: Duration = Duration::from_millis(5);

fn fair_sandbox() -> Sandbox {
    sandbox(SandboxConfig { fuel_select: u64::MAX / 2, wall_select_ms: SPIN_MS, ..small() })
}

/// Makes `count` calls of each light tenant; every one gets its answer.
async fn light(recipe: &Recipe, count: usize) {
    let tenants: Vec<_> = (0..LIGHT_TENANTS)
        .map(|tenant| {
            let recipe = recipe.clone();
            tokio::spawn(async move {
                for _ in 0..count {
                    let outcome = recipe.select_samples(call_of(&format!("light-{tenant}"))).await;
                    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
                    tokio::time::sleep(PAUSE).await;
                }
            })
        })
        .collect();
    for tenant in tenants {
        tenant.await.expect("joined");
    }
}

/// Keeps [`SPINNERS`] calls in flight, each of which meets its deadline, until they are stopped.
struct Spinning(Vec<tokio::task::JoinHandle<()>>);

impl Spinning {
    fn start(recipe: &Recipe) -> Self {
        let spin = |recipe: Recipe| async move {
            loop {
                let outcome = recipe.select_samples(call_of("spinner")).await;
                assert_eq!(kind(&outcome), FaultKind::Deadline);
            }
        };
        Self((0..SPINNERS).map(|_| tokio::spawn(spin(recipe.clone()))).collect())
    }

    async fn stop(self) {
        for task in &self.0 {
            task.abort();
        }
        for task in self.0 {
            assert!(task.await.is_err_and(|error| error.is_cancelled()));
        }
    }
}

/// Nine tenants with short calls beside one with four spinning ones → all of theirs get their answers, 60 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_calls_pass_long_ones() {
    let sandbox = fair_sandbox();
    let spinner = load(&sandbox, Guest::doing("(loop $spin (br $spin)) unreachable")).await.expect("loads");
    let good = load(&sandbox, Guest::good()).await.expect("loads");
    let spinning = Spinning::start(&spinner);
    tokio::time::sleep(Duration::from_millis(100)).await;
    within(60_000, light(&good, 50)).await;
    spinning.stop().await;
    let started = Instant::now();
    while sandbox.gauges().calls_running > 0 {
        assert!(started.elapsed() < Duration::from_secs(30), "calls that were dropped end");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A call that runs alone and long → it is stopped at its deadline although it runs when nobody else wants to, 30 s.
#[tokio::test]
async fn a_spinning_guest_is_stopped_soon_after_its_deadline() {
    let sandbox = fair_sandbox();
    let spinner = load(&sandbox, Guest::doing("(loop $spin (br $spin)) unreachable")).await.expect("loads");
    let outcome = within(30_000, spinner.select_samples(call())).await;
    assert_eq!(kind(&outcome), FaultKind::Deadline);
    let guest_ms = outcome.report.guest_us / 1_000;
    assert!((SPIN_MS..SPIN_MS * 2).contains(&guest_ms), "{guest_ms} ms");
}
