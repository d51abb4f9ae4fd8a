//! Content that is not what was named: digests, sizes, types, ends.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use reef_registry::{COMPONENT_TYPE, CONFIG_TYPE, Checked, Lock, MANIFEST_TYPE, RegistryError};

use crate::evil::{Body, Evil, Reply};
use crate::site::{Site, client, component, config, reference, refusal, serve, serve_component, site};

/// Bytes that may sit in socket buffers when a client hangs up.
const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;

#[tokio::test]
async fn an_honest_registry_is_believed() {
    let evil = serve(site()).await;
    let pulled = client(config()).pull(&reference(&evil)).await.expect("pulled");
    assert_eq!(pulled.bytes, component());
    assert_eq!(pulled.manifest_digest.to_string(), site().manifest_digest());
    assert_eq!((pulled.signature, pulled.stranger), (None, None));
    assert_eq!(evil.asked().len(), 3, "manifest, config, component");
    assert!(evil.asked().iter().all(|asked| !asked.head.contains("authorization")));
}

#[tokio::test]
async fn a_moved_tag_is_refused_by_the_lock_and_by_a_pin() {
    let other = [component(), vec![0, 1, 0]].concat();
    let (before, after) = (site(), Site::honest(other, None));
    let moved = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&moved);
    let evil =
        Evil::start(move |asked| if switch.load(SeqCst) { after.answer(asked) } else { before.answer(asked) }).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut lock = Lock::read(&folder.path().join("recipes.lock")).expect("empty");
    let (client, name) = (client(config()), reference(&evil));

    let old = client.pull(&name).await.expect("pulled");
    assert_eq!(lock.check(&name, &old.digest, false).expect("new"), Checked::New);
    lock.accept(&name, old.digest).expect("written");
    moved.store(true, SeqCst);

    let new = client.pull(&name).await.expect("the tag itself is believed");
    assert!(matches!(lock.check(&name, &new.digest, false), Err(RegistryError::Moved { .. })));
    assert_eq!(lock.check(&name, &new.digest, true).expect("--update"), Checked::New);
    let pinned = client.pull(&name.pinned(old.manifest_digest)).await.expect_err("pinned").to_string();
    assert!(pinned.contains("instead of the pinned"), "{pinned}");
}

#[tokio::test]
async fn a_blob_of_another_digest_is_refused_at_once() {
    let evil = serve_component(|site| {
        let mut bytes = site.component.clone();
        bytes[100] ^= 1;
        Reply::ok("application/octet-stream", Body::Whole(bytes))
    })
    .await;
    let refusal = refusal(&evil).await;
    assert!(refusal.contains("the component has the digest") && refusal.contains("do not use"), "{refusal}");
    assert_eq!(evil.count("/blobs/"), 2, "a lie is not asked for again");
}

#[tokio::test]
async fn a_config_of_another_digest_is_refused_before_the_component_is_asked_for() {
    let mut lying = site();
    lying.config[20] ^= 1;
    let honest = site();
    let evil = Evil::start(move |asked| {
        if asked.path.contains("/blobs/") && !honest.is_component(asked) {
            return Reply::ok("application/octet-stream", Body::Whole(lying.config.clone()));
        }
        honest.answer(asked)
    })
    .await;
    let refusal = refusal(&evil).await;
    assert!(refusal.contains("the config has the digest"), "{refusal}");
    assert_eq!(evil.count("/blobs/"), 1);
}

#[tokio::test]
async fn a_truncated_blob_is_refused_whether_the_length_is_declared_or_not() {
    let evil = serve_component(|site| {
        Reply::ok("application/octet-stream", Body::Unmeasured(site.component[..2000].to_vec()))
    })
    .await;
    let unmeasured = refusal(&evil).await;
    assert!(unmeasured.contains("has 2000 bytes, its manifest says 4013"), "{unmeasured}");

    let evil = serve_component(|site| {
        Reply::ok("application/octet-stream", Body::Cut(site.component.len(), site.component[..2000].to_vec()))
    })
    .await;
    let cut = refusal(&evil).await;
    assert!(cut.contains("ended after") && cut.contains("try again"), "{cut}");
    assert_eq!(evil.count("/blobs/"), 4, "one config, three attempts at the component");

    let evil = serve_component(|site| Reply::ok("text/plain", Body::Whole(site.component[..2000].to_vec()))).await;
    assert!(refusal(&evil).await.contains("has 2000 bytes"));
}

#[tokio::test]
async fn a_wrong_media_type_is_refused_before_any_blob() {
    let index = "application/vnd.oci.image.index.v1+json";
    for (site, part) in [
        (
            site().with_manifest(COMPONENT_TYPE, "application/vnd.oci.image.layer.v1.tar+gzip"),
            "instead of application/wasm",
        ),
        (
            site().with_manifest(CONFIG_TYPE, "application/vnd.oci.image.config.v1+json"),
            "its config has the media type",
        ),
        (site().with_manifest(MANIFEST_TYPE, index), "something else"),
    ] {
        let evil = serve(site).await;
        let refusal = refusal(&evil).await;
        assert!(refusal.contains(part), "{refusal}");
        assert_eq!(evil.count("/blobs/"), 0);
    }
    let site = site();
    let evil = Evil::start(move |_| Reply::ok(index, Body::Whole(site.manifest.clone()))).await;
    assert!(refusal(&evil).await.contains("its manifest has the media type"));
}

#[tokio::test]
async fn a_layer_of_ten_gigabytes_is_refused_by_its_declared_size() {
    let evil = serve(site().with_manifest("\"size\":4013", "\"size\":10737418240")).await;
    let refusal = refusal(&evil).await;
    assert!(refusal.contains("has 10737418240 bytes and at most 1048576 bytes"), "{refusal}");
    assert_eq!(evil.count("/blobs/"), 0, "nothing was downloaded");
}

#[tokio::test]
async fn a_layer_of_ten_gigabytes_behind_a_small_size_stops_at_the_declared_size() {
    for body in [Body::Endless, Body::EndlessChunks, Body::Cut(10 << 30, vec![0; 1 << 20])] {
        let endless = body.clone();
        let evil = serve_component(move |_| Reply::ok("application/octet-stream", endless.clone())).await;
        let refusal = refusal(&evil).await;
        assert!(refusal.contains("its manifest says 4013"), "{body:?}: {refusal}");
        assert_eq!(evil.count("/blobs/"), 2, "a lie is not asked for again");
        assert!(evil.sent() < IN_FLIGHT_BYTES_MAX, "{} bytes were taken", evil.sent());
    }
}

#[tokio::test]
async fn a_manifest_without_end_is_refused() {
    for body in [Body::Endless, Body::EndlessChunks, Body::Cut(10 << 30, vec![b' '; 1 << 20])] {
        let evil = Evil::start(move |_| Reply::ok(MANIFEST_TYPE, body.clone())).await;
        let refusal = refusal(&evil).await;
        assert!(refusal.contains("at most 65536 bytes"), "{refusal}");
        assert!(evil.sent() < IN_FLIGHT_BYTES_MAX, "{} bytes were taken", evil.sent());
    }
}

#[tokio::test]
async fn a_registry_that_contradicts_itself_about_the_manifest_is_refused() {
    let honest = site();
    let evil = Evil::start(move |asked| {
        let mut reply = honest.answer(asked);
        reply.headers.retain(|(name, _)| *name != "docker-content-digest");
        reply.with("docker-content-digest", format!("sha256:{}", "0".repeat(64)))
    })
    .await;
    assert!(refusal(&evil).await.contains("the registry says its manifest has the digest sha256:000"));
}

#[tokio::test]
async fn text_of_a_registry_cannot_forge_a_terminal_line() {
    let evil = Evil::start(|_| Reply {
        status: 403,
        headers: Vec::new(),
        body: Body::Whole(
            b"{\"errors\":[{\"code\":\"DENIED\",\"message\":\"\\u001b[2J\\nreef: all is well\"}]}".to_vec(),
        ),
    })
    .await;
    let refusal = refusal(&evil).await;
    assert!(refusal.contains("DENIED") && refusal.contains("log-in"), "{refusal}");
    assert!(!refusal.chars().any(char::is_control), "{refusal:?}");
}
