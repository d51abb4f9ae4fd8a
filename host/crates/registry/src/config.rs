//! Settings of the registry client, as the configuration file gives them. Checked once, when the client is made.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::reference::check_host;
use crate::{PublicKey, Reference, RegistryError};

/// Bytes of a component by default: what the sandbox takes.
const COMPONENT_BYTES_MAX: u64 = 64 << 20;
/// Time of one operation by default: 64 MiB over a slow line.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How to reach registries and whom to trust.
#[derive(Debug, Clone)]
pub struct RegistryConfig {
    /// `host[:port][/prefix]` that short names are resolved against.
    pub default: Option<String>,
    /// Hosts (`host` or `host:port`) that are spoken to in plain http; all others in https. Default: this machine.
    pub insecure_hosts: Vec<String>,
    /// PEM certificates to trust besides those of the system.
    pub root_certificates: Vec<Vec<u8>>,
    /// Log-ins by registry host (`host` or `host:port`, as references write it).
    pub access: BTreeMap<String, Access>,
    /// Time of one whole operation, retries included.
    pub timeout: Duration,
    /// Bytes of a component that is pulled or published.
    pub component_bytes_max: u64,
    /// Keys whose signatures count.
    pub trusted_keys: Vec<PublicKey>,
    /// Whether a recipe without a signature by a trusted key is refused.
    pub require_signature: bool,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            default: None,
            insecure_hosts: ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec(),
            root_certificates: Vec::new(),
            access: BTreeMap::new(),
            timeout: TIMEOUT,
            component_bytes_max: COMPONENT_BYTES_MAX,
            trusted_keys: Vec::new(),
            require_signature: false,
        }
    }
}

/// What one registry wants to know and where it may send us for a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// User and password; none for anonymous access.
    pub login: Option<Login>,
    /// Host (`host` or `host:port`) of the token service when it is not the registry itself; also gets the log-in.
    pub token_host: Option<String>,
}

/// User and password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Name.
    pub user: String,
    /// Password or access token.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.user)
    }
}

impl RegistryConfig {
    /// Refuses settings that contradict each other or cannot be meant.
    pub(crate) fn check(&self) -> Result<(), RegistryError> {
        if self.require_signature && self.trusted_keys.is_empty() {
            return refuse(
                "signatures are required and no key is trusted; add a trusted key, or do not require signatures",
            );
        }
        if self.timeout.is_zero() {
            return refuse("the registry's time-out is 0; give seconds, the default is 300");
        }
        if self.component_bytes_max == 0 {
            return refuse("the largest component allowed has 0 bytes; give bytes, the default is 67108864");
        }
        if let Some(default) = &self.default {
            Reference::parse("name@version", Some(default)).map_err(|error| {
                RegistryError::Config(format!("the default registry '{default}' is not host[:port][/prefix]: {error}"))
            })?;
        }
        let token_hosts = self.access.values().filter_map(|access| access.token_host.as_ref());
        for host in self.insecure_hosts.iter().chain(self.access.keys()).chain(token_hosts) {
            check_host(host).map_err(|rule| RegistryError::Config(format!("registry settings: {rule}")))?;
        }
        let logins = self.access.values().filter_map(|access| access.login.as_ref());
        for login in logins {
            if login.user.contains(':') || login.user.chars().chain(login.password.chars()).any(char::is_control) {
                return refuse("a registry's user name has a colon, or the log-in a control character; correct it");
            }
        }
        Ok(())
    }
}

fn refuse(problem: &str) -> Result<(), RegistryError> {
    Err(RegistryError::Config(problem.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_meant_are_refused() {
        let base = RegistryConfig::default();
        base.check().expect("the default is valid");
        for (config, part) in [
            (RegistryConfig { require_signature: true, ..base.clone() }, "no key is trusted"),
            (RegistryConfig { timeout: Duration::ZERO, ..base.clone() }, "time-out is 0"),
            (RegistryConfig { component_bytes_max: 0, ..base.clone() }, "0 bytes"),
            (RegistryConfig { default: Some("https://r.example.com".to_owned()), ..base.clone() }, "default registry"),
            (RegistryConfig { insecure_hosts: vec!["http://r".to_owned()], ..base.clone() }, "is no host"),
        ] {
            let refusal = config.check().expect_err(part).to_string();
            assert!(refusal.contains(part), "{refusal}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let login = Login { user: "ann".to_owned(), password: "secret".to_owned() };
        assert!(!format!("{login:?}").contains("secret"));
    }
}
