//! Requests: redirects that don't take the token along, waiting, and what an answer of no means.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};

use crate::address::Address;
use crate::error::{Error, Result};
use crate::settings::Settings;

/// More redirects than any hub needs.
const MAX_REDIRECTS: usize = 8;
/// For the head of an answer, and for any bytes of its body.
const TIMEOUT: Duration = Duration::from_secs(30);
/// For a connection to one address.
const CONNECT: Duration = Duration::from_secs(10);
/// Times that a hub is asked again that can't be reached, before anything has come from it: who has
/// no network shall hear so soon.
const UNREACHED: u32 = 2;
/// No hub is asked again later than this, whatever it says.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// How requests are repeated.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Times that one request is repeated without anything coming of it.
    pub retries: u32,
    /// The first wait, which doubles. A server's `Retry-After` goes before it.
    pub first_wait: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { retries: 6, first_wait: Duration::from_secs(1) }
    }
}

/// What a request is about, for its errors.
#[derive(Clone, Copy)]
pub struct About<'a> {
    pub repo: &'a str,
    pub revision: &'a str,
    pub file: Option<&'a str>,
}

/// What is asked of a file.
#[derive(Clone, Copy)]
pub enum Wanted {
    /// Its headers, of the hub itself: a redirect to another server is not followed.
    Head,
    /// All of it.
    Whole,
    /// Bytes from the first to before the second.
    Range(u64, u64),
}

/// Asks the hub.
pub struct Client {
    agent: Agent,
    endpoint: Address,
    token: Option<String>,
    patience: Patience,
}

/// An answer that is not a refusal.
pub struct Answer {
    response: Response<ureq::Body>,
    /// Where it came from.
    pub from: Address,
}

impl Client {
    pub fn new(settings: &Settings, patience: Patience) -> Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &settings.roots {
            let pem = std::fs::read(path).map_err(Error::io(path))?;
            let certificates: Vec<Certificate<'static>> = ureq::tls::parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let mut config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            // Redirects are followed here, where it is known who may see the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("lapidary/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_per_read(Some(TIMEOUT));
        if settings.endpoint.is_here() {
            // A proxy's own machine is not this one.
            config = config.proxy(None);
        }
        Ok(Client {
            agent: config.build().new_agent(),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            patience,
        })
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &Address {
        &self.endpoint
    }

    /// How requests are repeated.
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// One request, with its redirects.
    pub fn ask(&self, address: &Address, wanted: Wanted, about: About) -> Result<Answer> {
        let mut at = address.clone();
        for _ in 0..MAX_REDIRECTS {
            let response = self.one(&at, wanted)?;
            let status = response.status();
            if status.is_redirection() {
                let next = location(&response, &at)?;
                let stays = at.is_same_server(&next);
                if matches!(wanted, Wanted::Head) && !stays {
                    return Ok(Answer { response, from: at });
                }
                at = next;
                continue;
            }
            if status.is_success() {
                return Ok(Answer { response, from: at });
            }
            return Err(self.refusal(&at, status, response.headers(), about));
        }
        Err(Error::Answer { url: at.public(), what: "it redirects without end".into() })
    }

    fn one(&self, at: &Address, wanted: Wanted) -> Result<Response<ureq::Body>> {
        let url = at.to_string();
        let mut request = match wanted {
            Wanted::Head => self.agent.head(&url),
            Wanted::Whole | Wanted::Range(..) => self.agent.get(&url),
        };
        // What is compressed on the way has another length and no ranges.
        request = request.header(header::ACCEPT_ENCODING, "identity");
        if let Wanted::Range(start, end) = wanted {
            request = request.header(header::RANGE, format!("bytes={start}-{}", end - 1));
        }
        // The hub alone sees the token, and nobody on the way to it.
        if let Some(token) = &self.token
            && at.is_same_server(&self.endpoint)
            && at.is_private()
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|e| Error::Network { url: at.public(), what: e.to_string() })
    }

    fn refusal(
        &self,
        at: &Address,
        status: StatusCode,
        headers: &HeaderMap,
        about: About,
    ) -> Error {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let (code, message) = (text("x-error-code"), text("x-error-message"));
        let (repo, has_token) = (about.repo.to_string(), self.token.is_some());
        let endpoint = self.endpoint.to_string();
        let is_hub = at.is_same_server(&self.endpoint);
        match status.as_u16() {
            401 | 403 if is_hub && code == "GatedRepo" => {
                Error::Gated { page: format!("{endpoint}/{repo}"), repo, has_token }
            }
            401 if is_hub && message.contains("Invalid credentials") => Error::Token { endpoint },
            404 if code == "RevisionNotFound" => {
                Error::NoRevision { repo, revision: about.revision.to_string() }
            }
            404 if code == "EntryNotFound" || (about.file.is_some() && code != "RepoNotFound") => {
                let what = format!("it has no file {}", about.file.unwrap_or_default());
                Error::NoFiles { repo, what }
            }
            401 | 404 if is_hub => Error::NoRepo { endpoint, repo, has_token },
            status => {
                let printable = |c: char| !c.is_control();
                let what: String = message.chars().filter(|c| printable(*c)).take(200).collect();
                Error::Status {
                    url: at.public(),
                    status,
                    what: Some(what).filter(|what| !what.is_empty()),
                    retry_after: text("retry-after").trim().parse().ok().map(Duration::from_secs),
                }
            }
        }
    }

    /// Does something again where that may help.
    pub fn patiently<T>(&self, stop: &AtomicBool, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.repeat(self.patience.retries, stop, work)
    }

    /// The same for a question; a hub that can't be reached is soon given up.
    pub fn briefly<T>(&self, stop: &AtomicBool, work: impl FnMut() -> Result<T>) -> Result<T> {
        self.repeat(self.patience.retries.min(UNREACHED), stop, work)
    }

    fn repeat<T>(
        &self,
        unreached: u32,
        stop: &AtomicBool,
        mut work: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut failures = 0;
        loop {
            let e = match work() {
                Err(e) if e.may_pass() => e,
                done => return done,
            };
            let is_unreached = matches!(e, Error::Network { .. });
            if failures >= if is_unreached { unreached } else { self.patience.retries } {
                return Err(e);
            }
            self.wait(failures, &e, stop)?;
            failures += 1;
        }
    }

    /// Waits after a failure: as long as the server says, or longer each time.
    pub fn wait(&self, failures: u32, after: &Error, stop: &AtomicBool) -> Result<()> {
        let own = self.patience.first_wait.saturating_mul(1 << failures.min(10));
        let asked = match after {
            Error::Status { retry_after, .. } => *retry_after,
            _ => None,
        };
        let wait = asked.map_or(own, |asked| asked.max(own)).min(MAX_WAIT);
        let start = Instant::now();
        while start.elapsed() < wait {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let left = wait.saturating_sub(start.elapsed());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}

fn location(response: &Response<ureq::Body>, at: &Address) -> Result<Address> {
    let location = response.headers().get(header::LOCATION).and_then(|v| v.to_str().ok());
    match location {
        Some(location) => at.redirect(location),
        None => {
            Err(Error::Answer { url: at.public(), what: "it redirects without an address".into() })
        }
    }
}

impl Answer {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether only the range came that was asked for.
    pub fn is_partial(&self) -> bool {
        self.response.status() == StatusCode::PARTIAL_CONTENT
    }

    /// Whether it leads to another server.
    pub fn is_redirect(&self) -> bool {
        self.response.status().is_redirection()
    }

    /// Its body, of at most so many bytes.
    pub fn read(mut self, limit: u64) -> Result<Vec<u8>> {
        let config = self.response.body_mut().with_config().limit(limit);
        let read = config.read_to_vec();
        read.map_err(|e| Error::Network { url: self.from.public(), what: e.to_string() })
    }

    /// Its body, as it comes.
    pub fn into_reader(self) -> impl Read {
        self.response.into_body().into_reader()
    }
}
