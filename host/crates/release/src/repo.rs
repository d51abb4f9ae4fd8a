//! The handle: writes releases and moves heads.
//! Each call opens its own view of the repository, so that handles are free to cross threads and a `git gc` by somebody
//! else is seen at once. Order of a write: LFS objects, git objects, the reference that keeps them; each durable before the next.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gix::ObjectId;
use gix::actor::Signature;
use gix::date::Time;
use gix::objs::{Commit, Kind};
use gix::refs::{FullName, Target};
use reef_core::{Release, ReleaseId, ReleaseManifest, ReleaseOrigin, ScenarioName, Surface, TenantId};

use crate::error::git;
use crate::manifest::StoredManifest;
use crate::marks::unmark;
use crate::names::{ATTRIBUTES, ATTRIBUTES_TEXT, Chain, MANIFEST, SIGNATURE, branch, is_lfs, retaining};
use crate::objects::Writer;
use crate::read::Opened;
use crate::refs::{Swap, swap};
use crate::sweep_lock::share;
use crate::{ReleaseError, ReleaseFile, ReleaseKey, ReleasePublicKey, folder, lfs};

/// Author and committer of every release; the manifest says who and why.
const AUTHOR: (&str, &str) = ("Reef", "reef@localhost");

/// A bare git repository with LFS objects. Cheap to clone; calls block on the disk.
#[derive(Debug, Clone)]
pub struct ReleaseRepo {
    path: Arc<PathBuf>,
    /// Serialises reference changes of this process; other processes are kept out by git's lock files.
    refs: Arc<Mutex<()>>,
    signing: Option<Arc<ReleaseKey>>,
    /// Empty: signatures are not looked at.
    pub(crate) trusted: Arc<[ReleasePublicKey]>,
}

impl ReleaseRepo {
    /// Opens the repository, making a bare one if the folder is absent or empty.
    ///
    /// Errors: `Folder` for a folder that is something else, `Disk`.
    pub fn open(path: &Path) -> Result<Self, ReleaseError> {
        let path = folder::absolute(path)?;
        folder::prepare(&path)?;
        Ok(Self::at(path))
    }

    /// Opens a repository that is there, to read: nothing is made, repaired or tidied up.
    ///
    /// Errors: `Folder` for a folder that is absent or something else.
    pub fn open_to_read(path: &Path) -> Result<Self, ReleaseError> {
        let path = folder::absolute(path)?;
        folder::require(&path)?;
        Ok(Self::at(path))
    }

    fn at(path: PathBuf) -> Self {
        Self { path: Arc::new(path), refs: Arc::default(), signing: None, trusted: Arc::default() }
    }

    /// Signs every release that is written from now on. The signature is part of the commit: a step that is done again
    /// after a crash gives the same release only with the same key.
    pub fn signed_with(self, key: ReleaseKey) -> Self {
        Self { signing: Some(Arc::new(key)), ..self }
    }

    /// Reads only releases that one of these keys signed; without keys, every release.
    pub fn trusting(self, keys: Vec<ReleasePublicKey>) -> Self {
        Self { trusted: keys.into(), ..self }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a release and keeps it for good; no head moves. The same manifest and files give the same release.
    ///
    /// Errors: `Path`, `Manifest` and `TooLarge` for input, `NotFound` for an absent parent, `Disk`, `Git`, `Locked`.
    pub fn write(&self, manifest: &ReleaseManifest, files: &[ReleaseFile]) -> Result<Release, ReleaseError> {
        let stored = StoredManifest::describe(manifest, files)?;
        let repo = self.git()?;
        if let Some(parent) = &manifest.parent {
            match Opened::find(&repo, parent) {
                // Its signature does not matter here: a chain may begin to be signed at any release.
                Ok(found) => follows(&found.stored.manifest, manifest)?,
                // The way back from a damaged head: its id stays in the history, whatever is left of it.
                Err(ReleaseError::Corrupt(_) | ReleaseError::NotFound { .. })
                    if matches!(manifest.origin, ReleaseOrigin::Rollback { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let _kept_from_sweeping = share(&self.path)?;
        let commit = self.write_commit(&repo, &stored, files)?;
        let release = stored.release(&release_id(commit)?)?;
        let _turn = self.turn();
        // A reference of that name can only hold that commit: losing the swap means that it is there.
        swap(&repo, &retaining(&release.release_id), None, Target::Object(commit))?;
        unmark(&self.path, &release.release_id)?;
        Ok(release)
    }

    fn write_commit(
        &self,
        repo: &gix::Repository,
        stored: &StoredManifest,
        files: &[ReleaseFile],
    ) -> Result<ObjectId, ReleaseError> {
        let mut sorted: Vec<&ReleaseFile> = files.iter().collect();
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        let mut writer = Writer::new(repo);
        let text = stored.encode()?;
        let mut tree = vec![
            (MANIFEST.to_owned(), writer.put(Kind::Blob, &text)?),
            (ATTRIBUTES.to_owned(), writer.put(Kind::Blob, ATTRIBUTES_TEXT)?),
        ];
        if let Some(key) = &self.signing {
            tree.push((SIGNATURE.to_owned(), writer.put(Kind::Blob, key.sign(&text).as_bytes())?));
        }
        for (entry, file) in stored.files.iter().zip(sorted) {
            let blob = if is_lfs(&entry.path) {
                if entry.size > 0 {
                    lfs::put(&self.path, &entry.sha256, &file.bytes)?;
                }
                writer.put(Kind::Blob, lfs::pointer(entry).as_bytes())?
            } else {
                writer.put(Kind::Blob, &file.bytes)?
            };
            tree.push((entry.path.clone(), blob));
        }
        let time = Time { seconds: stored.manifest.created_at_ms / 1_000, offset: 0 };
        let author = Signature { name: AUTHOR.0.into(), email: AUTHOR.1.into(), time };
        let commit = Commit {
            tree: writer.put_tree(&tree)?,
            parents: stored.manifest.parent.iter().map(object_id).collect::<Result<_, _>>()?,
            author: author.clone(),
            committer: author,
            encoding: None,
            message: stored.commit_message()?.into(),
            extra_headers: Vec::new(),
        };
        let id = writer.put_object(&commit)?;
        writer.finish()?;
        Ok(id)
    }

    /// Makes `to` the head of its scenario and surface if the head is `expected` (`None`: if there is none).
    ///
    /// Errors: `HeadMoved` when it is not, `NotFound`, `OtherScenario`, `Disk`, `Git`, `Locked`.
    pub fn advance(
        &self,
        tenant: &TenantId,
        scenario: &ScenarioName,
        expected: Option<&ReleaseId>,
        to: &ReleaseId,
    ) -> Result<(), ReleaseError> {
        let repo = self.git()?;
        let opened = self.opened(&repo, to)?;
        if !opened.stored.is_of(tenant, scenario) {
            let (tenant, scenario) = (tenant.clone(), scenario.clone());
            return Err(ReleaseError::OtherScenario { release: opened.label(), tenant, scenario });
        }
        let name = branch((tenant, scenario, opened.stored.manifest.surface));
        let _turn = self.turn();
        let old = expected.map(object_id).transpose()?.map(Target::Object);
        // Asked here too: git takes a second creation with the same value for a success.
        let found = head(&repo, &name)?;
        if found.as_ref() == expected && swap(&repo, &name, old, Target::Object(object_id(to)?))? == Swap::Done {
            return point_default_branch(&repo, &name);
        }
        let (tenant, scenario) = (tenant.clone(), scenario.clone());
        Err(ReleaseError::HeadMoved { tenant, scenario, expected: expected.cloned(), found: head(&repo, &name)? })
    }

    /// The head of the weights of a scenario, if it has one.
    ///
    /// Errors: `Disk`, `Git`.
    pub fn head(&self, tenant: &TenantId, scenario: &ScenarioName) -> Result<Option<ReleaseId>, ReleaseError> {
        self.head_of((tenant, scenario, Surface::Weights))
    }

    /// The head of the harness of a scenario, if it has one.
    ///
    /// Errors: `Disk`, `Git`.
    pub fn harness_head(&self, tenant: &TenantId, scenario: &ScenarioName) -> Result<Option<ReleaseId>, ReleaseError> {
        self.head_of((tenant, scenario, Surface::Harness))
    }

    /// The head of the routing policy of a scenario, if it has one.
    ///
    /// Errors: `Disk`, `Git`.
    pub fn router_head(&self, tenant: &TenantId, scenario: &ScenarioName) -> Result<Option<ReleaseId>, ReleaseError> {
        self.head_of((tenant, scenario, Surface::Router))
    }

    pub(crate) fn head_of(&self, chain: Chain<'_>) -> Result<Option<ReleaseId>, ReleaseError> {
        head(&self.git()?, &branch(chain))
    }

    /// A view of the repository for one call.
    pub(crate) fn git(&self) -> Result<gix::Repository, ReleaseError> {
        folder::open(&self.path).map_err(git("open", &self.path))
    }

    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.refs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A release comes after its parent; only the first of a scenario may come from another scenario, of the same tenant.
fn follows(parent: &ReleaseManifest, child: &ReleaseManifest) -> Result<(), ReleaseError> {
    let refuse = |problem: String| Err(ReleaseError::Manifest { problem });
    if parent.tenant != child.tenant {
        return refuse("its parent belongs to another tenant".to_owned());
    }
    if parent.surface != child.surface {
        let (theirs, own) = (parent.surface.as_str(), child.surface.as_str());
        return refuse(format!("its parent is a release of {theirs} and it is one of {own}"));
    }
    if parent.scenario != child.scenario && child.sequence != 0 {
        let (theirs, own) = (&parent.scenario, child.sequence);
        return refuse(format!(
            "its parent belongs to scenario '{theirs}'; only the first release of a scenario may come from another one, and this is r{own}"
        ));
    }
    if parent.scenario == child.scenario && child.sequence <= parent.sequence {
        return refuse(format!("its sequence is {} and its parent's is {}", child.sequence, parent.sequence));
    }
    Ok(())
}

pub(crate) fn head(repo: &gix::Repository, name: &str) -> Result<Option<ReleaseId>, ReleaseError> {
    let found = repo.try_find_reference(name).map_err(git("read the references of", repo.path()))?;
    match found.as_ref().map(|reference| reference.target().into_owned()) {
        Some(Target::Object(id)) => release_id(id).map(Some),
        Some(Target::Symbolic(_)) => {
            Err(ReleaseError::Git { doing: "read a head", cause: format!("{name} is symbolic") })
        }
        None => Ok(None),
    }
}

/// Points HEAD at the first branch there is, so that `git clone` checks something out.
fn point_default_branch(repo: &gix::Repository, name: &str) -> Result<(), ReleaseError> {
    let now = repo.head().map_err(git("read HEAD of", repo.path()))?;
    let unborn = now.referent_name().filter(|_| now.is_unborn()).map(|name| name.to_owned());
    let Some(unborn) = unborn.filter(|unborn| unborn.as_bstr() != name) else { return Ok(()) };
    let new =
        FullName::try_from(name).map_err(|error| ReleaseError::Git { doing: "name HEAD", cause: error.to_string() })?;
    // Losing means that another branch became the first.
    swap(repo, "HEAD", Some(Target::Symbolic(unborn)), Target::Symbolic(new)).map(drop)
}

/// The commit of a release.
pub fn object_id(id: &ReleaseId) -> Result<ObjectId, ReleaseError> {
    ObjectId::from_hex(id.as_str().as_bytes())
        .map_err(|error| ReleaseError::Git { doing: "read a release id", cause: error.to_string() })
}

/// The release of a commit.
pub fn release_id(commit: ObjectId) -> Result<ReleaseId, ReleaseError> {
    ReleaseId::parse(commit.to_string())
        .map_err(|error| ReleaseError::Git { doing: "name a release", cause: error.to_string() })
}
