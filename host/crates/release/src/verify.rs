//! Verification of a scenario: its chains from head to root, and what the database knows against them.
//! It works in constant memory but for the list of problems and an index of the expected releases, reads only, and
//! stops at nothing: releases are never edited, so it may run beside a server.

use std::collections::{BTreeMap, BTreeSet};

use reef_core::{Release, ReleaseId, ReleaseManifest, ScenarioName, Surface, TenantId};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::ReleaseError;
use crate::problem::{Problem, ProblemKind};
use crate::read::{Commit, Opened};
use crate::repo::ReleaseRepo;

/// Problems of one report; what is more is counted only.
const PROBLEMS_MAX: usize = 10_000;
/// Characters of a value that a problem shows.
const SHOWN_CHARS_MAX: usize = 80;

/// Where the database says that a release stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedStatus {
    /// The head.
    Served,
    /// Served earlier, or a candidate that was promoted under another id.
    Retained,
    /// A candidate that waits for a person.
    Held,
    /// A candidate that was refused; its bytes may be gone.
    Rejected,
}

/// What the database knows of a release.
#[derive(Debug, Clone)]
pub struct ExpectedRelease {
    /// The release.
    pub release: Release,
    /// Where it stands.
    pub status: ExpectedStatus,
}

/// How far a verification is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Releases that were looked at.
    pub releases: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Problems so far.
    pub problems: u64,
}

/// What a verification compares and whom it tells.
#[derive(Default)]
pub struct VerifyOptions<'a> {
    /// The releases of the scenario in the database; `None`: the repository is looked at alone. Releases of a chain
    /// that are older than all of these are not missed in the database.
    pub expected: Option<&'a [ExpectedRelease]>,
    /// Called after every release.
    pub on_progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl std::fmt::Debug for VerifyOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyOptions").field("expected", &self.expected).finish_non_exhaustive()
    }
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The head of the weights.
    pub head: Option<ReleaseId>,
    /// The head of the harness, where the scenario has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub harness_head: Option<ReleaseId>,
    /// The head of the routing policy, where the scenario has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_head: Option<ReleaseId>,
    /// Releases of the chains and, where a database was given, beside it; bytes of their files; problems.
    #[serde(flatten)]
    pub checked: Progress,
    /// Releases whose LFS objects retention removed and nobody needs now.
    pub pruned: u64,
    /// What is wrong, in the order in which it was found.
    pub findings: Vec<Problem>,
}

impl Report {
    /// Is nothing wrong?
    pub fn is_whole(&self) -> bool {
        self.checked.problems == 0
    }
}

impl ReleaseRepo {
    /// Verifies the chains of a scenario: commits, manifests, order, signatures, every file and LFS object; and, against
    /// the database, heads, contents and every field of the manifests of the chains and of the candidates beside them.
    ///
    /// Errors: `Disk`, `Git` if the references cannot be read. Whatever else is wrong is a finding.
    pub fn verify(
        &self,
        tenant: &TenantId,
        scenario: &ScenarioName,
        mut options: VerifyOptions<'_>,
    ) -> Result<Report, ReleaseError> {
        let repo = self.git()?;
        let expected = options.expected.map(Expected::new);
        let heads = [
            (Surface::Weights, self.head(tenant, scenario)?),
            (Surface::Harness, self.harness_head(tenant, scenario)?),
            (Surface::Router, self.router_head(tenant, scenario)?),
        ];
        let [(_, head), (_, harness_head), (_, router_head)] = heads.clone();
        let report =
            Report { head, harness_head, router_head, checked: Progress::default(), pruned: 0, findings: Vec::new() };
        let mut walk = Walk { place: (self, &repo), scenario: (tenant, scenario), report, expected };
        let mut tick = |report: &Report| {
            if let Some(tell) = options.on_progress.as_mut() {
                tell(report.checked);
            }
        };
        for (surface, head) in heads {
            walk.compare_head(surface, head.as_ref());
            let (mut next, mut child) = (head, None);
            while let Some(id) = next {
                (next, child) = walk.link(&id, child, surface);
                tick(&walk.report);
            }
        }
        while let Some(id) = walk.expected.as_mut().and_then(Expected::next_unseen) {
            walk.beside(&id);
            tick(&walk.report);
        }
        Ok(walk.report)
    }
}

/// The part of a child that its parent is compared with.
pub struct Child {
    id: ReleaseId,
    label: String,
    sequence: u32,
}

impl Child {
    /// Of a release that was opened.
    pub fn of(opened: &Opened) -> Self {
        Self { id: opened.id.clone(), label: opened.label(), sequence: opened.stored.manifest.sequence }
    }

    /// What is wrong with a parent, if anything.
    pub fn compare(&self, parent: &Opened) -> Option<Problem> {
        let position = parent.stored.manifest.sequence;
        (position >= self.sequence).then(|| {
            let reason =
                format!("its sequence is {} and that of its parent {} is {position}", self.sequence, parent.id);
            self.problem(ProblemKind::SequenceOrder, reason)
        })
    }

    /// Is it the first release of its scenario?
    pub fn is_first(&self) -> bool {
        self.sequence == 0
    }

    /// What is wrong with a release that has no parent and is not the first.
    pub fn without_parent(&self, opened: &Opened) -> Option<Problem> {
        (opened.stored.manifest.parent.is_none() && !self.is_first()).then(|| {
            let reason = format!("it has no parent and the sequence {}; a chain begins with 0", self.sequence);
            self.problem(ProblemKind::SequenceOrder, reason)
        })
    }

    fn problem(&self, kind: ProblemKind, reason: String) -> Problem {
        Problem::new(kind, &self.id, self.label.clone(), reason)
    }
}

struct Walk<'a> {
    place: (&'a ReleaseRepo, &'a gix::Repository),
    scenario: (&'a TenantId, &'a ScenarioName),
    report: Report,
    expected: Option<Expected<'a>>,
}

impl Walk<'_> {
    fn tell(&mut self, problem: Problem) {
        self.report.checked.problems += 1;
        if self.report.findings.len() < PROBLEMS_MAX {
            self.report.findings.push(problem);
        }
    }

    fn compare_head(&mut self, surface: Surface, head: Option<&ReleaseId>) {
        let Some(expected) = &self.expected else { return };
        let (told, reason) = match (expected.served(surface), head) {
            (Some(served), Some(head)) if served.id() == head => return,
            (None, None) => return,
            (Some(served), head) => {
                let head = head.map_or("absent".to_owned(), |head| format!("at {head}"));
                let reason = format!("the database serves it and the branch of its scenario is {head}");
                ((served.id().clone(), served.label()), reason)
            }
            (None, Some(head)) => {
                let reason = format!("it is the head of the {} branch and the database serves none", surface.as_str());
                ((head.clone(), format!("release {head}")), reason)
            }
        };
        self.tell(Problem::new(ProblemKind::HeadDiffers, &told.0, told.1, reason));
    }

    /// Looks at one release of the chain; the release before it, and what to compare that with.
    fn link(&mut self, id: &ReleaseId, child: Option<Child>, surface: Surface) -> (Option<ReleaseId>, Option<Child>) {
        let opened = match Opened::find(self.place.1, id) {
            Ok(opened) => opened,
            Err(error) => {
                self.report.checked.releases += 1;
                if let Some(expected) = &mut self.expected {
                    expected.see(id);
                }
                self.tell(unopened(id, child.as_ref(), error));
                // The commit may name the next one even where the release does not read.
                let parent = Commit::find(self.place.1, id).ok().and_then(|commit| commit.parents.into_iter().next());
                return (parent, None);
            }
        };
        if !opened.stored.is_of(self.scenario.0, self.scenario.1) {
            // The first release of a scenario may come from another scenario, whose chain is not ours to verify.
            if !child.as_ref().is_some_and(Child::is_first) {
                let reason = format!("the chain of scenario '{}' leads to it", self.scenario.1);
                self.tell(opened.problem(ProblemKind::OtherScenario, reason));
            }
            return (None, None);
        }
        if let Some(problem) = opened.on_other_surface(surface) {
            self.tell(problem);
            return (None, None);
        }
        if let Some(problem) = child.as_ref().and_then(|child| child.compare(&opened)) {
            self.tell(problem);
        }
        if let Some(problem) = Child::of(&opened).without_parent(&opened) {
            self.tell(problem);
        }
        self.look(&opened);
        self.compare(&opened, true);
        (opened.stored.manifest.parent.clone(), Some(Child::of(&opened)))
    }

    /// Looks at a release that the database knows and the chain does not hold.
    fn beside(&mut self, id: &ReleaseId) {
        match Opened::find(self.place.1, id) {
            Ok(opened) => {
                self.look(&opened);
                self.compare(&opened, false);
            }
            Err(error) => {
                let known = self.expected.as_mut().and_then(|expected| expected.see(id)).cloned();
                let gone = matches!(error, ReleaseError::NotFound { .. });
                let Some(known) = known.filter(|known| !(gone && known.status == ExpectedStatus::Rejected)) else {
                    return;
                };
                self.report.checked.releases += 1;
                let mut problem = unopened(id, None, error);
                problem.release = known.label();
                self.tell(problem);
            }
        }
    }

    fn look(&mut self, opened: &Opened) {
        let (owner, repo) = self.place;
        let mut found = Vec::new();
        self.report.checked.releases += 1;
        self.report.checked.bytes += opened.inspect(repo, &owner.trusted, &mut |problem| found.push(problem));
        let before = found.len();
        let known = self.expected.as_ref().and_then(|expected| expected.by_id.get(&opened.id));
        let is = |head: &Option<ReleaseId>| head.as_ref() == Some(&opened.id);
        let needed = is(&self.report.head)
            || is(&self.report.harness_head)
            || is(&self.report.router_head)
            || known.is_some_and(|(known, _)| matches!(known.status, ExpectedStatus::Served | ExpectedStatus::Held));
        found.retain(|problem| needed || problem.kind != ProblemKind::ObjectPruned);
        self.report.pruned += u64::from(found.len() < before);
        found.into_iter().for_each(|problem| self.tell(problem));
    }

    /// Compares a release with what the database knows of it.
    fn compare(&mut self, opened: &Opened, on_chain: bool) {
        let Some(expected) = &mut self.expected else { return };
        let manifest = &opened.stored.manifest;
        let Some(known) = expected.see(&opened.id).cloned() else {
            if expected.oldest.get(&manifest.surface).is_some_and(|oldest| manifest.sequence >= *oldest) {
                self.tell(opened.problem(ProblemKind::NotInDatabase, "the database does not know it"));
            }
            return;
        };
        for reason in differences(&known.release.manifest, manifest) {
            self.tell(opened.problem(ProblemKind::DatabaseDiffers, reason));
        }
        if let Ok(content_id) = opened.stored.content_id()
            && content_id != known.release.content_id
        {
            let known = &known.release.content_id;
            let reason = format!("the database says content {known} and its files have {content_id}");
            self.tell(opened.problem(ProblemKind::ContentIdDiffers, reason));
        }
        if on_chain && matches!(known.status, ExpectedStatus::Held | ExpectedStatus::Rejected) {
            let reason = format!("it is on the chain and the database calls it {:?}", known.status).to_lowercase();
            self.tell(opened.problem(ProblemKind::DatabaseDiffers, reason));
        }
    }
}

/// Every field of two manifests that is not the same, in words.
fn differences(database: &ReleaseManifest, stored: &ReleaseManifest) -> Vec<String> {
    if database == stored {
        return Vec::new();
    }
    let (theirs, ours) = (fields(database), fields(stored));
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let differ = names.into_iter().filter(|name| theirs.get(*name) != ours.get(*name));
    differ
        .map(|name| {
            let (theirs, ours) = (shown(theirs.get(name)), shown(ours.get(name)));
            format!("the database says {name} {theirs} and its manifest {ours}")
        })
        .collect()
}

fn fields(manifest: &ReleaseManifest) -> Map<String, Value> {
    match serde_json::to_value(manifest) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// The start of a value.
fn shown(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.escape_default().to_string(),
        Some(other) => other.to_string(),
    };
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// The problem of a release that does not open.
pub fn unopened(id: &ReleaseId, child: Option<&Child>, error: ReleaseError) -> Problem {
    let own = |kind, reason| Problem::new(kind, id, format!("release {id}"), reason);
    match error {
        ReleaseError::Corrupt(problem) => *problem,
        ReleaseError::NotFound { .. } => match child {
            Some(child) => {
                own(ProblemKind::CommitMissing, format!("its commit is missing; it is the parent of {}", child.label))
            }
            None => own(ProblemKind::CommitMissing, "its commit is missing".to_owned()),
        },
        other => own(ProblemKind::Unreadable, other.to_string()),
    }
}

impl ExpectedRelease {
    fn id(&self) -> &ReleaseId {
        &self.release.release_id
    }

    fn label(&self) -> String {
        format!("release r{} ({})", self.release.manifest.sequence, self.id())
    }
}

/// The database's releases, each seen or not.
struct Expected<'a> {
    by_id: BTreeMap<&'a ReleaseId, (&'a ExpectedRelease, bool)>,
    /// Sequence of the oldest release of each surface.
    oldest: BTreeMap<Surface, u32>,
    order: std::slice::Iter<'a, ExpectedRelease>,
}

impl<'a> Expected<'a> {
    fn new(expected: &'a [ExpectedRelease]) -> Self {
        let mut oldest = BTreeMap::new();
        for known in expected {
            let ReleaseManifest { surface, sequence, .. } = known.release.manifest;
            let least = oldest.entry(surface).or_insert(sequence);
            *least = sequence.min(*least);
        }
        Self {
            by_id: expected.iter().map(|known| (known.id(), (known, false))).collect(),
            oldest,
            order: expected.iter(),
        }
    }

    fn served(&self, surface: Surface) -> Option<&ExpectedRelease> {
        let mut known = self.by_id.values().map(|(known, _)| *known);
        known.find(|known| known.release.manifest.surface == surface && known.status == ExpectedStatus::Served)
    }

    fn see(&mut self, id: &ReleaseId) -> Option<&ExpectedRelease> {
        let (known, seen) = self.by_id.get_mut(id)?;
        *seen = true;
        Some(known)
    }

    fn next_unseen(&mut self) -> Option<ReleaseId> {
        let by_id = &self.by_id;
        let unseen = |known: &&ExpectedRelease| by_id.get(known.id()).is_some_and(|(_, seen)| !seen);
        self.order.find(unseen).map(|known| known.id().clone())
    }
}
