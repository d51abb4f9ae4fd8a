//! Figures of the sandbox: the cost of a fresh call in each language, of columns by handle and of a thousand tenants,
//! what a spinning tenant does to the others, how soon a spinning guest is stopped, and whether memory stays flat.
//! A guest that has not been built is told as absent and never as a number.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use reef_sandbox::{Call, Cancel, Context, Grants, PoolSample, Recipe, Sandbox, SandboxConfig};
use serde_json::{Map, Value, json};

use super::median;
use crate::config::Config;
use crate::error::StartError;
use crate::lab;

/// Calls of one measurement of a fresh call.
const CALLS: usize = 500;
/// The batch of the column measurement.
const COLUMN_SAMPLES: usize = 64;
const COLUMN_TOKENS: usize = 512;
/// Tenants with one recipe each.
const TENANTS: usize = 1_000;
/// Light tenants beside the spinner, how often each calls, and for how long.
const LIGHT_TENANTS: usize = 9;
const LIGHT_EVERY: Duration = Duration::from_millis(5);
const LIGHT_FOR: Duration = Duration::from_secs(4);
/// Calls that the spinning tenant keeps in flight.
const SPINNERS: usize = 4;
/// Deadline of the guest that is stopped, and how often that is measured.
const SPIN_DEADLINE_MS: u64 = 200;
const SPINS: usize = 20;
/// Create, trap and cancel cycles.
const CYCLES: usize = 10_000;
/// Cycles before memory is first read, so that pools and caches are warm.
const CYCLES_WARM: usize = 1_000;

/// Where the guests of the measurements are.
#[derive(Debug, Clone)]
pub struct Guests {
    /// `target/wasm32-wasip2/recipe`
    pub folder: PathBuf,
    /// `target/languages`
    pub languages: PathBuf,
}

impl Guests {
    fn rust(&self) -> PathBuf {
        self.folder.join("examples/best_of.wasm")
    }

    fn faults(&self) -> PathBuf {
        self.folder.join("reef_guest_faults.wasm")
    }

    fn language(&self, name: &str) -> PathBuf {
        self.languages.join(format!("best-of-{name}.wasm"))
    }
}

/// Runs every measurement `runs` times where a median is told.
pub async fn figures(config: &Config, guests: &Guests, runs: usize) -> Result<Value, StartError> {
    let sandbox = sandbox(config.sandbox.clone())?;
    let rust = guests.rust();
    let mut calls = Map::new();
    for (name, path) in [
        ("rust", rust.clone()),
        ("c", guests.language("c")),
        ("javascript", guests.language("js")),
        ("python", guests.language("python")),
    ] {
        calls.insert(name.to_owned(), fresh_call(config, &path, runs).await?);
    }
    let Some(recipe) = load(&sandbox, &rust).await? else {
        return Ok(json!({ "fresh_call_us": calls, "absent": rust }));
    };
    Ok(json!({
        "fresh_call_us": calls,
        "columns_64_samples_512_tokens_us": columns(&recipe, runs).await?,
        "tenants_1000_resident_bytes": tenants(config, &rust).await?,
        "fairness": fairness(config, guests).await?,
        "stop_after_deadline_ms": stopping(config, guests).await?,
        "cycles_10000": cycles(config, guests).await?,
        "pooling": sandbox.pooling(),
    }))
}

fn sandbox(limits: SandboxConfig) -> Result<Sandbox, StartError> {
    Sandbox::new(limits).map_err(|error| StartError::Recipe(error.to_string()))
}

/// None when the component has not been built.
async fn load(sandbox: &Sandbox, path: &Path) -> Result<Option<Recipe>, StartError> {
    let Ok(bytes) = tokio::fs::read(path).await else { return Ok(None) };
    let recipe = sandbox.load(bytes, &Grants::all()).await;
    recipe.map(Some).map_err(|error| StartError::Recipe(format!("{}: {error}", path.display())))
}

fn context(tenant: &str) -> Context {
    Context {
        tenant: tenant.to_owned(),
        scenario: "bench".to_owned(),
        step: 1,
        now_ms: 0,
        seed: 0,
        head: String::new(),
        max_staleness: 4,
    }
}

fn call_of(tenant: &str, samples: &Arc<Vec<PoolSample>>) -> Call {
    Call { batch: (0..samples.len() as u32).collect(), samples: Arc::clone(samples), ..Call::new(context(tenant)) }
}

/// Instantiate, select from an empty pool, drop.
async fn fresh_call(config: &Config, path: &Path, runs: usize) -> Result<Value, StartError> {
    // Guests with an interpreter need more memory than the default gives.
    let limits =
        SandboxConfig { memory_bytes_max: config.sandbox.memory_bytes_max.max(256 << 20), ..config.sandbox.clone() };
    let Some(recipe) = load(&sandbox(limits)?, path).await? else { return Ok(json!({ "absent": path })) };
    selections(&recipe, &Arc::default(), runs).await
}

/// Selections of all samples, one after the other, in microseconds: as long as their caller waits, with the hand-over
/// between threads, and what of it the guest's thread worked on instantiation, the call and the drop.
async fn selections(recipe: &Recipe, samples: &Arc<Vec<PoolSample>>, runs: usize) -> Result<Value, StartError> {
    let (mut times, mut guest) = (Vec::with_capacity(runs * CALLS), Vec::with_capacity(runs * CALLS));
    for _ in 0..runs * CALLS {
        let call = call_of("bench", samples);
        let began = Instant::now();
        let ended = recipe.select_samples(call).await;
        times.push(began.elapsed().as_secs_f64() * 1e6);
        guest.push(ended.report.guest_us as f64);
        ended.result.map_err(|fault| StartError::Recipe(fault.to_string()))?;
    }
    let (p99, calls) = (percentile(times.clone(), 99), times.len());
    Ok(json!({ "caller_median": median(times), "caller_p99": p99, "median": median(guest), "calls": calls }))
}

/// A selection that reads two columns of 64 samples of 512 tokens each; the tokens stay in the host.
async fn columns(recipe: &Recipe, runs: usize) -> Result<Value, StartError> {
    let mut samples = lab::pool(1, COLUMN_SAMPLES, 0).as_ref().clone();
    for pooled in &mut samples {
        let trajectory = &mut pooled.sample.trajectory;
        trajectory.tokens.resize(trajectory.prompt_length + COLUMN_TOKENS, 0);
        trajectory.mask = vec![1; COLUMN_TOKENS];
        trajectory.logprobs = vec![-1.0; COLUMN_TOKENS];
    }
    selections(recipe, &Arc::new(samples), runs).await
}

/// Resident bytes that 1,000 loaded recipes add, each a component of its own, each called once by its tenant.
async fn tenants(config: &Config, path: &Path) -> Result<Value, StartError> {
    let sandbox = sandbox(config.sandbox.clone())?;
    let bytes = tokio::fs::read(path).await.map_err(|error| StartError::Recipe(error.to_string()))?;
    let before = resident_bytes();
    let began = Instant::now();
    let mut recipes = Vec::with_capacity(TENANTS);
    for tenant in 0..TENANTS {
        let loaded = sandbox.load(distinct(&bytes, tenant), &Grants::all()).await;
        let recipe = loaded.map_err(|error| StartError::Recipe(error.to_string()))?;
        let ended = recipe.select_samples(Call::new(context(&format!("tenant-{tenant}")))).await;
        ended.result.map_err(|fault| StartError::Recipe(fault.to_string()))?;
        recipes.push(recipe);
    }
    let added = resident_bytes().saturating_sub(before);
    Ok(
        json!({ "bytes": added, "per_tenant": added / recipes.len() as u64, "load_seconds": began.elapsed().as_secs_f64() }),
    )
}

/// The component with a custom section that makes its digest its own.
fn distinct(component: &[u8], index: usize) -> Vec<u8> {
    let name = b"tenant";
    let content = index.to_le_bytes();
    let mut bytes = component.to_vec();
    bytes.extend([0, (1 + name.len() + content.len()) as u8, name.len() as u8]);
    bytes.extend(name);
    bytes.extend(content);
    bytes
}

/// p99 of nine light tenants alone and beside a tenant that spins, in the same minute.
async fn fairness(config: &Config, guests: &Guests) -> Result<Value, StartError> {
    let limits = SandboxConfig { wall_select_ms: 1_000, fuel_select: u64::MAX / 4, ..config.sandbox.clone() };
    let shared = sandbox(limits)?;
    let (Some(light), Some(spinner)) = (load(&shared, &guests.rust()).await?, load(&shared, &guests.faults()).await?)
    else {
        return Ok(json!({ "absent": guests.faults() }));
    };
    let alone = light_calls(&light).await;
    let stop = Arc::new(AtomicBool::new(false));
    let spinning: Vec<_> = (0..SPINNERS).map(|_| tokio::spawn(spin(spinner.clone(), Arc::clone(&stop)))).collect();
    let beside = light_calls(&light).await;
    stop.store(true, Ordering::Relaxed);
    for task in spinning {
        drop(task.await);
    }
    let (alone_p99, beside_p99) = (percentile(alone.clone(), 99), percentile(beside.clone(), 99));
    Ok(json!({
        "light_tenants": LIGHT_TENANTS,
        "spinning_calls": SPINNERS,
        "alone_us": { "median": median(alone), "p99": alone_p99 },
        "beside_us": { "median": median(beside), "p99": beside_p99 },
        "p99_ratio": beside_p99 / alone_p99,
    }))
}

async fn light_calls(recipe: &Recipe) -> Vec<f64> {
    let samples = lab::pool(2, 16, 0);
    let tenants: Vec<_> = (0..LIGHT_TENANTS)
        .map(|tenant| {
            let (recipe, samples) = (recipe.clone(), Arc::clone(&samples));
            tokio::spawn(async move {
                let (name, until) = (format!("light-{tenant}"), Instant::now() + LIGHT_FOR);
                let mut times = Vec::new();
                while Instant::now() < until {
                    let call = call_of(&name, &samples);
                    let began = Instant::now();
                    if recipe.select_samples(call).await.result.is_ok() {
                        times.push(began.elapsed().as_secs_f64() * 1e6);
                    }
                    tokio::time::sleep(LIGHT_EVERY).await;
                }
                times
            })
        })
        .collect();
    let mut all = Vec::new();
    for tenant in tenants {
        all.extend(tenant.await.unwrap_or_default());
    }
    all
}

fn spinning(tenant: &str) -> Call {
    let config = [("fault", json!("spin")), ("where", json!("select"))];
    let config = config.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Call { config, ..call_of(tenant, &lab::pool(3, 4, 0)) }
}

async fn spin(recipe: Recipe, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        drop(recipe.select_samples(spinning("spinner")).await);
    }
}

/// How long after its deadline a spinning guest is stopped: median and worst, milliseconds.
async fn stopping(config: &Config, guests: &Guests) -> Result<Value, StartError> {
    let limits =
        SandboxConfig { wall_select_ms: SPIN_DEADLINE_MS, fuel_select: u64::MAX / 4, ..config.sandbox.clone() };
    let Some(recipe) = load(&sandbox(limits)?, &guests.faults()).await? else {
        return Ok(json!({ "absent": guests.faults() }));
    };
    let mut late = Vec::with_capacity(SPINS);
    for _ in 0..SPINS {
        let began = Instant::now();
        drop(recipe.select_samples(spinning("bench")).await);
        late.push(began.elapsed().as_secs_f64() * 1e3 - SPIN_DEADLINE_MS as f64);
    }
    Ok(json!({ "deadline_ms": SPIN_DEADLINE_MS, "median": median(late.clone()), "worst": percentile(late, 100) }))
}

/// Good calls, traps and cancelled calls in turn: what memory does between the first thousand and the end.
async fn cycles(config: &Config, guests: &Guests) -> Result<Value, StartError> {
    let Some(recipe) = load(&sandbox(config.sandbox.clone())?, &guests.faults()).await? else {
        return Ok(json!({ "absent": guests.faults() }));
    };
    let samples = lab::pool(4, 8, 0);
    let mut warm = 0;
    for cycle in 0..CYCLES_WARM + CYCLES {
        if cycle == CYCLES_WARM {
            warm = resident_bytes();
        }
        let fault = ["none", "trap", "none"][cycle % 3];
        let config = [("fault", json!(fault)), ("where", json!("select"))];
        let config = config.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let cancel = Cancel::new();
        if cycle % 3 == 2 {
            cancel.cancel();
        }
        drop(recipe.select_samples(Call { config, cancel, ..call_of("bench", &samples) }).await);
    }
    let end = resident_bytes();
    Ok(json!({ "resident_before": warm, "resident_after": end, "grown_bytes": end.saturating_sub(warm) }))
}

/// Resident memory of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    const PAGE_BYTES: u64 = 4_096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES
}

/// The value that `percent` of the values do not exceed.
fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
    values.get(rank).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_value_at_its_rank() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(values.clone(), 99), 198.0);
        assert_eq!(percentile(values.clone(), 100), 200.0);
        assert_eq!(percentile(vec![5.0], 99), 5.0);
    }

    #[test]
    fn a_custom_section_makes_a_component_another_one() {
        let component = b"\0asm\x0d\0\x01\0".to_vec();
        assert_ne!(distinct(&component, 1), distinct(&component, 2));
        assert!(distinct(&component, 1).starts_with(&component));
    }
}
