//! `reef release verify|diff|push|pull|prune`: the chain of a scenario in a server's folder, without asking the server.
//! Releases are never edited, so all but `prune` may run beside a server: verify and diff only read, push and pull write
//! objects and references of their own and move no head. `prune` removes, so it takes the folder's lock and is refused
//! while a server has it. What the database says is read from its file; it is the truth about what is served.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{HumanBytes, ProgressBar};
use reef_core::{InvalidName, ReleaseId, ScenarioName, Surface, TenantId};
use reef_release::{
    ExpectedRelease, ExpectedStatus, FileChange, PruneOptions, PruneReport, PullOptions, ReleaseDiff, ReleasePublicKey,
    ReleaseRepo, Remote, RemoteError, Report, TensorChange, Tensors, VerifyOptions,
};
use reef_store::{ListedRelease, ReleaseStatus};
use serde_json::json;

use super::{configured, release_id, scenario_name, show};
use crate::error::StartError;
use crate::host::lock_data;
use crate::jobs::named_policies::recorded;
use crate::jobs::rerun::{Folder, blocking};

/// Findings that are told in words; `--json` tells all.
const FINDINGS_SHOWN_MAX: usize = 50;
/// Tensors of one file that are told in words, those that changed most.
const TENSORS_SHOWN_MAX: usize = 20;

#[derive(Debug, Subcommand)]
pub(super) enum ChainCommand {
    /// Check every release of a scenario against its hashes, its signature and the database; a server may run meanwhile.
    #[command(
        after_help = "Exit code 0: everything is whole; 5: it is not.\nExamples:\n  reef release verify my-agent\n  reef release verify my-agent --trust release.key.pub --json"
    )]
    Verify {
        #[command(flatten)]
        place: Place,
        /// For machines.
        #[arg(long)]
        json: bool,
    },
    /// What changed between two releases: files, and the norm of each tensor's change.
    #[command(after_help = "Example:\n  reef release diff my-agent 3f1c… 9b02…")]
    Diff {
        #[command(flatten)]
        place: Place,
        /// Release.
        #[arg(value_parser = release_id)]
        before: ReleaseId,
        /// Release to compare with it.
        #[arg(value_parser = release_id)]
        after: ReleaseId,
        /// For machines.
        #[arg(long)]
        json: bool,
    },
    /// Copy the chain of a scenario to a git remote with LFS.
    #[command(
        after_help = "Examples:\n  reef release push my-agent file:///backup/releases.git\n  reef release push my-agent https://git.example.org/acme/releases.git"
    )]
    Push {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        remote: RemoteArgs,
    },
    /// Copy the chain of a scenario from a git remote, verified before it is visible. No head moves.
    #[command(
        after_help = "Exit code 0: pulled; 5: what came, or what --repair found, is damaged.\nExamples:\n  reef release pull my-agent file:///backup/releases.git\n  reef release pull my-agent ssh://git@example.org/releases.git --trust release.key.pub --repair"
    )]
    Pull {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        remote: RemoteArgs,
        /// Read every object that is here, and fetch again what is damaged.
        #[arg(long)]
        repair: bool,
    },
    /// Remove adapters that nobody needs: neither the newest releases nor held candidates name them, nor a binding of the
    /// configuration that --config names.
    #[command(
        after_help = "Two runs, a grace period apart, remove what the first one marked. Refused while a server runs.\nExamples:\n  reef release prune my-agent --keep 50 --dry-run\n  reef release prune my-agent --keep 50 --grace-hours 0"
    )]
    Prune {
        #[command(flatten)]
        place: Place,
        /// Releases to keep, newest first; those that training may still lag behind are kept as well.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        /// Hours between finding that a release is not needed and removing its adapter.
        #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(..=8_760))]
        grace_hours: u32,
        /// Only tell what would be removed.
        #[arg(long)]
        dry_run: bool,
    },
}

/// Which scenario, and where it lies.
#[derive(Debug, Args)]
pub(super) struct Place {
    /// Scenario.
    #[arg(value_parser = scenario_name)]
    scenario: ScenarioName,
    /// Owner of the scenario.
    #[arg(long, default_value = "default", value_parser = tenant_id)]
    tenant: TenantId,
    /// Folder of the server.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Configuration file of the server, for its folder and its database.
    #[arg(short, long, env = "REEF_CONFIG")]
    config: Option<PathBuf>,
    /// File of a public key that must have signed what is read; may be given several times.
    #[arg(long, value_name = "FILE")]
    trust: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct RemoteArgs {
    /// Address: https://…, ssh://… or file:///….
    remote: String,
    /// Name of the remote in `refs/remotes`.
    #[arg(long, default_value = "origin")]
    name: String,
    /// The most minutes that one command of git may take.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
}

fn tenant_id(text: &str) -> Result<TenantId, InvalidName> {
    TenantId::parse(text)
}

impl RemoteArgs {
    fn parse(&self) -> Result<(Remote, Duration), StartError> {
        Ok((Remote::parse(&self.name, &self.remote).map_err(told)?, Duration::from_secs(self.minutes * 60)))
    }
}

/// A server's folder with the chain that was asked for.
struct Opened {
    folder: Folder,
    repo: ReleaseRepo,
    of: (TenantId, ScenarioName),
    trusted: Vec<ReleasePublicKey>,
    /// Releases that the configuration names as policies.
    named: Vec<ReleaseId>,
}

impl Place {
    /// Opens the folder to read; it must hold a server's data.
    async fn open(self) -> Result<Opened, StartError> {
        let config = configured(self.config.as_deref())?;
        let folder = Folder::open(&self.data.unwrap_or(config.data), &config.store).await?;
        let keys: Result<Vec<_>, _> = self.trust.iter().map(|path| ReleasePublicKey::read(path)).collect();
        let trusted = keys.map_err(|error| StartError::Config(error.to_string()))?;
        let repo = folder.repo.clone().trusting(trusted.clone());
        let named = recorded(&config.bindings).into_values().filter_map(|model| ReleaseId::parse(model).ok()).collect();
        Ok(Opened { folder, repo, of: (self.tenant, self.scenario), trusted, named })
    }
}

impl Opened {
    /// The repository, to write into.
    async fn writable(&self) -> Result<ReleaseRepo, StartError> {
        let git = self.folder.path.join("releases.git");
        Ok(blocking(move || ReleaseRepo::open(&git)).await??.trusting(self.trusted.clone()))
    }

    async fn listed(&self) -> Result<Vec<ListedRelease>, StartError> {
        self.folder.scenario(&self.of.0, &self.of.1).await?;
        Ok(self.folder.store.releases(&self.of.0, &self.of.1).await?)
    }
}

pub(super) async fn run(command: ChainCommand) -> Result<(), StartError> {
    match command {
        ChainCommand::Verify { place, json } => verify(place.open().await?, json).await,
        ChainCommand::Diff { place, before, after, json } => {
            let Opened { repo, .. } = place.open().await?;
            let diff = blocking(move || repo.diff(&before, &after)).await??;
            if json {
                return show(&json!(diff));
            }
            print!("{}", diff_text(&diff));
            Ok(())
        }
        ChainCommand::Push { place, remote } => {
            let ((remote, time_max), opened) = (remote.parse()?, place.open().await?);
            let (repo, (tenant, scenario)) = (opened.writable().await?, opened.of);
            let pushed = blocking(move || repo.push((&tenant, &scenario), &remote, time_max)).await?.map_err(told)?;
            show(&json!(pushed))
        }
        ChainCommand::Pull { place, remote, repair } => {
            let ((remote, time_max), opened) = (remote.parse()?, place.open().await?);
            let (repo, (tenant, scenario)) = (opened.writable().await?, opened.of);
            let options = PullOptions { time_max, repair };
            let pulled = blocking(move || repo.pull((&tenant, &scenario), &remote, options)).await?.map_err(told)?;
            show(&json!(pulled))?;
            match pulled.damaged.first() {
                None => Ok(()),
                Some(first) => Err(StartError::Data(format!(
                    "{} releases are still damaged, {first} first: the remote does not have their objects either; pull with --repair from another one, restore them from a backup, or roll back",
                    pulled.damaged.len()
                ))),
            }
        }
        ChainCommand::Prune { place, keep, grace_hours, dry_run } => {
            let grace = Duration::from_secs(u64::from(grace_hours) * 60 * 60);
            prune(place.open().await?, keep, grace, dry_run).await
        }
    }
}

/// A failure of a transfer with the exit code of whose doing it is.
fn told(error: RemoteError) -> StartError {
    match error {
        RemoteError::Release(error) => StartError::Releases(error),
        RemoteError::Address { .. } | RemoteError::NoChain { .. } => StartError::Config(error.to_string()),
        RemoteError::Unverified { .. } => StartError::Data(error.to_string()),
        other => StartError::Other(other.to_string()),
    }
}

async fn verify(opened: Opened, json: bool) -> Result<(), StartError> {
    let expected: Vec<ExpectedRelease> = opened.listed().await?.into_iter().map(expected).collect();
    let (repo, (tenant, scenario)) = (opened.repo, opened.of);
    let report = blocking(move || {
        // Hidden where nobody watches.
        let bar = ProgressBar::new_spinner();
        let mut tell = |progress: reef_release::Progress| {
            bar.set_message(format!("{} releases, {}", progress.releases, HumanBytes(progress.bytes)));
            bar.tick();
        };
        let options = VerifyOptions { expected: Some(&expected), on_progress: Some(&mut tell) };
        let report = repo.verify(&tenant, &scenario, options);
        bar.finish_and_clear();
        report
    })
    .await??;
    if json {
        show(&json!(report))?;
    } else {
        print!("{}", report_text(&report));
    }
    if report.is_whole() {
        return Ok(());
    }
    Err(StartError::Data(format!("{} problems in {} releases", report.checked.problems, report.checked.releases)))
}

fn expected(listed: ListedRelease) -> ExpectedRelease {
    let status = match listed.status {
        ReleaseStatus::Served => ExpectedStatus::Served,
        ReleaseStatus::Retained => ExpectedStatus::Retained,
        ReleaseStatus::Held => ExpectedStatus::Held,
        ReleaseStatus::Rejected => ExpectedStatus::Rejected,
    };
    ExpectedRelease { release: listed.release, status }
}

async fn prune(opened: Opened, keep: u32, grace: Duration, dry_run: bool) -> Result<(), StartError> {
    // Held to the end: a server that starts meanwhile could roll back to what is about to go.
    let _alone = lock_data(&opened.folder.path)?;
    let lag = opened.folder.scenario(&opened.of.0, &opened.of.1).await?.settings.max_staleness;
    let mut kept = needed(&opened.listed().await?, keep, lag);
    let running = opened.folder.store.running_rollout(&opened.of.0, &opened.of.1).await?;
    kept.extend(running.map(|rollout| rollout.release));
    kept.extend(opened.named.iter().cloned());
    let (repo, (tenant, scenario)) = (opened.writable().await?, opened.of);
    let report = blocking(move || {
        let options = PruneOptions { keep: &|id| kept.contains(id), grace, dry_run, on_removal: None };
        repo.prune((&tenant, &scenario), options)
    })
    .await??;
    print!("{}", prune_text(&report));
    Ok(())
}

/// The newest `keep` releases of the weights, those that training may lag behind, every held candidate, and the harness
/// but for what was refused: it is text, and takes no room worth freeing.
fn needed(listed: &[ListedRelease], keep: u32, lag: u32) -> BTreeSet<ReleaseId> {
    let of_weights = |listed: &&ListedRelease| listed.release.manifest.surface == Surface::Weights;
    let head = listed.iter().filter(of_weights).find(|listed| listed.status == ReleaseStatus::Served);
    let oldest = head.map_or(0, |head| head.release.manifest.sequence.saturating_sub(lag.max(keep - 1)));
    let is_needed = |listed: &&ListedRelease| match listed.status {
        ReleaseStatus::Served | ReleaseStatus::Held => true,
        ReleaseStatus::Retained => !of_weights(listed) || listed.release.manifest.sequence >= oldest,
        ReleaseStatus::Rejected => false,
    };
    listed.iter().filter(is_needed).map(|listed| listed.release.release_id.clone()).collect()
}

fn report_text(report: &Report) -> String {
    let mut out = String::new();
    let checked = &report.checked;
    // Writing to a string cannot fail.
    let _ = writeln!(out, "head      {}", report.head.as_ref().map_or("none", ReleaseId::as_str));
    if let Some(harness) = &report.harness_head {
        let _ = writeln!(out, "harness   {harness}");
    }
    if let Some(router) = &report.router_head {
        let _ = writeln!(out, "router    {router}");
    }
    let _ = writeln!(out, "releases  {} ({} pruned), {}", checked.releases, report.pruned, HumanBytes(checked.bytes));
    for finding in report.findings.iter().take(FINDINGS_SHOWN_MAX) {
        let _ = writeln!(out, "problem   {finding}");
    }
    let more = checked.problems.saturating_sub(report.findings.len().min(FINDINGS_SHOWN_MAX) as u64);
    if more > 0 {
        let _ = writeln!(out, "problem   and {more} more; --json tells them");
    }
    if report.is_whole() {
        out.push_str("whole     yes\n");
    }
    out
}

fn prune_text(report: &PruneReport) -> String {
    let mut out = String::new();
    let would = if report.dry_run { "would be " } else { "" };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{would}marked   {} releases", report.marked.len());
    let _ = writeln!(out, "{would}pruned   {} releases", report.pruned.len());
    let _ = writeln!(out, "{would}dropped  {} candidates", report.candidates.len());
    let _ = writeln!(out, "{would}freed    {} in {} objects", HumanBytes(report.bytes_freed), report.objects);
    if report.bytes_waiting > 0 {
        let _ = writeln!(out, "{} more when the grace period has passed", HumanBytes(report.bytes_waiting));
    }
    out
}

fn diff_text(diff: &ReleaseDiff) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    for (name, release) in [("before", &diff.before), ("after", &diff.after)] {
        let _ = writeln!(out, "{name:<7} r{} {}", release.manifest.sequence, release.release_id);
    }
    for file in &diff.files {
        let _ = writeln!(out, "{}", file_line(file));
        match &file.tensors {
            Some(Tensors::Unread(why)) => drop(writeln!(out, "    {why}")),
            Some(Tensors::Read { unchanged, changed }) => tensor_lines(&mut out, *unchanged, changed),
            None => {}
        }
    }
    if diff.files.is_empty() {
        out.push_str("the files are equal\n");
    }
    out
}

fn file_line(file: &FileChange) -> String {
    let bytes = |facts: &Option<reef_release::FileFacts>| facts.as_ref().map(|facts| facts.size);
    match (bytes(&file.before), bytes(&file.after)) {
        (None, Some(is)) => format!("added   {} ({is} bytes)", file.path),
        (Some(was), None) => format!("removed {} ({was} bytes)", file.path),
        (was, is) => format!("changed {} ({} → {} bytes)", file.path, was.unwrap_or(0), is.unwrap_or(0)),
    }
}

fn tensor_lines(out: &mut String, unchanged: u64, changed: &[TensorChange]) {
    let mut largest: Vec<&TensorChange> = changed.iter().collect();
    largest.sort_by(|a, b| b.norm_change.unwrap_or(f64::MAX).total_cmp(&a.norm_change.unwrap_or(f64::MAX)));
    let norm = |norm: Option<f64>| norm.map_or("-".to_owned(), |norm| format!("{norm:.6}"));
    let mut rows = vec![["tensor", "was", "is", "|was|", "|is|", "|change|"].map(str::to_owned)];
    for tensor in largest.iter().take(TENSORS_SHOWN_MAX) {
        rows.push([
            // A name out of a file may hold anything.
            tensor.name.escape_default().to_string(),
            tensor.before.clone().unwrap_or_else(|| "-".to_owned()),
            tensor.after.clone().unwrap_or_else(|| "-".to_owned()),
            norm(tensor.norm_before),
            norm(tensor.norm_after),
            norm(tensor.norm_change),
        ]);
    }
    for line in super::release::table(&rows).lines() {
        let _ = writeln!(out, "    {line}");
    }
    let left_out = changed.len().saturating_sub(TENSORS_SHOWN_MAX);
    let _ = writeln!(out, "    {left_out} more changed (--json tells them), {unchanged} unchanged");
}

#[cfg(test)]
mod tests {
    use reef_core::{ContentId, Release, ReleaseManifest, ReleaseOrigin};
    use reef_release::FileFacts;

    use super::*;

    fn listed(sequence: u32, status: ReleaseStatus) -> ListedRelease {
        let id = |sequence: u32| ReleaseId::parse(format!("{sequence:040x}")).expect("an id");
        ListedRelease {
            release: Release {
                release_id: id(sequence),
                content_id: ContentId::parse("c".repeat(64)).expect("an id"),
                manifest: ReleaseManifest {
                    tenant: TenantId::parse("default").expect("a name"),
                    scenario: ScenarioName::parse("s").expect("a name"),
                    surface: Surface::Weights,
                    sequence,
                    parent: sequence.checked_sub(1).map(id),
                    origin: ReleaseOrigin::Base,
                    base_model: "b".repeat(64),
                    recipe: None,
                    seed: None,
                    records: None,
                    metrics: Default::default(),
                    evaluation: None,
                    decision: None,
                    created_at_ms: 0,
                },
            },
            status,
        }
    }

    #[test]
    fn the_head_the_newest_the_staleness_window_and_held_candidates_are_needed() {
        let mut chain: Vec<_> = (0..10).map(|sequence| listed(sequence, ReleaseStatus::Retained)).collect();
        chain[9].status = ReleaseStatus::Served;
        chain.push(listed(3_000, ReleaseStatus::Held));
        chain.push(listed(3_001, ReleaseStatus::Rejected));
        let kept = |keep, lag| -> Vec<u32> {
            let kept = needed(&chain, keep, lag);
            chain
                .iter()
                .filter(|one| kept.contains(&one.release.release_id))
                .map(|one| one.release.manifest.sequence)
                .collect()
        };
        assert_eq!(kept(1, 0), [9, 3_000]);
        assert_eq!(kept(3, 0), [7, 8, 9, 3_000]);
        assert_eq!(kept(1, 4), [5, 6, 7, 8, 9, 3_000]);
        assert_eq!(kept(u32::MAX, u32::MAX).len(), 11);
    }

    #[test]
    fn a_diff_is_told_by_file_and_by_the_tensors_that_changed_most() {
        let tensor = |name: &str, change: f64| TensorChange {
            name: name.to_owned(),
            before: Some("F32 [2]".to_owned()),
            after: Some("F32 [2]".to_owned()),
            norm_before: Some(1.0),
            norm_after: Some(2.0),
            norm_change: Some(change),
        };
        let facts = |size| Some(FileFacts { sha256: "a".repeat(64), size });
        let changed = vec![tensor("small", 0.25), tensor("large\u{1b}[31m", 8.0)];
        let diff = ReleaseDiff {
            before: listed(1, ReleaseStatus::Retained).release,
            after: listed(2, ReleaseStatus::Served).release,
            files: vec![
                FileChange {
                    path: "adapter_model.safetensors".to_owned(),
                    before: facts(10),
                    after: facts(12),
                    tensors: Some(Tensors::Read { unchanged: 5, changed }),
                },
                FileChange { path: "new.md".to_owned(), before: None, after: facts(3), tensors: None },
            ],
        };
        let shown = diff_text(&diff);
        for part in
            ["changed adapter_model.safetensors (10 → 12 bytes)", "added   new.md (3 bytes)", "8.000000", "5 unchanged"]
        {
            assert!(shown.contains(part), "'{part}' in\n{shown}");
        }
        assert!(shown.find("large") < shown.find("small") && !shown.contains('\u{1b}'), "{shown}");
    }

    #[test]
    fn whose_doing_a_failure_is_decides_about_the_exit_code() {
        let code = |error: RemoteError| told(error).exit_code();
        let address = Remote::parse("origin", "ext::sh").expect_err("refused");
        assert_eq!(code(address), 2);
        let refused = RemoteError::Unverified { remote: "file:///x".to_owned(), problems: Vec::new() };
        assert_eq!(code(refused), 5);
        assert_eq!(code(RemoteError::LfsMissing), 1);
    }
}
