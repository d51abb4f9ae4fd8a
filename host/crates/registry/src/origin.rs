//! Where a request goes: scheme, host, port and path. Addresses that a registry gives (redirects, uploads, token
//! services) are parsed here, strictly; whether they may be followed is the session's decision.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::Uri;

use crate::error::shown;
use crate::reference::{check_host, split_port};

/// Bytes of an address that a registry gives; signed download addresses have about 2 kB.
const ADDRESS_BYTES_MAX: usize = 8 * 1024;

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    secure: bool,
    host: String,
    port: u16,
}

/// An origin and the path (with query) on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) origin: Origin,
    pub(crate) path: String,
}

impl Origin {
    /// The origin of a registry's `host[:port]`: https unless the host is listed as insecure.
    pub(crate) fn of(host: &str, insecure_hosts: &[String]) -> Self {
        let secure = !insecure_hosts.iter().any(|listed| names(listed, host));
        let (name, port) = split_port(host);
        let port = port.and_then(|text| text.parse().ok()).unwrap_or(default_port(secure));
        Self { secure, host: name.to_ascii_lowercase(), port }
    }

    pub(crate) fn secure(&self) -> bool {
        self.secure
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The host without the brackets of an IPv6 address.
    pub(crate) fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// `host[:port]`, as the header `host` has it.
    pub(crate) fn authority(&self) -> String {
        if self.port == default_port(self.secure) { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// A path on this origin.
    pub(crate) fn at(&self, path: String) -> Address {
        Address { origin: self.clone(), path }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.secure { "https" } else { "http" }, self.authority())
    }
}

impl Address {
    /// Reads an address that was given in an answer from `base`: absolute, or a path on the same origin.
    pub(crate) fn resolve(text: &str, base: &Origin) -> Result<Self, String> {
        let refuse = || format!("the address '{}' cannot be followed", shown(text));
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(refuse());
        }
        let uri: Uri = text.parse().map_err(|_| refuse())?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            let on_same = uri.authority().is_none() && text.starts_with('/') && !text.starts_with("//");
            return if on_same { Ok(base.at(path.to_owned())) } else { Err(refuse()) };
        };
        let secure = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(refuse()),
        };
        check_host(authority.as_str()).map_err(|_| refuse())?;
        let port = authority.port_u16().unwrap_or(default_port(secure));
        let host = split_port(authority.as_str()).0.to_ascii_lowercase();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { origin: Origin { secure, host, port }, path })
    }

    /// The same address with one more parameter; the value has to be encoded.
    pub(crate) fn with_parameter(mut self, name: &str, value: &str) -> Self {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        self.path.push_str(&format!("{separator}{name}={value}"));
        self
    }
}

/// Whether a listed `host` or `host:port` names this `host[:port]`.
pub(crate) fn names(listed: &str, host: &str) -> bool {
    match split_port(listed) {
        (_, Some(_)) => listed.eq_ignore_ascii_case(host),
        (name, None) => name.eq_ignore_ascii_case(split_port(host).0),
    }
}

fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

/// Percent-encodes a value of a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Whether an address lies in the public internet, not on this machine or in a private network.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocol = a == 192 && b == 0 && c == 0;
    let benchmark = a == 198 && (18..20).contains(&b);
    let special =
        v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_documentation();
    !(special || shared || protocol || benchmark || a == 0 || a >= 240)
}

fn is_public_v6(v6: Ipv6Addr) -> bool {
    if let Some(v4) = v6.to_ipv4_mapped() {
        return is_public_v4(v4);
    }
    let [first, second, ..] = v6.segments();
    // Only 2000::/3 is given out; 2001:db8::/32 documents, 2002::/16 and 64:ff9b::/96 wrap IPv4 addresses.
    (0x2000..0x4000).contains(&first) && first != 0x2002 && !(first == 0x2001 && second == 0xdb8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_resolved_strictly() {
        let base = Origin::of("r.example.com:5000", &[]);
        let resolved =
            |text: &str| Address::resolve(text, &base).map(|found| format!("{}{}", found.origin, found.path));
        assert_eq!(resolved("/v2/x?y=1").expect("a path"), "https://r.example.com:5000/v2/x?y=1");
        assert_eq!(resolved("https://CDN.example.com:443/a?b").expect("absolute"), "https://cdn.example.com/a?b");
        assert_eq!(resolved("http://[::1]:81/").expect("absolute"), "http://[::1]:81/");
        for bad in [
            "",
            "//evil.example.com/x",
            "ftp://r.example.com/",
            "https://user:pw@r.example.com/",
            "x/y",
            "?a=b",
            "https://",
            "file:///etc/passwd",
            "https://r.example.com:99999/",
            "https://a b/",
            "javascript:1",
        ] {
            assert!(resolved(bad).is_err(), "{bad}");
        }
        assert!(resolved(&format!("/{}", "a".repeat(ADDRESS_BYTES_MAX))).is_err());
    }

    #[test]
    fn plain_http_is_for_listed_hosts_only() {
        let listed = ["localhost".to_owned(), "r.example.com:5000".to_owned()];
        assert!(!Origin::of("localhost:5001", &listed).secure());
        assert!(!Origin::of("r.example.com:5000", &listed).secure());
        assert!(Origin::of("r.example.com", &listed).secure());
        assert!(Origin::of("localhost.example.com", &listed).secure());
    }

    #[test]
    fn private_addresses_are_not_public() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().expect(text)), "{text}");
        }
        for text in ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(is_public(text.parse().expect(text)), "{text}");
        }
    }
}
