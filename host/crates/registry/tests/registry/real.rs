//! The same client against a real registry, and against the tools that others use with it.

use std::fs;
use std::process::Command;

use reef_registry::{
    Blob, COMPONENT_TYPE, CONFIG_TYPE, Digest, MANIFEST_TYPE, PrivateKey, Publication, Reference, RegistryConfig,
    RegistryError, VERSION_ANNOTATION, sign,
};
use serde_json::{Value, json};

use crate::server::{Pair, Server};
use crate::site::{client, component, config};

fn publication() -> Publication {
    Publication {
        name: "sao".to_owned(),
        version: "1.0.0".to_owned(),
        world: "reef:recipe/recipe@0.1.0".to_owned(),
        ..Publication::default()
    }
}

fn at(server: &Server, rest: &str) -> Reference {
    Reference::parse(&format!("{}/{rest}", server.host), None).expect("valid")
}

#[tokio::test]
async fn a_recipe_makes_the_round_trip_through_a_real_registry() {
    let server = Server::start(None).await;
    let key = PrivateKey::generate().expect("a key");
    let client = client(RegistryConfig {
        default: Some(format!("{}/team", server.host)),
        trusted_keys: vec![key.public()],
        require_signature: true,
        ..config()
    });
    let name = client.reference("sao@1.0.0").expect("valid");
    assert!(matches!(client.pull(&name).await, Err(RegistryError::NotFound { .. })));
    let signed = Publication { signature: Some(sign("sao", &component(), &key)), ..publication() };
    let published = client.publish(&name, &component(), &signed).await.expect("published");
    assert_eq!(client.publish(&name, &component(), &signed).await.expect("again, without effect"), published);

    let pinned = client.reference(&format!("sao@{}", published.manifest_digest)).expect("valid");
    for reference in [&name, &pinned] {
        let pulled = client.pull(reference).await.expect("pulled");
        assert_eq!((&pulled.bytes, pulled.digest), (&component(), Digest::of(&component())));
        assert_eq!(pulled.manifest_digest, published.manifest_digest);
        assert_eq!(pulled.signature.expect("signed").key, key.public().id());
        assert_eq!(pulled.manifest.annotations[VERSION_ANNOTATION], "1.0.0");
    }
    client.publish(&name.with_tag("1.1.0").expect("valid"), &component(), &signed).await.expect("another version");
    let mut tags = client.tags(&name).await.expect("listed");
    tags.sort();
    assert_eq!(tags, ["1.0.0", "1.1.0"]);
}

#[tokio::test]
async fn a_version_is_replaced_only_when_asked() {
    let server = Server::start(None).await;
    let (client, name) = (client(config()), at(&server, "sao:1.0.0"));
    let first = client.publish(&name, &component(), &publication()).await.expect("published");
    let other = [component(), vec![0, 2, 1, b'y']].concat();
    let refusal = client.publish(&name, &other, &publication()).await.expect_err("taken").to_string();
    assert!(refusal.contains("--replace"), "{refusal}");
    assert_eq!(client.pull(&name).await.expect("untouched").digest, first.digest);
    let replacing = Publication { replace: true, ..publication() };
    let second = client.publish(&name, &other, &replacing).await.expect("replaced");
    assert_eq!(client.pull(&name).await.expect("pulled").digest, second.digest);
    let old = client.pull(&name.pinned(first.manifest_digest)).await.expect("the old one by its digest");
    assert_eq!(old.digest, first.digest);
}

#[tokio::test]
async fn a_registry_whose_disk_was_tampered_with_is_found_out() {
    let server = Server::start(None).await;
    let (client, name) = (client(config()), at(&server, "sao:1.0.0"));
    let published = client.publish(&name, &component(), &publication()).await.expect("published");
    let hex = published.digest.hex();
    let blob = server.folder().join(format!("data/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]));
    let mut bytes = fs::read(&blob).expect("the blob is there");
    bytes[100] ^= 1;
    fs::write(&blob, bytes).expect("tampered with");
    let refusal = client.pull(&name).await.map(|pulled| pulled.digest).expect_err("found out").to_string();
    assert!(refusal.contains("the component has the digest"), "{refusal}");
}

#[tokio::test]
async fn over_tls_only_certificates_that_are_trusted_count() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let pair = Pair { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() };
    let server = Server::start(Some(&pair)).await;
    let name = at(&server, "sao:1.0.0");
    let secure = RegistryConfig { insecure_hosts: Vec::new(), ..config() };
    let refusal = client(secure.clone()).publish(&name, &component(), &publication()).await.expect_err("a stranger");
    assert!(matches!(refusal, RegistryError::Unreachable { .. }), "{refusal}");
    assert!(refusal.to_string().contains("certificate"), "{refusal}");
    let trusting = RegistryConfig { root_certificates: vec![pair.certificate.into_bytes()], ..secure };
    let client = client(trusting);
    let published = client.publish(&name, &component(), &publication()).await.expect("published");
    assert_eq!(client.pull(&name).await.expect("pulled").manifest_digest, published.manifest_digest);
}

/// The distribution protocol as its text says it, spoken by curl: what it answers, as bytes.
fn curl(arguments: &[&str], address: &str) -> Vec<u8> {
    let run = Command::new("curl").args(["--silent", "--show-error", "--fail"]).args(arguments).arg(address).output();
    let output = run.expect("curl runs; scripts/setup.sh needs it too");
    assert!(output.status.success(), "{arguments:?} {address}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Uploads a blob by curl.
fn curl_blob(repository: &str, bytes: &[u8]) -> Blob {
    let blob = Blob::of(bytes);
    let head = curl(&["--request", "POST", "--dump-header", "-"], &format!("{repository}/blobs/uploads/"));
    let head = String::from_utf8(head).expect("headers");
    let location = head.lines().find_map(|line| line.strip_prefix("Location: ")).expect("an upload").trim();
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), bytes).expect("written");
    let data = format!("@{}", file.path().display());
    let media_type = "content-type: application/octet-stream";
    let put = ["--request", "PUT", "--header", media_type, "--data-binary", &data];
    curl(&put, &format!("{location}&digest={}", blob.digest));
    blob
}

#[tokio::test]
async fn other_tools_read_what_is_published_and_publish_what_can_be_read() {
    let server = Server::start(None).await;
    let (ours, name) = (client(config()), at(&server, "team/sao:1.0.0"));
    let published = ours.publish(&name, &component(), &publication()).await.expect("published");
    let repository = format!("http://{}/v2/team/sao", server.host);
    let accept = format!("accept: {MANIFEST_TYPE}");
    let manifest = curl(&["--header", &accept], &format!("{repository}/manifests/1.0.0"));
    assert_eq!(Digest::of(&manifest), published.manifest_digest);
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    assert_eq!((&manifest["schemaVersion"], &manifest["mediaType"]), (&json!(2), &json!(MANIFEST_TYPE)));
    assert_eq!(manifest["config"]["mediaType"], CONFIG_TYPE);
    let [layer] = manifest["layers"].as_array().expect("layers").as_slice() else { panic!("one layer") };
    assert_eq!((&layer["mediaType"], &layer["size"]), (&json!(COMPONENT_TYPE), &json!(component().len())));
    let blob = |blob: &Value| curl(&[], &format!("{repository}/blobs/{}", blob["digest"].as_str().expect("a digest")));
    assert_eq!(blob(layer), component());
    let config = blob(&manifest["config"]);

    // What other tools write: no media type of its own, an artefact type, annotations of theirs, fields unknown to us.
    let theirs = format!("http://{}/v2/team/theirs", server.host);
    let (config, layer) = (curl_blob(&theirs, &config), curl_blob(&theirs, &component()));
    let described = |media_type: &str, blob: &Blob| json!({"mediaType": media_type, "digest": blob.digest.to_string(), "size": blob.size, "annotations": {"a": "b"}});
    let manifest = json!({
        "schemaVersion": 2,
        "artifactType": "application/vnd.example",
        "config": described(CONFIG_TYPE, &config),
        "layers": [described(COMPONENT_TYPE, &layer)],
        "annotations": {"org.opencontainers.image.created": "1970-01-01T00:00:00Z"},
    });
    let header = format!("content-type: {MANIFEST_TYPE}");
    let put = ["--request", "PUT", "--header", &header, "--data-binary", &manifest.to_string()];
    curl(&put, &format!("{theirs}/manifests/1.0.0"));
    let pulled = ours.pull(&at(&server, "team/theirs:1.0.0")).await.expect("pulled");
    assert_eq!(pulled.bytes, component());
    assert_eq!(pulled.manifest.annotations.get(VERSION_ANNOTATION), None);
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_told_with_its_address() {
    let name = Reference::parse("127.0.0.1:1/sao:1.0.0", None).expect("valid");
    let refusal =
        client(config()).pull(&name).await.map(|pulled| pulled.digest).expect_err("nobody listens").to_string();
    assert!(refusal.contains("http://127.0.0.1:1") && refusal.contains("check the address"), "{refusal}");
}
