//! Whose signature counts, over the wire.

use reef_registry::{PrivateKey, RegistryConfig, SIGNATURE_ANNOTATION, Signature, sign};

use crate::site::{Site, client, component, config, reference, serve};

fn key() -> PrivateKey {
    PrivateKey::generate().expect("a key")
}

/// Pulls a recipe that is signed like this.
async fn pull(signature: Option<&Signature>, trusted: &PrivateKey, require: bool) -> Result<(bool, bool), String> {
    let evil = serve(Site::honest(component(), signature)).await;
    let config = RegistryConfig { trusted_keys: vec![trusted.public()], require_signature: require, ..config() };
    let pulled = client(config).pull(&reference(&evil)).await.map_err(|error| {
        assert_eq!(evil.count("/blobs/"), 0, "a refused signature downloads nothing");
        error.to_string()
    })?;
    Ok((pulled.signature.is_some_and(|verified| verified.key == trusted.public().id()), pulled.stranger.is_some()))
}

#[tokio::test]
async fn a_trusted_signature_counts() {
    let mine = key();
    assert_eq!(pull(Some(&sign("sao", &component(), &mine)), &mine, true).await, Ok((true, false)));
}

#[tokio::test]
async fn a_foreign_signature_is_as_good_as_none() {
    let (mine, stranger) = (key(), key());
    let foreign = sign("sao", &component(), &stranger);
    assert_eq!(pull(Some(&foreign), &mine, false).await, Ok((false, true)));
    let refusal = pull(Some(&foreign), &mine, true).await.expect_err("required");
    assert!(refusal.contains(stranger.public().id().as_str()) && refusal.contains("not trusted"), "{refusal}");
}

#[tokio::test]
async fn an_unsigned_recipe_is_refused_when_signatures_are_required() {
    let mine = key();
    assert_eq!(pull(None, &mine, false).await, Ok((false, false)));
    assert!(pull(None, &mine, true).await.expect_err("required").contains("not signed"));
}

#[tokio::test]
async fn a_wrong_signature_under_a_trusted_name_is_refused_even_when_none_is_required() {
    let mine = key();
    for wrong in [sign("sao", b"other code", &mine), sign("sdar", &component(), &mine)] {
        for require in [false, true] {
            let refusal = pull(Some(&wrong), &mine, require).await.expect_err("wrong");
            assert!(refusal.contains("not one of these bytes"), "{refusal}");
        }
    }
}

#[tokio::test]
async fn a_signature_that_cannot_be_read_is_refused() {
    let site = Site::honest(component(), Some(&sign("sao", &component(), &key())));
    let evil =
        serve(site.with_manifest(
            &format!("\"{SIGNATURE_ANNOTATION}\":\"ed25519"),
            &format!("\"{SIGNATURE_ANNOTATION}\":\"rsa"),
        ))
        .await;
    let refusal =
        client(config()).pull(&reference(&evil)).await.map(|pulled| pulled.digest).expect_err("unreadable").to_string();
    assert!(refusal.contains("cannot be read"), "{refusal}");
}
