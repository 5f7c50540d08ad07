use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a name can't be resolved, or files can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is not a name at all.
    #[error("`{given}` is not the name of a model: {what}")]
    Name {
        /// What was given.
        given: String,
        /// What is wrong with it.
        what: String,
    },
    /// No such model is in the table.
    #[error("there is no model `{given}`{}", suggestion(known, *close))]
    Unknown {
        /// What was given.
        given: String,
        /// What was probably meant, or what there is.
        known: Vec<String>,
        /// Whether `known` is near what was given.
        close: bool,
    },
    /// The model's files are not in the cache.
    #[error(
        "{name} is not on this machine{}; download it first: lapidary pull {name}",
        because(why)
    )]
    NotHere {
        /// Its name.
        name: String,
        /// What of it is missing, if something of it is there.
        why: Option<String>,
    },
    /// Only the cache may be used.
    #[error(
        "{what} would have to be asked of the hub, but HF_HUB_OFFLINE is set; unset it to connect"
    )]
    Offline {
        /// What is wanted.
        what: String,
    },
    /// The hub has no such repository, or does not show it to this user.
    #[error(
        "{endpoint} has no repository {repo}, or shows it only to those who may see it; check the \
         name{}", login_hint(*has_token)
    )]
    NoRepo {
        /// Where it was asked for.
        endpoint: String,
        /// The repository.
        repo: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The repository has no such revision.
    #[error("{repo} has no revision `{revision}`; a branch, a tag or a commit goes after the @")]
    NoRevision {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
    },
    /// The repository has not the files that a model needs.
    #[error("{repo}: {what}")]
    NoFiles {
        /// The repository.
        repo: String,
        /// What is missing, and what there is.
        what: String,
    },
    /// The model's terms must be accepted first.
    #[error(
        "{repo} is gated: accept its terms at {page}{}",
        gated_hint(*has_token)
    )]
    Gated {
        /// The repository.
        repo: String,
        /// Where the terms are.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The token is not accepted.
    #[error("{endpoint} does not accept your token; set HF_TOKEN to a valid one, or unset it")]
    Token {
        /// Where it was sent.
        endpoint: String,
    },
    /// There is too little space.
    #[error(
        "{} are needed in {} and {} are free; free some, or set HF_HUB_CACHE to a folder on a \
         larger disk",
        bytes(*need), at.display(), bytes(*have)
    )]
    Disk {
        /// Bytes that are to come.
        need: u64,
        /// Bytes that are free.
        have: u64,
        /// The cache.
        at: PathBuf,
    },
    /// What came is not what was announced.
    #[error(
        "{file}: its bytes have the checksum {found} and should have {wanted}; nothing of it was \
         kept, try again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// What the hub says.
        wanted: String,
        /// What came.
        found: String,
    },
    /// An address that must not be used.
    #[error("{url}: {what}")]
    Address {
        /// The address, without its query.
        url: String,
        /// Why not.
        what: &'static str,
    },
    /// The hub says no.
    #[error("{url} answers {status}{}", because(what))]
    Status {
        /// The address, without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What it says of the reason.
        what: Option<String>,
        /// When it may be asked again.
        retry_after: Option<Duration>,
    },
    /// The hub's answer makes no sense.
    #[error("{url} answers what is not understood: {what}")]
    Answer {
        /// The address, without its query.
        url: String,
        /// What is wrong.
        what: String,
    },
    /// The connection failed.
    #[error("{url} can't be reached: {what}")]
    Network {
        /// The address, without its query.
        url: String,
        /// What the network says.
        what: String,
    },
    /// A file or folder of the cache can't be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// Another process has its hands on it.
    #[error("{repo} is being downloaded by another process; wait for it, or end it")]
    Busy {
        /// The repository.
        repo: String,
    },
    /// The caller cancelled.
    #[error("cancelled; what has come is kept, and the next pull goes on from there")]
    Cancelled,
}

impl Error {
    /// What kind of failure this is: a name of the library's table of error codes.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Name { .. } | Error::Address { .. } => "invalid_argument",
            Error::Unknown { .. }
            | Error::NotHere { .. }
            | Error::NoRepo { .. }
            | Error::NoRevision { .. }
            | Error::NoFiles { .. } => "not_found",
            Error::Offline { .. }
            | Error::Gated { .. }
            | Error::Token { .. }
            | Error::Checksum { .. }
            | Error::Status { .. }
            | Error::Answer { .. }
            | Error::Network { .. } => "network_error",
            Error::Disk { .. } | Error::Io { .. } => "io_error",
            Error::Busy { .. } => "busy",
            Error::Cancelled => "cancelled",
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    }

    /// Whether the same may go well a little later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Error::Network { .. } => true,
            Error::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }
}

fn suggestion(known: &[String], close: bool) -> String {
    let list = known.join(", ");
    match (known.len(), close) {
        (0, _) => String::new(),
        (_, true) => format!("; did you mean {list}?"),
        (_, false) => format!("; there are {list}"),
    }
}

fn because(why: &Option<String>) -> String {
    why.as_ref().map_or(String::new(), |why| format!(" ({why})"))
}

fn login_hint(has_token: bool) -> &'static str {
    if has_token { "" } else { ", or set HF_TOKEN if it is private" }
}

fn gated_hint(has_token: bool) -> &'static str {
    if has_token {
        " with the account that your token belongs to"
    } else {
        ", make a token that may read it at https://huggingface.co/settings/tokens, and set HF_TOKEN \
         to it (or run `hf auth login`)"
    }
}

/// Bytes for people.
pub fn bytes(n: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| n >= *unit) {
        Some((name, unit)) => format!("{}.{:02} {name}", n / unit, n % unit * 100 / unit),
        None => format!("{n} bytes"),
    }
}
