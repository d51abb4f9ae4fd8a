//! `GET /reef/harness/install`: the script that installs a harness release for one agent program.
//! It is made for whoever asks: the address in it is the one that the request came to, and it holds no token.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use reef_harness::{Binding, InstalledRelease, RenderError, install_script, render};
use reef_store::{ListedRelease, ReleaseStatus};
use serde::Deserialize;

use super::Harnesses;
use crate::config::Scope;
use crate::http::caller::Caller;
use crate::http::error::ApiError;
use crate::http::params::Query;

/// Part of the context that one answer may take.
const OUTPUT_SHARE: usize = 4;
/// Tokens of one answer.
const OUTPUT_TOKENS_MAX: usize = 8_192;

/// Query of the script.
#[derive(Debug, Deserialize)]
pub struct Installed {
    adapter: Option<String>,
    release_id: Option<String>,
    /// Version of the agent program; the adapter's pin by default.
    version: Option<String>,
}

/// The script, for `sh`.
pub async fn install(
    State(harnesses): State<Harnesses>,
    caller: Caller,
    headers: HeaderMap,
    Query(wanted): Query<Installed>,
) -> Result<Response, ApiError> {
    let scenario = harnesses.open(&caller, Scope::Read).await?;
    let adapters = harnesses.shop.adapters();
    let names = || adapters.iter().map(|adapter| adapter.name.as_str()).collect::<Vec<_>>().join(", ");
    let adapter = wanted.adapter.as_deref().and_then(|name| adapters.get(name));
    let adapter = adapter
        .ok_or_else(|| ApiError::invalid("adapter", format!("name an agent program in 'adapter': {}", names())))?;
    let version = wanted.version.as_deref().map(str::parse).transpose();
    let version = version.map_err(|error| ApiError::invalid("version", format!("'version' is no version: {error}")))?;
    let ListedRelease { release, status } = harnesses.release(&scenario, wanted.release_id.as_deref()).await?;
    let id = &release.release_id;
    if matches!(status, ReleaseStatus::Held | ReleaseStatus::Rejected) {
        return Err(ApiError::conflict(format!("release {id} was not accepted; promote it first, or install another")));
    }
    let content = harnesses.scenarios.harness_content(id).await?;
    let info = harnesses.engine.info();
    let tokens = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let binding = Binding {
        url: address(&headers)?,
        model: harnesses.shop.model(),
        scenario: scenario.key.1.clone(),
        release: id.to_string(),
        context_tokens: tokens(info.context_length),
        output_tokens: tokens((info.context_length / OUTPUT_SHARE).min(OUTPUT_TOKENS_MAX)),
        version,
    };
    let rendering = render(&content.tree, adapter, &binding).map_err(refused)?;
    let installed = InstalledRelease {
        release_id: id.clone(),
        content_id: release.content_id,
        step: release.manifest.sequence,
        requires: content.requires,
    };
    let script = install_script(adapter, &installed, &rendering, &binding);
    let heads = [(header::CONTENT_TYPE, "text/x-shellscript; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    Ok((heads, script).into_response())
}

/// The address that the client used, as a proxy or the client itself says it.
fn address(headers: &HeaderMap) -> Result<String, ApiError> {
    let said = |name: &'static str| -> Result<Option<&str>, ApiError> {
        let Some(value) = headers.get(name) else { return Ok(None) };
        let text = value.to_str().map_err(|_| ApiError::invalid(name, format!("the header {name} is not ASCII")))?;
        // Of several proxies the first in the list is the client's own.
        Ok(text.split(',').next().map(str::trim).filter(|text| !text.is_empty()))
    };
    let scheme = said("x-forwarded-proto")?.unwrap_or("http");
    if !["http", "https"].contains(&scheme) {
        return Err(ApiError::invalid("x-forwarded-proto", "the header x-forwarded-proto is 'http' or 'https'"));
    }
    let host = match said("x-forwarded-host")? {
        Some(host) => Some(host),
        None => said("host")?,
    };
    let host = host.ok_or_else(|| ApiError::invalid("host", "the header Host is missing; it is part of the script"))?;
    Ok(format!("{scheme}://{host}"))
}

fn refused(error: RenderError) -> ApiError {
    match &error {
        RenderError::Version { .. } => ApiError::invalid("version", error.to_string()),
        RenderError::Binding { name, .. } => ApiError::invalid(*name, error.to_string()),
        RenderError::Collision { .. } | RenderError::Document { .. } => ApiError::conflict(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pairs: &[(&'static str, &'static str)]) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().expect("a value"));
        }
        address(&headers).map_err(|error| error.param.unwrap_or_default())
    }

    #[test]
    fn the_address_is_the_one_that_the_client_used() {
        assert_eq!(told(&[("host", "127.0.0.1:8420")]), Ok("http://127.0.0.1:8420".to_owned()));
        let proxied = [("host", "inner"), ("x-forwarded-proto", "https"), ("x-forwarded-host", "reef.example.org, b")];
        assert_eq!(told(&proxied), Ok("https://reef.example.org".to_owned()));
        assert_eq!(told(&[]), Err("host".to_owned()));
        assert_eq!(told(&[("host", "a"), ("x-forwarded-proto", "file")]), Err("x-forwarded-proto".to_owned()));
    }
}
