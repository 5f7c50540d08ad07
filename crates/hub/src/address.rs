//! Addresses: where a request may go, and who may see the token.

use std::fmt;
use std::net::IpAddr;

use ureq::http::Uri;

use crate::error::{Error, Result};

/// An http or https address without user or password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    is_https: bool,
    host: String,
    port: u16,
    /// Path and query, without a slash at the end.
    rest: String,
}

impl Address {
    /// Reads one.
    pub fn parse(url: &str) -> Result<Self> {
        let wrong = |what| Error::Address { url: without_query(url).to_string(), what };
        let uri: Uri = url.parse().map_err(|_| wrong("this is no address"))?;
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("only https and http are spoken")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("an address with a user or a password is not used"));
        }
        let host = authority.host().to_ascii_lowercase();
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let rest = uri.path_and_query().map_or("", |rest| rest.as_str());
        Ok(Address { is_https, host, port, rest: rest.trim_end_matches('/').to_string() })
    }

    /// An address below this one.
    pub fn join(&self, path: &str) -> Address {
        Address { rest: format!("{}/{path}", self.rest), ..self.clone() }
    }

    /// Where a redirect from here leads. It never leads from https to http.
    pub fn redirect(&self, location: &str) -> Result<Address> {
        let next = if let Some(rest) = location.strip_prefix("//") {
            Address::parse(&format!("{}://{rest}", self.scheme()))?
        } else if location.starts_with('/') {
            Address { rest: location.to_string(), ..self.clone() }
        } else {
            Address::parse(location)?
        };
        if self.is_https && !next.is_https {
            let what = "the hub leads from https to http; it is not followed";
            return Err(Error::Address { url: next.public(), what });
        }
        Ok(next)
    }

    /// Whether both are one server: who may see what is meant for the other.
    pub fn is_same_server(&self, other: &Address) -> bool {
        (self.is_https, &self.host, self.port) == (other.is_https, &other.host, other.port)
    }

    /// Whether nobody on the way reads along: https, or this machine.
    pub fn is_private(&self) -> bool {
        self.is_https || self.is_here()
    }

    /// Whether it is this machine.
    pub fn is_here(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Without the query, which may hold a signature.
    pub fn public(&self) -> String {
        without_query(&self.to_string()).to_string()
    }

    fn scheme(&self) -> &'static str {
        if self.is_https { "https" } else { "http" }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = if self.is_https { 443 } else { 80 };
        write!(f, "{}://{}", self.scheme(), self.host)?;
        if self.port != usual {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.rest)
    }
}

fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

/// A part of a path as it stands in an address.
pub fn encode(part: &str) -> String {
    let mut out = String::new();
    for byte in part.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_on_and_never_to_http() {
        let hub = Address::parse("https://huggingface.co/a/resolve/x").unwrap();
        let to = |location: &str| hub.redirect(location).map(|to| to.to_string());
        assert_eq!(to("/b/c?d=e").unwrap(), "https://huggingface.co/b/c?d=e");
        assert_eq!(to("https://cdn.co/f?sig=1").unwrap(), "https://cdn.co/f?sig=1");
        assert_eq!(to("//cdn.co/f").unwrap(), "https://cdn.co/f");
        for bad in ["http://huggingface.co/x", "http://cdn.co/x?sig=secret", "ftp://x/y", "x"] {
            let said = to(bad).unwrap_err().to_string();
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn one_server_is_one_scheme_host_and_port() {
        let at = |url: &str| Address::parse(url).unwrap();
        let hub = at("https://huggingface.co");
        assert!(hub.is_same_server(&at("https://HuggingFace.co:443/x")));
        for other in [
            "https://huggingface.co.evil.com",
            "https://evil.com",
            "http://huggingface.co:443",
            "https://huggingface.co:444",
            "https://cdn.huggingface.co",
        ] {
            assert!(!hub.is_same_server(&at(other)), "{other}");
        }
        assert!(Address::parse("https://huggingface.co@evil.com/").is_err());
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encode("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(encode("a-b_c.d~e é"), "a-b_c.d~e%20%C3%A9");
    }
}
