//! Tokens, scopes and tenants.

use reef::config::{Scope, TokenEntry};
use reef_core::{ScenarioName, TenantId, sha256_hex};
use reqwest::StatusCode;
use serde_json::json;

use crate::support::TestHost;

fn token(secret: &str, tenant: &str, scopes: &[Scope]) -> TokenEntry {
    TokenEntry {
        sha256: Some(sha256_hex(secret.as_bytes())),
        env: None,
        name: None,
        tenant: TenantId::parse(tenant).unwrap(),
        scopes: scopes.to_vec(),
        default_scenario: Some(ScenarioName::parse("home").unwrap()),
        scenarios: None,
    }
}

#[tokio::test]
async fn tenants_never_see_each_other_and_scopes_are_kept() {
    let all = [Scope::Infer, Scope::Report, Scope::Read, Scope::Admin];
    let host = TestHost::start(|config| {
        config.auth.tokens =
            vec![token("a", "acme", &all), token("b", "beta", &all), token("r", "acme", &[Scope::Report])];
    })
    .await;
    let acme = host.caller("shared-name").with_token("a");
    let beta = host.caller("shared-name").with_token("b");
    let receipt = acme.chat("hi", json!({})).await.ok().receipt();
    // The same name in another tenant is another scenario, and the first one's record is not there.
    assert_eq!(beta.get(&beta.path("/releases")).await.status, StatusCode::NOT_FOUND);
    beta.chat("hi", json!({})).await.ok();
    assert_eq!(beta.report(&receipt, 1.0).await.status, StatusCode::NOT_FOUND);
    assert_eq!(beta.get(&beta.path(&format!("/records/{receipt}"))).await.status, StatusCode::NOT_FOUND);
    let reporter = host.caller("shared-name").with_token("r");
    assert_eq!(reporter.report(&receipt, 1.0).await.status, StatusCode::OK);
    let refused = reporter.chat("hi", json!({})).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("'infer'"));
    for caller in [host.caller("x"), host.caller("x").with_token("wrong")] {
        let answer = caller.chat("hi", json!({})).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    let by_key = acme.http.get(format!("{}/v1/models", host.url)).header("x-api-key", "a").send().await.unwrap();
    assert_eq!(by_key.status(), StatusCode::OK);
    host.stop().await;
}

#[tokio::test]
async fn a_web_page_cannot_reach_an_open_server() {
    let caller = crate::support::shared();
    for (header, value) in [("origin", "http://evil.example"), ("host", "evil.example")] {
        let request = caller.request(reqwest::Method::GET, "/reef/status").header(header, value);
        assert_eq!(caller.send(request).await.status, StatusCode::FORBIDDEN, "{header}");
    }
    let local = caller.request(reqwest::Method::GET, "/reef/status").header("origin", "http://localhost:3000");
    assert_eq!(caller.send(local).await.status, StatusCode::OK);
}

#[tokio::test]
async fn without_a_token_only_loopback_is_served() {
    let data = tempfile::tempdir().unwrap();
    let mut config = crate::support::config(data.path());
    config.listen = ([0, 0, 0, 0], 0).into();
    let refusal = reef::host::start(config).await.expect_err("refused").to_string();
    assert!(refusal.contains("auth.tokens"), "{refusal}");
}

#[tokio::test]
async fn a_decision_says_whose_token_made_it() {
    let admin = [Scope::Infer, Scope::Read, Scope::Admin];
    let host = TestHost::start(|config| {
        let named = TokenEntry { name: Some("Ada".to_owned()), ..token("a", "acme", &admin) };
        config.auth.tokens = vec![named, token("b", "acme", &admin)];
    })
    .await;
    let (ada, nameless) = (host.caller("x").with_token("a"), host.caller("x").with_token("b"));
    let base = ada.chat("hi", json!({ "max_tokens": 2 })).await.ok().release();
    for (caller, by) in [(&ada, json!({ "kind": "person", "name": "Ada" })), (&nameless, json!({ "kind": "person" }))] {
        for path in ["/rollback", "/pin"] {
            caller.post(&caller.path(path), json!({ "release_id": base })).await.ok();
            let newest = &caller.releases().await[0];
            assert_eq!((&newest["decision"]["by"], &newest["origin"]["to"]), (&by, &json!(base)), "{newest}");
        }
    }
}
