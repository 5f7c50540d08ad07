//! Which names this server answers to, and which pages may ask it.
//!
//! A page of another site can make a browser send requests here, and by a name that it points at this
//! machine also read the answers. Both are told by headers that a page can't choose.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use crate::service::{Failure, Result};

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over this machine's own address.
    Local,
    /// Over the network, to a server that asks for no key.
    Open,
    /// Over the network, to a server that asks for a key.
    Keyed,
}

/// Which names this server answers to, and which pages may ask it.
#[derive(Clone, Debug)]
pub struct Guard {
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Guard {
    /// With further names and pages than its own.
    pub fn new(hosts: &[String], origins: &[String]) -> Result<Self, String> {
        for origin in origins {
            if origin != "*" && !origin.contains("://") {
                return Err(format!("`{origin}` is no origin; write https://example.com"));
            }
        }
        let lower = |all: &[String]| all.iter().map(|one| one.to_ascii_lowercase()).collect();
        Ok(Guard { hosts: lower(hosts), origins: lower(origins) })
    }

    /// Checks where a request comes from. Gives the origin that may read the answer, if it is of
    /// another server.
    ///
    /// A name that a page's owner can point at this server would let the page read answers. So where
    /// nothing else protects it, names must be known; over the network, addresses are no names.
    pub fn check(&self, headers: &HeaderMap, uri: &Uri, way: Way) -> Result<Option<String>> {
        let host = host_of(headers, uri)?;
        let is_known = match way {
            Way::Local => self.is_own(&host),
            Way::Open => self.is_own(&host) || address_of(&host).is_some(),
            Way::Keyed => true,
        };
        if !is_known {
            return Err(Failure::forbidden(format!(
                "this server is not called `{}`; --allow-host names it so",
                shown(&host)
            )));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
        let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
        let from = origin.split_once("://");
        if let Some((scheme, from)) = from
            && matches!(scheme, "http" | "https")
            && plain(from, scheme) == plain(&host, scheme)
        {
            return Ok(None);
        }
        if self.origins.iter().any(|known| *known == origin || known == "*") && from.is_some() {
            return Ok(Some(origin));
        }
        Err(Failure::forbidden(format!(
            "pages of `{}` may not ask this server; --allow-origin lets them",
            shown(&origin)
        )))
    }

    fn is_own(&self, host: &str) -> bool {
        let name = without_port(host);
        let is_loopback = address_of(host).is_some_and(|ip| ip.to_canonical().is_loopback());
        let is_named = name == "localhost" || name.ends_with(".localhost");
        let is_allowed =
            self.hosts.iter().any(|known| known == name || known == host || known == "*");
        is_loopback || is_named || is_allowed
    }
}

/// The name that the request calls this server by, in small letters.
fn host_of(headers: &HeaderMap, uri: &Uri) -> Result<String> {
    let mut all = headers.get_all(header::HOST).iter();
    let host = match (all.next(), all.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default().to_string(),
        (None, _) => match uri.authority() {
            Some(authority) => authority.as_str().to_string(),
            None => String::new(),
        },
        (Some(_), Some(_)) => return Err(Failure::invalid("there are two Host headers")),
    };
    // What stands in the request's line must not contradict.
    if let Some(authority) = uri.authority()
        && !authority.as_str().eq_ignore_ascii_case(&host)
    {
        return Err(Failure::forbidden("the Host header and the request's address differ"));
    }
    Ok(host.to_ascii_lowercase())
}

/// The address that a host is, if it is not a name.
fn address_of(host: &str) -> Option<IpAddr> {
    without_port(host).trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// A host without its scheme's own port.
fn plain<'a>(host: &'a str, scheme: &str) -> &'a str {
    let port = if scheme == "https" { ":443" } else { ":80" };
    host.strip_suffix(port).unwrap_or(host)
}

/// What a stranger wrote, cut short.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn check(guard: &Guard, host: &str, origin: Option<&str>, way: Way) -> Result<Option<String>> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        guard.check(&headers, &Uri::from_static("/v1/models"), way)
    }

    #[test]
    fn only_own_names_are_answered_to() {
        let guard = Guard::new(&["box.example".to_string()], &[]).unwrap();
        let own = [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:1",
            "[::1]:8080",
            "a.localhost",
            "127.9.9.9",
            "box.example:8080",
        ];
        for host in own {
            assert_eq!(check(&guard, host, None, Way::Local), Ok(None), "{host}");
        }
        let others = [
            "evil.com",
            "evil.com:8080",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "192.168.1.2",
            "",
            "127.0.0.1:80@evil.com",
        ];
        for host in others {
            assert_eq!(check(&guard, host, None, Way::Local).unwrap_err().status, 403, "{host}");
        }
        // Over the network, a name may be anybody's, too, unless a key protects the server.
        assert_eq!(check(&guard, "evil.com", None, Way::Keyed), Ok(None));
        assert_eq!(check(&guard, "evil.com", None, Way::Open).unwrap_err().status, 403);
        for host in ["192.168.1.2:8080", "[fd00::1]:8080", "box.example"] {
            assert_eq!(check(&guard, host, None, Way::Open), Ok(None), "{host}");
        }
    }

    #[test]
    fn only_own_pages_may_ask() {
        let guard = Guard::new(&[], &["https://chat.example".to_string()]).unwrap();
        let host = "127.0.0.1:8080";
        assert_eq!(check(&guard, host, Some("http://127.0.0.1:8080"), Way::Local), Ok(None));
        let other = check(&guard, host, Some("https://chat.example"), Way::Local);
        assert_eq!(other, Ok(Some("https://chat.example".to_string())));
        let wrong = [
            "http://evil.com",
            "null",
            "",
            "http://localhost:8080",
            "http://127.0.0.1:8081",
            "https://chat.example.evil.com",
            "file://",
        ];
        for origin in wrong {
            assert!(check(&guard, host, Some(origin), Way::Local).is_err(), "{origin}");
        }
        // After a proxy that speaks TLS.
        assert_eq!(check(&guard, "a.example", Some("https://a.example"), Way::Keyed), Ok(None));
    }
}
