//! HTTP clients of this process, and whom they trust: the system's root certificates.
//! Every client is made here, since reqwest brings no cryptography of its own in this build. A system without root
//! certificates still speaks plain HTTP; only its TLS connections fail.

use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// A client to be set up further.
pub fn http_client() -> reqwest::ClientBuilder {
    #[expect(clippy::disallowed_methods, reason = "the one place that gives a client its TLS")]
    let builder = reqwest::Client::builder();
    builder.tls_backend_preconfigured(config())
}

/// The same for threads without a runtime.
pub fn blocking_http_client() -> reqwest::blocking::ClientBuilder {
    #[expect(clippy::disallowed_methods, reason = "the one place that gives a client its TLS")]
    let builder = reqwest::blocking::Client::builder();
    builder.tls_backend_preconfigured(config())
}

/// Certificates are read once per process.
fn config() -> ClientConfig {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    CONFIG.get_or_init(made).clone()
}

fn made() -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        tracing::warn!("there are no root certificates, so no https address can be reached; install ca-certificates");
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|error| unreachable!("ring has the default versions of TLS: {error}"))
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_can_be_made() {
        http_client().build().expect("a client");
        assert_eq!(config().alpn_protocols.len(), 2);
    }
}
