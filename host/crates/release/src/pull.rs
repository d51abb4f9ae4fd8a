//! Pull: what a remote has is fetched into quarantine, verified, and only then visible. No local head ever moves.
//! Order: git objects under a quarantine reference, LFS objects checked against their names, every new release looked at
//! from end to end, then the references that keep them. A refused chain leaves no reference behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use gix::refs::Target;
use reef_core::{ReleaseId, ScenarioName, Surface, TenantId};
use serde::Serialize;

use crate::git::{Git, failed};
use crate::lfs;
use crate::manifest::FileEntry;
use crate::marks::{mark, unmark};
use crate::names::{Chain, RETAINED, branch, is_lfs, quarantine, remote_branch, retaining};
use crate::objects::Damage;
use crate::problem::{Problem, ProblemKind};
use crate::read::Opened;
use crate::refs::{list, remove, swap};
use crate::remote::{Remote, RemoteError};
use crate::repo::{ReleaseRepo, head, object_id};
use crate::sweep_lock::share;
use crate::verify::{Child, unopened};

/// Commits of one `git lfs` command.
const COMMITS_OF_A_COMMAND: usize = 50;
/// Problems of a refused chain.
const PROBLEMS_MAX: usize = 1_000;

/// How to pull.
#[derive(Debug, Clone, Copy)]
pub struct PullOptions {
    /// For each command of git.
    pub time_max: Duration,
    /// Reads every object of the chain that is here and fetches those whose bytes are damaged.
    pub repair: bool,
}

/// What was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PullReport {
    /// The newest release of the remote; `refs/remotes/<name>/<tenant>/<scenario>` names it now.
    pub head: ReleaseId,
    /// The same of the harness, where the remote has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub harness_head: Option<ReleaseId>,
    /// The same of the routing policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_head: Option<ReleaseId>,
    /// Releases that were not here, newest first.
    pub new: Vec<ReleaseId>,
    /// LFS objects that were fetched.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Releases whose objects the remote does not have either; never the newest.
    pub without_objects: Vec<ReleaseId>,
    /// Releases with an object that was found damaged here and that the remote does not have whole either.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<ReleaseId>,
}

impl ReleaseRepo {
    /// Pulls the chains of a scenario. Afterwards its releases can be read and verified, and nothing serves them yet.
    ///
    /// Errors: see [`RemoteError`]; `Unverified` if the chain is not whole, or not signed by a trusted key.
    pub fn pull(
        &self,
        (tenant, scenario): (&TenantId, &ScenarioName),
        remote: &Remote,
        options: PullOptions,
    ) -> Result<PullReport, RemoteError> {
        let weights = self.pull_chain((tenant, scenario, Surface::Weights), remote, options)?;
        let mut report = weights.ok_or_else(|| no_chain((tenant, scenario), remote))?;
        for surface in [Surface::Harness, Surface::Router] {
            let Some(other) = self.pull_chain((tenant, scenario, surface), remote, options)? else { continue };
            report.new.extend(other.new);
            report.objects += other.objects;
            report.bytes += other.bytes;
            report.without_objects.extend(other.without_objects);
            report.damaged.extend(other.damaged);
            match surface {
                Surface::Router => report.router_head = Some(other.head),
                Surface::Harness | Surface::Weights => report.harness_head = Some(other.head),
            }
        }
        Ok(report)
    }

    /// Pulls one chain; none: the remote has no such chain.
    fn pull_chain(
        &self,
        chain: Chain<'_>,
        remote: &Remote,
        options: PullOptions,
    ) -> Result<Option<PullReport>, RemoteError> {
        let repo = self.git()?;
        let git = Git { repository: self.path(), remote, time_max: options.time_max };
        let folder = remote.git_folder()?;
        if folder.is_none() {
            git.require_lfs()?;
        }
        let _kept_from_sweeping = share(self.path())?;
        let cell = quarantine(remote.name(), chain);
        if !fetch(&git, chain, &cell)? {
            return Ok(None);
        }
        // What was fetched may be in a new pack.
        let repo_now = self.git()?;
        let Some(tip) = head(&repo_now, &cell)? else { return Ok(None) };
        let pull = Pull { owner: self, repo: &repo_now, git, folder, chain, options };
        let pulled = pull.verified(&tip).and_then(|report| {
            self.show(&repo_now, &report)?;
            self.remember(&repo_now, &remote_branch(remote.name(), chain), &tip)?;
            Ok(report)
        });
        let _turn = self.turn();
        remove(&repo, &cell, Target::Object(object_id(&tip)?))?;
        pulled.map(Some)
    }

    /// Makes what was verified visible: releases are kept from garbage collection, the oldest first.
    fn show(&self, repo: &gix::Repository, report: &PullReport) -> Result<(), crate::ReleaseError> {
        // What was here before and lost its objects is damaged, and stays so.
        for id in report.without_objects.iter().filter(|id| report.new.contains(id)) {
            mark(self.path(), id, SystemTime::now())?;
        }
        for id in report.new.iter().rev() {
            let _turn = self.turn();
            swap(repo, &retaining(id), None, Target::Object(object_id(id)?))?;
        }
        Ok(())
    }
}

/// Fetches a chain into quarantine; false: the remote does not have it.
fn fetch(git: &Git<'_>, chain: Chain<'_>, cell: &str) -> Result<bool, RemoteError> {
    let refspec = format!("+{}:{cell}", branch(chain));
    let arguments = [
        "fetch",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        "--no-auto-maintenance",
        "--",
        Git::REMOTE,
        &refspec,
    ];
    let finished = git.attempt(&arguments)?;
    if finished.success {
        Ok(true)
    } else if finished.stderr.contains("couldn't find remote ref") {
        Ok(false)
    } else {
        Err(failed(&arguments, &finished))
    }
}

fn no_chain((tenant, scenario): (&TenantId, &ScenarioName), remote: &Remote) -> RemoteError {
    let (tenant, scenario) = (tenant.clone(), scenario.clone());
    RemoteError::NoChain { tenant, scenario, at: format!("at {}", remote.url()) }
}

/// One pull between fetching commits and showing them.
struct Pull<'a> {
    owner: &'a ReleaseRepo,
    repo: &'a gix::Repository,
    git: Git<'a>,
    folder: Option<std::path::PathBuf>,
    chain: Chain<'a>,
    options: PullOptions,
}

impl Pull<'_> {
    fn verified(&self, tip: &ReleaseId) -> Result<PullReport, RemoteError> {
        let mut problems = Vec::new();
        let chain = self.chain(tip, &mut problems);
        // Objects of a chain that is refused anyway are not worth their transfer.
        self.refuse(problems)?;
        let mut report = PullReport {
            head: tip.clone(),
            harness_head: None,
            router_head: None,
            new: self.unknown(&chain)?,
            objects: 0,
            bytes: 0,
            without_objects: Vec::new(),
            damaged: Vec::new(),
        };
        let mut broken = BTreeSet::new();
        let mut problems = self.objects(&chain, &mut report, &mut broken)?;
        let new: BTreeSet<ReleaseId> = report.new.iter().cloned().collect();
        for id in &chain {
            let opened = Opened::find(self.repo, id)?;
            let is_mended =
                |entry: &FileEntry| !broken.contains(&entry.sha256) || lfs::check(self.path(), entry).is_ok();
            if !lfs_files(&opened).all(is_mended) {
                report.damaged.push(id.clone());
            } else if lfs_files(&opened).all(|entry| lfs::has(self.path(), entry)) {
                unmark(self.path(), id)?;
            } else {
                report.without_objects.push(id.clone());
            }
            if new.contains(id) {
                opened.inspect(self.repo, &self.owner.trusted, &mut |problem| {
                    let absent = matches!(problem.kind, ProblemKind::ObjectMissing | ProblemKind::ObjectPruned);
                    let told =
                        problems.iter().any(|known: &Problem| known.object.is_some() && known.object == problem.object);
                    if (!absent || id == tip) && !told && problems.len() < PROBLEMS_MAX {
                        problems.push(problem);
                    }
                });
            }
        }
        self.refuse(problems)?;
        Ok(report)
    }

    fn refuse(&self, problems: Vec<Problem>) -> Result<(), RemoteError> {
        if problems.is_empty() {
            return Ok(());
        }
        Err(RemoteError::Unverified { remote: self.git.remote.url().to_owned(), problems })
    }

    fn path(&self) -> &Path {
        self.owner.path()
    }

    /// The releases of the chain from the tip to its first one.
    fn chain(&self, tip: &ReleaseId, problems: &mut Vec<Problem>) -> Vec<ReleaseId> {
        let (mut chain, mut child) = (Vec::new(), None::<Child>);
        let mut next = Some(tip.clone());
        while let Some(id) = next {
            let opened = match Opened::find(self.repo, &id) {
                Ok(opened) => opened,
                Err(error) => {
                    problems.push(unopened(&id, child.as_ref(), error));
                    break;
                }
            };
            let (tenant, scenario, surface) = self.chain;
            if !opened.stored.is_of(tenant, scenario) {
                if !child.as_ref().is_some_and(Child::is_first) {
                    let reason = format!("the chain of scenario '{scenario}' leads to it");
                    problems.push(opened.problem(ProblemKind::OtherScenario, reason));
                }
                break;
            }
            if let Some(problem) = opened.on_other_surface(surface) {
                problems.push(problem);
                break;
            }
            problems.extend(child.as_ref().and_then(|child| child.compare(&opened)));
            problems.extend(Child::of(&opened).without_parent(&opened));
            child = Some(Child::of(&opened));
            next = opened.stored.manifest.parent;
            chain.push(id);
        }
        chain
    }

    /// Those that no reference keeps yet.
    fn unknown(&self, chain: &[ReleaseId]) -> Result<Vec<ReleaseId>, RemoteError> {
        let kept: BTreeSet<String> = list(self.repo, RETAINED)?.into_iter().map(|(name, _)| name).collect();
        Ok(chain.iter().filter(|id| !kept.contains(&retaining(id))).cloned().collect())
    }

    /// Fetches the objects that are not here; problems of those that the remote has and that are damaged. Collects the
    /// SHA-256 of those that were damaged here.
    fn objects(
        &self,
        chain: &[ReleaseId],
        report: &mut PullReport,
        broken: &mut BTreeSet<String>,
    ) -> Result<Vec<Problem>, RemoteError> {
        let (mut problems, mut wanted) = (Vec::new(), Vec::new());
        for id in chain {
            let opened = Opened::find(self.repo, id)?;
            let lacking: Vec<&FileEntry> = lfs_files(&opened).filter(|entry| self.lacks(entry, broken)).collect();
            let Some(folder) = &self.folder else {
                if !lacking.is_empty() {
                    wanted.push(id.clone());
                }
                continue;
            };
            for entry in lacking {
                match lfs::copy(folder, self.path(), entry) {
                    Ok(()) => {
                        report.objects += 1;
                        report.bytes += entry.size;
                    }
                    Err(Damage::Missing) => {}
                    Err(damage) => match opened.object_damage(folder, entry, damage) {
                        crate::ReleaseError::Corrupt(problem) if problems.len() < PROBLEMS_MAX => {
                            problems.push(*problem)
                        }
                        crate::ReleaseError::Corrupt(_) => {}
                        error => return Err(error.into()),
                    },
                }
            }
        }
        for part in wanted.chunks(COMMITS_OF_A_COMMAND) {
            self.download(part, report, broken)?;
        }
        Ok(problems)
    }

    fn lacks(&self, entry: &FileEntry, broken: &mut BTreeSet<String>) -> bool {
        if !self.options.repair {
            return !lfs::has(self.path(), entry);
        }
        let found = lfs::check(self.path(), entry);
        if found.as_ref().is_err_and(|damage| !matches!(damage, Damage::Missing)) {
            broken.insert(entry.sha256.clone());
        }
        found.is_err()
    }

    /// Lets git-lfs fetch what these releases lack. A server that lacks it too makes the command fail; what is still
    /// absent afterwards is told by the inspection.
    fn download(
        &self,
        releases: &[ReleaseId],
        report: &mut PullReport,
        broken: &mut BTreeSet<String>,
    ) -> Result<(), RemoteError> {
        let mut lacking = Vec::new();
        for id in releases {
            lacking.extend(lfs_files(&Opened::find(self.repo, id)?).filter(|entry| self.lacks(entry, broken)).cloned());
        }
        for damaged in lacking.iter().filter(|entry| lfs::has(self.path(), entry)) {
            // git-lfs takes an object of the right size for whole.
            let path = lfs::object_path(self.path(), &damaged.sha256);
            std::fs::remove_file(&path).map_err(crate::error::disk("remove", &path))?;
        }
        let mut arguments = vec!["lfs", "fetch", Git::REMOTE];
        arguments.extend(releases.iter().map(ReleaseId::as_str));
        let finished = self.git.attempt(&arguments)?;
        lacking.sort_by(|a, b| a.sha256.cmp(&b.sha256));
        lacking.dedup_by(|a, b| a.sha256 == b.sha256);
        let fetched: Vec<&FileEntry> = lacking.iter().filter(|entry| lfs::has(self.path(), entry)).collect();
        let lacks_them = finished.stderr.contains("does not exist on the server");
        if !finished.success && fetched.is_empty() && !lacks_them {
            return Err(failed(&arguments, &finished));
        }
        report.objects += fetched.len() as u64;
        report.bytes += fetched.iter().map(|entry| entry.size).sum::<u64>();
        Ok(())
    }
}

fn lfs_files(opened: &Opened) -> impl Iterator<Item = &FileEntry> {
    opened.stored.files.iter().filter(|entry| is_lfs(&entry.path) && entry.size > 0)
}
