//! Push: objects, then commits, then the branch, so that the remote never names what it does not have.
//! Only the chains of the heads go; history at the remote is never rewritten.

use std::time::Duration;

use gix::refs::Target;
use reef_core::{ReleaseId, ScenarioName, Surface, TenantId};
use serde::Serialize;

use crate::git::{Git, failed};
use crate::marks::is_marked;
use crate::names::{Chain, branch, is_lfs, remote_branch};
use crate::refs::{Swap, swap};
use crate::remote::{Remote, RemoteError};
use crate::repo::{ReleaseRepo, head, object_id};
use crate::{ReleaseError, lfs};

/// Objects of one `git lfs` command.
const OBJECTS_OF_A_COMMAND: usize = 200;

/// What was pushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PushReport {
    /// The release that the remote's branch names now.
    pub head: ReleaseId,
    /// The same of the harness, where the scenario has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub harness_head: Option<ReleaseId>,
    /// The same of the routing policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_head: Option<ReleaseId>,
    /// LFS objects that were copied to a folder, or offered to a server, which takes what it lacks.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Releases whose objects are not here and did not go: retention removed them.
    pub without_objects: Vec<ReleaseId>,
}

impl ReleaseRepo {
    /// Pushes the chains of a scenario. `time_max` is for each command of git.
    ///
    /// Errors: see [`RemoteError`]; `Release(Corrupt)` for a damaged or missing object, before the branch moves.
    pub fn push(
        &self,
        (tenant, scenario): (&TenantId, &ScenarioName),
        remote: &Remote,
        time_max: Duration,
    ) -> Result<PushReport, RemoteError> {
        let absent =
            || RemoteError::NoChain { tenant: tenant.clone(), scenario: scenario.clone(), at: "here".to_owned() };
        let weights = self.push_chain((tenant, scenario, Surface::Weights), remote, time_max)?;
        let mut report = weights.ok_or_else(absent)?;
        for surface in [Surface::Harness, Surface::Router] {
            let Some(other) = self.push_chain((tenant, scenario, surface), remote, time_max)? else { continue };
            report.objects += other.objects;
            report.bytes += other.bytes;
            report.without_objects.extend(other.without_objects);
            match surface {
                Surface::Router => report.router_head = Some(other.head),
                Surface::Harness | Surface::Weights => report.harness_head = Some(other.head),
            }
        }
        Ok(report)
    }

    /// Pushes one chain; none: there is no such chain here.
    fn push_chain(
        &self,
        chain: Chain<'_>,
        remote: &Remote,
        time_max: Duration,
    ) -> Result<Option<PushReport>, RemoteError> {
        let repo = self.git()?;
        let Some(head) = self.head_of(chain)? else { return Ok(None) };
        let git = Git { repository: self.path(), remote, time_max };
        let folder = remote.git_folder()?;
        if folder.is_none() {
            git.require_lfs()?;
        }
        let mut report = PushReport {
            head: head.clone(),
            harness_head: None,
            router_head: None,
            objects: 0,
            bytes: 0,
            without_objects: Vec::new(),
        };
        let mut offered = Vec::new();
        let mut next = Some(head.clone());
        while let Some(id) = next {
            let opened = self.opened(&repo, &id)?;
            let mut absent = false;
            for entry in opened.stored.files.iter().filter(|entry| is_lfs(&entry.path) && entry.size > 0) {
                if !lfs::has(self.path(), entry) && is_marked(self.path(), &id) {
                    absent = true;
                    continue;
                }
                let damaged = |damage| opened.object_damage(self.path(), entry, damage);
                match &folder {
                    Some(folder) if lfs::has(folder, entry) => continue,
                    Some(folder) => lfs::copy(self.path(), folder, entry).map_err(damaged)?,
                    None => lfs::check(self.path(), entry).map_err(damaged)?,
                }
                report.objects += 1;
                report.bytes += entry.size;
                offered.push(entry.sha256.clone());
            }
            if absent {
                report.without_objects.push(id);
            }
            next = opened.stored.manifest.parent;
        }
        if folder.is_none() {
            offer(&git, offered)?;
        }
        let name = branch(chain);
        push_branch(&git, &head, &name)?;
        self.remember(&repo, &remote_branch(remote.name(), chain), &head)?;
        Ok(Some(report))
    }

    /// Notes what a remote has; whoever is faster is right.
    pub(crate) fn remember(&self, repo: &gix::Repository, name: &str, to: &ReleaseId) -> Result<(), ReleaseError> {
        let _turn = self.turn();
        let new = Target::Object(object_id(to)?);
        let old = head(repo, name)?.as_ref().map(object_id).transpose()?.map(Target::Object);
        if old.as_ref() != Some(&new) && swap(repo, name, old, new)? != Swap::Done {
            return Err(ReleaseError::Locked {
                what: format!("reference {name}"),
                waited_s: 0,
                remedy: ": another process changed it".to_owned(),
            });
        }
        Ok(())
    }
}

/// Gives objects to a server, which says itself which ones it lacks.
fn offer(git: &Git<'_>, mut objects: Vec<String>) -> Result<(), RemoteError> {
    objects.sort();
    objects.dedup();
    for part in objects.chunks(OBJECTS_OF_A_COMMAND) {
        let mut arguments = vec!["lfs", "push", "--object-id", Git::REMOTE];
        arguments.extend(part.iter().map(String::as_str));
        git.run(&arguments)?;
    }
    Ok(())
}

fn push_branch(git: &Git<'_>, head: &ReleaseId, name: &str) -> Result<(), RemoteError> {
    let refspec = format!("{head}:{name}");
    let arguments = ["push", "--porcelain", "--no-verify", "--no-follow-tags", "--", Git::REMOTE, &refspec];
    let finished = git.attempt(&arguments)?;
    let rejected = |line: &str| {
        line.starts_with('!') && ["(non-fast-forward)", "(fetch first)"].iter().any(|why| line.contains(why))
    };
    if finished.success {
        Ok(())
    } else if finished.stdout.lines().any(rejected) {
        Err(RemoteError::Diverged { remote: git.remote.url().to_owned(), branch: name.to_owned() })
    } else {
        Err(failed(&arguments, &finished))
    }
}
