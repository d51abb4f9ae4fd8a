//! Where a registry may send us: tokens, redirects, uploads; and how long it may take.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use reef_registry::{Access, Login, Publication, RegistryConfig, RegistryError};

use crate::evil::{Body, Evil, Reply};
use crate::site::{client, component, config, reference, refusal, serve_component, site};

/// `ann:secret` in Base64.
const BASIC: &str = "authorization: basic yw5uonnly3jlda==";

fn with_login(evil: &Evil, token_host: Option<&str>) -> RegistryConfig {
    let login = Some(Login { user: "ann".to_owned(), password: "secret".to_owned() });
    let access = Access { login, token_host: token_host.map(str::to_owned) };
    RegistryConfig { access: BTreeMap::from([(evil.host.clone(), access)]), ..config() }
}

/// A registry that wants a bearer token from this realm, and then serves.
async fn wants_token(realm: String) -> Evil {
    let site = site();
    Evil::start(move |asked| {
        if asked.head.contains("authorization: bearer t0ken") {
            return site.answer(asked);
        }
        let challenge = format!(r#"Bearer realm="{realm}",service="r&b",scope="repository:other/secrets:pull,push""#);
        Reply::status(401).with("www-authenticate", challenge)
    })
    .await
}

async fn token_service() -> Evil {
    Evil::start(|_| Reply::ok("application/json", Body::Whole(br#"{"token":"t0ken"}"#.to_vec()))).await
}

#[tokio::test]
async fn a_challenge_to_a_foreign_host_gets_neither_credentials_nor_a_request() {
    let thief = token_service().await;
    let evil = wants_token(format!("http://{}/token", thief.host)).await;
    for config in [with_login(&evil, None), with_login(&evil, Some("auth.example.com")), config()] {
        let refusal = client(config).pull(&reference(&evil)).await.expect_err("refused").to_string();
        assert!(refusal.contains(&thief.host) && refusal.contains("name it as the token host"), "{refusal}");
    }
    assert!(thief.asked().is_empty());
    assert!(evil.asked().iter().all(|asked| !asked.head.contains("authorization")), "nor does the registry get them");
}

#[tokio::test]
async fn the_named_token_host_gets_the_log_in_and_only_our_own_scope() {
    let service = token_service().await;
    let evil = wants_token(format!("http://{}/token", service.host)).await;
    let pulled = client(with_login(&evil, Some(&service.host))).pull(&reference(&evil)).await.expect("pulled");
    assert_eq!(pulled.bytes, component());
    let [asked] = <[_; 1]>::try_from(service.asked()).expect("one token for three requests");
    assert!(asked.head.contains(BASIC), "{}", asked.head);
    assert_eq!(asked.path, "/token?service=r%26b&scope=repository%3Ateam%2Fsao%3Apull");
    assert!(evil.asked().iter().all(|asked| !asked.head.contains("basic")), "the registry gets the token only");
}

#[tokio::test]
async fn a_registry_that_wants_basic_gets_it_and_one_that_never_has_enough_is_left() {
    let site = site();
    let evil = Evil::start(move |asked| {
        if asked.head.contains(BASIC) {
            site.answer(asked)
        } else {
            Reply::status(401).with("www-authenticate", "Basic realm=x")
        }
    })
    .await;
    client(with_login(&evil, None)).pull(&reference(&evil)).await.expect("pulled");
    assert!(refusal(&evil).await.contains("wants a user and a password"));

    let never = Evil::start(|_| Reply::status(401).with("www-authenticate", "Basic realm=x")).await;
    let refusal = client(with_login(&never, None)).pull(&reference(&never)).await.expect_err("refused").to_string();
    assert!(refusal.contains("401") && refusal.contains("correct the log-in"), "{refusal}");
    assert!(never.asked().len() <= 3, "{} requests", never.asked().len());
}

#[tokio::test]
async fn broken_tokens_are_refused_without_a_panic() {
    for token in [r#"{"token":"a\r\nx-evil: 1"}"#, r#"{"token":""}"#, r#"{"token":7}"#, "{}", "<html>", "\u{0}"] {
        let evil = Evil::start(move |asked| {
            if asked.path.starts_with("/token") {
                return Reply::ok("application/json", Body::Whole(token.as_bytes().to_vec()));
            }
            Reply::status(401).with("www-authenticate", "Bearer realm=\"/token\"")
        })
        .await;
        let refusal = refusal(&evil).await;
        assert!(refusal.contains("token"), "{token}: {refusal}");
        assert!(evil.asked().iter().all(|asked| !asked.head.contains("x-evil")));
    }
    let endless = Evil::start(|asked| {
        if asked.path.starts_with("/token") {
            return Reply::ok("application/json", Body::EndlessChunks);
        }
        Reply::status(401).with("www-authenticate", "Bearer realm=\"/token\"")
    })
    .await;
    assert!(refusal(&endless).await.contains("bytes or more"));
}

#[tokio::test]
async fn redirect_loops_end() {
    let evil = Evil::start(|asked| Reply::status(307).with("location", asked.path.clone())).await;
    let refusal = refusal(&evil).await;
    assert!(refusal.contains("more than 5 times"), "{refusal}");
    assert_eq!(evil.asked().len(), 6);
}

#[tokio::test]
async fn a_redirect_leaves_neither_the_scheme_nor_a_plain_host() {
    let other = Evil::start(|_| Reply::ok("application/octet-stream", Body::Whole(component()))).await;
    for target in [
        format!("http://{}/blob", other.host),
        "https://r.example.com/blob".to_owned(),
        "file:///etc/passwd".to_owned(),
        "gopher://r.example.com/".to_owned(),
        "//r.example.com/blob".to_owned(),
        "http://ann:secret@127.0.0.1/".to_owned(),
        String::new(),
    ] {
        let to = target.clone();
        let evil = serve_component(move |_| Reply::status(302).with("location", to.clone())).await;
        let refusal = refusal(&evil).await;
        assert!(refusal.contains("sends us"), "{target}: {refusal}");
    }
    assert!(other.asked().is_empty());
    let site = site();
    let evil = Evil::start(move |asked| match asked.path.as_str() {
        "/storage/1" => Reply::ok("application/octet-stream", Body::Whole(component())),
        _ if site.is_component(asked) => Reply::status(307).with("location", "/storage/1"),
        _ => site.answer(asked),
    })
    .await;
    client(config()).pull(&reference(&evil)).await.expect("on the same host a redirect is followed");
}

#[tokio::test]
async fn a_slow_body_ends_with_the_time_out() {
    let evil = serve_component(|site| Reply::ok("application/octet-stream", Body::Dribble(site.component.len()))).await;
    let quick = RegistryConfig { timeout: Duration::from_secs(1), ..config() };
    let refusal = client(quick).pull(&reference(&evil)).await.expect_err("too slow");
    assert!(matches!(refusal, RegistryError::TimedOut { seconds: 1, .. }), "{refusal}");
    assert!(refusal.to_string().contains("took longer than 1 s"));
}

#[tokio::test]
async fn what_passes_is_tried_again_and_what_stays_is_told() {
    let (site, calls) = (site(), AtomicU32::new(0));
    let evil =
        Evil::start(
            move |asked| {
                if calls.fetch_add(1, Ordering::SeqCst) < 2 { Reply::status(503) } else { site.answer(asked) }
            },
        )
        .await;
    client(config()).pull(&reference(&evil)).await.expect("the third attempt");
    let down = Evil::start(|_| Reply::status(503)).await;
    assert!(refusal(&down).await.contains("503"));
    assert_eq!(down.asked().len(), 3);
    let absent = Evil::start(|_| Reply::status(404)).await;
    assert!(refusal(&absent).await.contains("reef recipe list"));
    assert_eq!(absent.asked().len(), 1);
}

#[tokio::test]
async fn what_is_not_http_is_an_error() {
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(1 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
    for garbage in ["", "\0\0\0\0", "SSH-2.0-x\r\n", "HTTP/1.1 999999 X\r\n\r\n", long.as_str(), many.as_str()] {
        let bytes = garbage.as_bytes().to_vec();
        let evil = Evil::start(move |_| Reply { body: Body::Garbage(bytes.clone()), ..Reply::status(200) }).await;
        let refusal = refusal(&evil).await;
        assert!(refusal.contains("cannot read the manifest"), "{refusal}");
    }
}

#[tokio::test]
async fn a_host_that_is_not_listed_is_never_spoken_to_in_plain_http() {
    let evil = Evil::start(|_| Reply::status(200)).await;
    let strict = RegistryConfig { insecure_hosts: Vec::new(), ..config() };
    let refusal = client(strict).pull(&reference(&evil)).await.expect_err("no TLS there").to_string();
    assert!(refusal.contains("https://127.0.0.1"), "{refusal}");
    assert!(evil.asked().is_empty(), "not even a path was sent");
}

#[tokio::test]
async fn an_upload_goes_to_the_registry_itself_or_nowhere() {
    let thief = Evil::start(|_| Reply::status(201)).await;
    let target = format!("http://{}/upload", thief.host);
    let evil = Evil::start(move |asked| match asked.method.as_str() {
        "POST" => Reply::status(202).with("location", target.clone()),
        _ => Reply::status(404),
    })
    .await;
    let publication = Publication { name: "sao".to_owned(), ..Publication::default() };
    let published = client(with_login(&evil, None)).publish(&reference(&evil), &component(), &publication).await;
    let refusal = published.expect_err("refused").to_string();
    assert!(refusal.contains("another place") && refusal.contains("nothing was sent"), "{refusal}");
    assert!(thief.asked().is_empty());
}

#[tokio::test]
async fn lists_of_versions_are_bounded_and_checked() {
    let page = |text: &'static str| Reply::ok("application/json", Body::Whole(text.as_bytes().to_vec()));
    for (reply, part) in [
        (page(r#"{"tags":["1.0.0","../../etc"]}"#), "the version '../../etc'"),
        (page(r#"{"tags":["\u001b[31m"]}"#), "the version"),
        (page(r#"{"tags":7}"#), "cannot be read"),
        (
            page(r#"{"tags":["1"]}"#).with("link", "</v2/team/sao/tags/list?last=1>; rel=\"next\""),
            "more than 100 pages",
        ),
        (page(r#"{"tags":["1"]}"#).with("link", "<http://r.example.com/x>; rel=\"next\""), "another place"),
        (Reply::ok("application/json", Body::Endless), "at most 1048576"),
    ] {
        let evil = Evil::start(move |_| reply.clone()).await;
        let refusal = client(config()).tags(&reference(&evil)).await.expect_err(part).to_string();
        assert!(refusal.contains(part), "{refusal}");
    }
    let evil =
        Evil::start(|_| Reply::ok("application/json", Body::Whole(br#"{"name":"x","tags":null}"#.to_vec()))).await;
    assert!(client(config()).tags(&reference(&evil)).await.expect("none").is_empty());
}
