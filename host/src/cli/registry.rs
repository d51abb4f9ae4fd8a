//! `reef recipe publish|pull|list|sign|verify`: recipes in registries of the OCI kind, and who vouches for them.
//! A pulled component is not run here: the sandbox judges it when it is used. What is refused leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use reef_registry::{
    Access, Lock, Login, PrivateKey, PublicKey, Publication, Pulled, Reference, Registry, RegistryConfig,
    RegistryError, Signature, sign, verify,
};
use reef_sandbox::{Capability, Recipe, SandboxConfig};
use serde_json::json;

use super::{sandbox, show};
use crate::component_file;
use crate::config::Config;
use crate::error::StartError;

/// Variable with the password of the registry's user.
const PASSWORD: &str = "REEF_REGISTRY_PASSWORD";
/// Bytes of a signature and of a file of certificates.
const TEXT_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Subcommand)]
pub(super) enum RegistryCommand {
    /// Put a component into a registry, under the name and version of its manifest.
    #[command(
        after_help = "Example:\n  reef recipe publish my_recipe.wasm r.example.com/team/my-recipe --key mine.key"
    )]
    Publish(PublishArgs),
    /// Fetch a component from a registry; a version that stands for other code than the lock file says is refused.
    #[command(
        after_help = "Example:\n  reef recipe pull r.example.com/team/my-recipe:1.0.0 --trust theirs.key.pub --require-signature\n  reef recipe pull my-recipe@1.0.0 --registry r.example.com/team --out my_recipe.wasm"
    )]
    Pull(PullArgs),
    /// The versions of a recipe in a registry.
    #[command(after_help = "Example:\n  reef recipe list r.example.com/team/my-recipe")]
    List {
        /// `host/name`, or `name` with --registry.
        reference: String,
        #[command(flatten)]
        access: RegistryArgs,
    },
    /// Sign a component under the name of its manifest, or make a key to sign with.
    #[command(
        after_help = "Example:\n  reef recipe sign --new-key mine.key\n  reef recipe sign my_recipe.wasm --key mine.key"
    )]
    Sign(SignArgs),
    /// Did a trusted key sign these bytes under this name? The component is not run.
    #[command(
        after_help = "Example:\n  reef recipe verify my_recipe.wasm --name my-recipe --signature my_recipe.wasm.sig --trust mine.key.pub"
    )]
    Verify {
        /// Component.
        path: PathBuf,
        /// Name that it must be signed under.
        #[arg(long)]
        name: String,
        /// File that `reef recipe sign` wrote.
        #[arg(long)]
        signature: PathBuf,
        /// File of a public key whose signatures count. May be repeated.
        #[arg(long, required = true)]
        trust: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(super) struct PublishArgs {
    /// Component.
    path: PathBuf,
    /// `host/name`, or `name` with --registry; the version is that of the manifest.
    reference: String,
    /// File of the private key to sign with.
    #[arg(long, conflicts_with = "signature")]
    key: Option<PathBuf>,
    /// File that `reef recipe sign` wrote.
    #[arg(long)]
    signature: Option<PathBuf>,
    /// Replace a version that holds something else.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    access: RegistryArgs,
}

#[derive(Debug, Args)]
pub(super) struct PullArgs {
    /// `host/name:version`, `host/name@sha256:…`, or `name@version` with --registry.
    reference: String,
    /// The component; `<data>/recipes/<sha256>.wasm` if it is left out.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Folder of the server's data.
    #[arg(long, default_value = ".reef")]
    data: PathBuf,
    /// File that pins what each version stood for when it was first pulled.
    #[arg(long, default_value = "recipes.lock")]
    lock: PathBuf,
    /// Accept a version that stands for other code than the lock file says.
    #[arg(long)]
    update: bool,
    /// File of a public key whose signatures count. May be repeated.
    #[arg(long)]
    trust: Vec<PathBuf>,
    /// Refuse what no trusted key signed.
    #[arg(long)]
    require_signature: bool,
    #[command(flatten)]
    access: RegistryArgs,
}

#[derive(Debug, Args)]
pub(super) struct SignArgs {
    /// Component.
    #[arg(required_unless_present = "new_key")]
    path: Option<PathBuf>,
    /// File of the private key.
    #[arg(long, required_unless_present = "new_key")]
    key: Option<PathBuf>,
    /// Make a key: this file, and beside it the public one that ends in .pub.
    #[arg(long, conflicts_with_all = ["path", "key"])]
    new_key: Option<PathBuf>,
    /// The signature; beside the component with the ending .sig if it is left out.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct RegistryArgs {
    /// Default registry of short names: `host[:port][/prefix]`.
    #[arg(long, env = "REEF_REGISTRY")]
    registry: Option<String>,
    /// Host that is spoken to in plain http, besides this machine. May be repeated.
    #[arg(long)]
    insecure_host: Vec<String>,
    /// PEM file of certificates to trust, besides those of the system. May be repeated.
    #[arg(long)]
    root_certificate: Vec<PathBuf>,
    /// User to log in as; the password comes from REEF_REGISTRY_PASSWORD, because other programs see arguments.
    #[arg(long, env = "REEF_REGISTRY_USER")]
    user: Option<String>,
    /// Host of the registry's token service, which gets the log-in too.
    #[arg(long)]
    token_host: Option<String>,
    /// Seconds of the whole operation.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

pub(super) async fn run(command: RegistryCommand) -> Result<(), StartError> {
    match command {
        RegistryCommand::Publish(args) => publish(args).await,
        RegistryCommand::Pull(args) => pull(args).await,
        RegistryCommand::List { reference, access } => {
            let reference = access.reference(&reference)?;
            let tags = Registry::new(access.config(&reference)?).map_err(told)?.tags(&reference).await.map_err(told)?;
            tags.iter().for_each(|tag| println!("{tag}"));
            Ok(())
        }
        RegistryCommand::Sign(SignArgs { new_key: Some(path), .. }) => {
            let key = PrivateKey::generate().map_err(told)?;
            key.write(&path).map_err(told)?;
            show(&json!({ "key": key.public().id().as_str(), "private": path, "public": beside(&path, ".pub") }))
        }
        RegistryCommand::Sign(args) => sign_component(args).await,
        RegistryCommand::Verify { path, name, signature, trust } => {
            let (bytes_max, trusted) = (SandboxConfig::default().component_bytes_max, trusted(&trust)?);
            let component = component_file::read_async(&path, bytes_max).await?;
            let verified = verify(&name, &component, &read_signature(&signature)?, &trusted).map_err(told)?;
            show(&json!({ "name": name, "signed_by": verified.key.as_str() }))
        }
    }
}

impl RegistryArgs {
    fn reference(&self, text: &str) -> Result<Reference, StartError> {
        Reference::parse(text, self.registry.as_deref()).map_err(told)
    }

    /// The log-in is for the registry of this reference alone.
    fn config(&self, reference: &Reference) -> Result<RegistryConfig, StartError> {
        let mut config = RegistryConfig { default: self.registry.clone(), ..RegistryConfig::default() };
        config.insecure_hosts.extend(self.insecure_host.iter().cloned());
        let read = |path: &PathBuf| component_file::read(path, TEXT_BYTES_MAX);
        config.root_certificates = self.root_certificate.iter().map(read).collect::<Result<_, _>>()?;
        config.timeout = Duration::from_secs(self.timeout);
        let login = self.user.clone().map(login).transpose()?;
        if login.is_some() || self.token_host.is_some() {
            let access = Access { login, token_host: self.token_host.clone() };
            config.access = BTreeMap::from([(reference.host().to_owned(), access)]);
        }
        Ok(config)
    }
}

fn login(user: String) -> Result<Login, StartError> {
    let password = std::env::var(PASSWORD).map_err(|_| {
        StartError::Config(format!("there is a user for the registry and no password; put it into {PASSWORD}"))
    })?;
    Ok(Login { user, password })
}

async fn publish(args: PublishArgs) -> Result<(), StartError> {
    let (component, recipe) = described(&args.path).await?;
    let (name, version) = (recipe.manifest().name.clone(), recipe.manifest().version.clone());
    let mut reference = args.access.reference(&args.reference)?;
    if reference.tag().is_none() && reference.digest().is_none() {
        reference = reference.with_tag(&version).map_err(told)?;
    }
    if reference.name() != name || reference.tag() != Some(version.as_str()) {
        return Err(StartError::Recipe(format!(
            "{} says that it is {name} {version}, and {reference} names something else; publish it as {}/…/{name}:{version}",
            args.path.display(),
            reference.host()
        )));
    }
    let signature = match (&args.key, &args.signature) {
        (Some(key), _) => Some(sign(&name, &component, &PrivateKey::read(key).map_err(told)?)),
        (None, Some(path)) => Some(read_signature(path)?),
        (None, None) => None,
    };
    let signed_by = signature.as_ref().map(|made| made.key().to_string());
    let publication = Publication { name, version, world: world(&recipe), signature, replace: args.replace };
    let registry = Registry::new(args.access.config(&reference)?).map_err(told)?;
    let published = registry.publish(&reference, &component, &publication).await.map_err(told)?;
    show(&json!({
        "reference": reference.to_string(),
        "pinned": reference.pinned(published.manifest_digest).to_string(),
        "sha256": published.digest.hex(),
        "signed_by": signed_by,
    }))
}

async fn pull(args: PullArgs) -> Result<(), StartError> {
    let reference = args.access.reference(&args.reference)?;
    let mut lock = Lock::read(&args.lock).map_err(told)?;
    let mut config = args.access.config(&reference)?;
    (config.trusted_keys, config.require_signature) = (trusted(&args.trust)?, args.require_signature);
    let pulled = Registry::new(config).map_err(told)?.pull(&reference).await.map_err(told)?;
    // A digest in the reference pins it already.
    let by_tag = reference.digest().is_none();
    if by_tag {
        lock.check(&reference, &pulled.digest, args.update).map_err(told)?;
    }
    let kept = format!("{}.wasm", pulled.digest.hex());
    let out = args.out.clone().unwrap_or_else(|| args.data.join("recipes").join(kept));
    write(&out, &pulled.bytes)?;
    if by_tag {
        lock.accept(&reference, pulled.digest).map_err(told)?;
    }
    show(&json!({
        "component": out,
        "sha256": pulled.digest.hex(),
        "pinned": reference.pinned(pulled.manifest_digest).to_string(),
        "signature": judged(&pulled),
    }))
}

fn judged(pulled: &Pulled) -> String {
    match (&pulled.signature, &pulled.stranger) {
        (Some(verified), _) => format!("signed with the trusted key {}", verified.key),
        (None, Some(stranger)) => format!("signed with the key {stranger}, which is not trusted: as good as unsigned"),
        (None, None) => "not signed".to_owned(),
    }
}

async fn sign_component(args: SignArgs) -> Result<(), StartError> {
    let (Some(path), Some(key)) = (args.path, args.key) else {
        return Err(StartError::Config("name a component and its --key, or make a key with --new-key".to_owned()));
    };
    let (component, recipe) = described(&path).await?;
    let key = PrivateKey::read(&key).map_err(told)?;
    let name = &recipe.manifest().name;
    let out = args.out.unwrap_or_else(|| beside(&path, ".sig"));
    write(&out, format!("{}\n", sign(name, &component, &key)).as_bytes())?;
    show(&json!({ "name": name, "signature": out, "signed_by": key.public().id().as_str() }))
}

/// The bytes of a component, and what the sandbox makes of them: only a recipe is signed and published.
async fn described(path: &Path) -> Result<(Vec<u8>, Recipe), StartError> {
    let mut config = Config::default();
    config.recipes.grants = Some(Capability::ALL.into_iter().collect());
    let (recipe, bytes) = component_file::load(&sandbox(&config.sandbox)?, path, &config).await?;
    Ok((bytes, recipe))
}

/// The world that the component is built for.
fn world(recipe: &Recipe) -> String {
    let name = if recipe.generation() == "0.1.0" { "weight-recipe" } else { "recipe" };
    format!("reef:recipe/{name}@{}", recipe.generation())
}

fn trusted(paths: &[PathBuf]) -> Result<Vec<PublicKey>, StartError> {
    paths.iter().map(|path| PublicKey::read(path).map_err(told)).collect()
}

fn read_signature(path: &Path) -> Result<Signature, StartError> {
    let text = component_file::read(path, TEXT_BYTES_MAX)?;
    let signature = String::from_utf8_lossy(&text).trim().parse::<Signature>();
    signature.map_err(|error| StartError::Recipe(format!("{}: {error}", path.display())))
}

/// Writes a file in one step; its folder is made.
fn write(path: &Path, bytes: &[u8]) -> Result<(), StartError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder).and_then(|()| {
        let file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(folder)?;
        std::fs::write(file.path(), bytes)?;
        file.persist(path).map(drop).map_err(|error| error.error)
    });
    written
        .map_err(|error| StartError::Recipe(format!("{} cannot be written: {error}; check its folder", path.display())))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// A name that cannot be meant is the caller's; everything else is a recipe that is not there or not to be had.
fn told(error: RegistryError) -> StartError {
    match error {
        RegistryError::Reference { .. } => StartError::Config(error.to_string()),
        other => StartError::Recipe(other.to_string()),
    }
}
