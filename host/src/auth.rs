//! Who is asking: bearer tokens become a tenant with scopes.
//! The HTTP side calls `Auth::principal` once per request. Tokens are compared as digests in constant
//! time and never kept in clear.

use std::collections::BTreeSet;

use reef_core::{ScenarioName, TenantId, sha256_hex};

use crate::config::{AuthSection, Scope};
use crate::error::StartError;
use crate::scenarios::ScenarioKey;

/// The bearer of a request.
#[derive(Debug, Clone)]
pub struct Principal {
    /// Whose data it may touch.
    pub tenant: TenantId,
    /// Who it is, where the token says so.
    pub name: Option<String>,
    scopes: Vec<Scope>,
    /// Scenario of requests that name none.
    pub default_scenario: Option<ScenarioName>,
    scenarios: Option<Vec<ScenarioName>>,
}

impl Principal {
    /// May it do this?
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// The agent of an episode: it may ask models in one scenario and nothing else.
    pub fn episode((tenant, scenario): &ScenarioKey) -> Self {
        Self {
            tenant: tenant.clone(),
            name: None,
            scopes: vec![Scope::Evaluate],
            default_scenario: Some(scenario.clone()),
            scenarios: Some(vec![scenario.clone()]),
        }
    }

    /// May it touch this scenario?
    pub fn sees(&self, scenario: &ScenarioName) -> bool {
        self.scenarios.as_ref().is_none_or(|allowed| allowed.contains(scenario))
    }
}

#[derive(Debug)]
struct Entry {
    digest: String,
    principal: Principal,
}

/// All known tokens; without any, everybody is the loopback principal.
#[derive(Debug)]
pub struct Auth {
    entries: Vec<Entry>,
    anonymous: Option<Principal>,
}

/// Bytes of a bearer's name: it is part of what a release says of itself.
const NAME_BYTES_MAX: usize = 128;
/// The tenant of requests without tokens.
const ANONYMOUS_TENANT: &str = "default";

impl Auth {
    /// Reads digests and variables; an empty variable is an error, not an open door.
    pub fn from_config(section: &AuthSection, default_scenario: &ScenarioName) -> Result<Self, StartError> {
        let mut entries = Vec::with_capacity(section.tokens.len());
        for (index, token) in section.tokens.iter().enumerate() {
            let digest = match (&token.sha256, &token.env) {
                (Some(digest), _) if digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()) => {
                    digest.to_ascii_lowercase()
                }
                (Some(_), _) => {
                    return Err(StartError::Config(format!(
                        "auth.tokens[{index}].sha256 is not 64 hex digits; make it with: printf %s \"$TOKEN\" | sha256sum"
                    )));
                }
                (None, Some(variable)) => digest_of_variable(variable)?,
                (None, None) => {
                    return Err(StartError::Config(format!("auth.tokens[{index}] needs 'sha256' or 'env'")));
                }
            };
            if let Some(name) = &token.name
                && (name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control))
            {
                return Err(StartError::Config(format!(
                    "auth.tokens[{index}].name must be one line of 1 to {NAME_BYTES_MAX} bytes"
                )));
            }
            let principal = Principal {
                tenant: token.tenant.clone(),
                name: token.name.clone(),
                scopes: token.scopes.clone(),
                default_scenario: token.default_scenario.clone(),
                scenarios: token.scenarios.clone(),
            };
            entries.push(Entry { digest, principal });
        }
        let anonymous = entries.is_empty().then(|| anonymous(default_scenario)).transpose()?;
        Ok(Self { entries, anonymous })
    }

    /// True if no token is configured: then only loopback may be served.
    pub fn is_open(&self) -> bool {
        self.anonymous.is_some()
    }

    /// The principal of a presented token.
    pub fn principal(&self, token: Option<&str>) -> Option<&Principal> {
        if let Some(anonymous) = &self.anonymous {
            return Some(anonymous);
        }
        let digest = sha256_hex(token?.as_bytes());
        // Every entry is compared, so that timing does not tell which one came close.
        self.entries.iter().fold(None, |found, entry| {
            if constant_time_equal(entry.digest.as_bytes(), digest.as_bytes()) { Some(&entry.principal) } else { found }
        })
    }
}

/// How many tenants may ask for something.
pub fn tenants(section: &AuthSection) -> usize {
    section.tokens.iter().map(|token| &token.tenant).collect::<BTreeSet<_>>().len().max(1)
}

fn anonymous(default_scenario: &ScenarioName) -> Result<Principal, StartError> {
    Ok(Principal {
        tenant: TenantId::parse(ANONYMOUS_TENANT).map_err(|e| StartError::Other(e.to_string()))?,
        name: None,
        scopes: vec![Scope::Infer, Scope::Report, Scope::Read, Scope::Admin, Scope::Evaluate],
        default_scenario: Some(default_scenario.clone()),
        scenarios: None,
    })
}

fn digest_of_variable(variable: &str) -> Result<String, StartError> {
    match std::env::var(variable) {
        Ok(token) if !token.trim().is_empty() => Ok(sha256_hex(token.as_bytes())),
        _ => Err(StartError::Config(format!(
            "the environment variable {variable}, named by auth.tokens, is empty; set it or remove the entry"
        ))),
    }
}

fn constant_time_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0u8, |difference, (x, y)| difference | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TokenEntry;

    fn entry(token: &str, tenant: &str) -> TokenEntry {
        TokenEntry {
            sha256: Some(sha256_hex(token.as_bytes())),
            env: None,
            name: Some("Ada".to_owned()),
            tenant: TenantId::parse(tenant).expect("tenant"),
            scopes: vec![Scope::Infer],
            default_scenario: None,
            scenarios: Some(vec![ScenarioName::parse("only").expect("name")]),
        }
    }

    fn auth(tokens: Vec<TokenEntry>) -> Result<Auth, StartError> {
        Auth::from_config(&AuthSection { tokens }, &ScenarioName::parse("default").expect("name"))
    }

    #[test]
    fn tokens_map_to_tenants_and_scopes() {
        let auth = auth(vec![entry("s3cret", "acme"), entry("other", "beta")]).expect("auth");
        let acme = auth.principal(Some("s3cret")).expect("known");
        assert_eq!((acme.tenant.as_str(), acme.name.as_deref()), ("acme", Some("Ada")));
        assert!(acme.may(Scope::Infer) && !acme.may(Scope::Admin));
        assert!(!acme.sees(&ScenarioName::parse("elsewhere").expect("name")));
        assert!(auth.principal(Some("wrong")).is_none() && auth.principal(None).is_none());
    }

    #[test]
    fn without_tokens_everybody_is_the_default_tenant() {
        let auth = auth(Vec::new()).expect("auth");
        assert!(auth.is_open());
        assert_eq!(auth.principal(None).expect("anonymous").tenant.as_str(), "default");
    }

    #[test]
    fn a_name_is_one_short_line() {
        for name in ["", "two\nlines", &"x".repeat(129)] {
            let named = TokenEntry { name: Some(name.to_owned()), ..entry("s3cret", "acme") };
            assert!(auth(vec![named]).expect_err("refused").to_string().contains("auth.tokens[0].name"), "{name:?}");
        }
    }

    #[test]
    fn an_empty_variable_does_not_open_the_door() {
        let mut token = entry("x", "acme");
        token.sha256 = None;
        token.env = Some("REEF_TEST_TOKEN_THAT_IS_NOT_SET".to_owned());
        assert!(auth(vec![token]).expect_err("refused").to_string().contains("REEF_TEST_TOKEN_THAT_IS_NOT_SET"));
    }
}
