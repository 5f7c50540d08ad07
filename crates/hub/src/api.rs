//! What the hub says of a repository and of its files.

use std::sync::atomic::AtomicBool;

use serde::Deserialize;

use crate::address::{Address, encode};
use crate::error::{Error, Result};
use crate::http::{About, Client, Wanted};

/// A list of files longer than this is no model's.
const MAX_INFO: u64 = 32 << 20;

/// A repository at one commit.
#[derive(Debug)]
pub struct Info {
    /// The commit, 40 digits.
    pub commit: String,
    /// All files.
    pub files: Vec<Remote>,
}

/// A file as the hub has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its path in the repository.
    pub name: String,
    /// Its length.
    pub size: Option<u64>,
    /// Its SHA-256, or git's SHA-1 of a small file; also its name in the cache.
    pub etag: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// The commit that a revision stands for, and its files.
pub fn info(client: &Client, repo: &str, revision: &str, stop: &AtomicBool) -> Result<Info> {
    let path = format!("api/models/{repo}/revision/{}?blobs=true", encode(revision));
    let address = client.endpoint().join(&path);
    let about = About { repo, revision, file: None };
    let bytes =
        client.briefly(stop, || client.ask(&address, Wanted::Whole, about)?.read(MAX_INFO))?;
    let wrong = |what: String| Error::Answer { url: address.public(), what };
    let answer: Answer = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
    if !is_hex(&answer.sha, 40) {
        return Err(wrong("it names no commit".into()));
    }
    let files = answer.siblings.into_iter().map(|file| {
        // A file that git keeps by a pointer has that pointer's hash as its own.
        let (etag, size) = match file.lfs {
            Some(lfs) => (lfs.sha256, lfs.size.or(file.size)),
            None => (file.blob_id, file.size),
        };
        Remote { name: file.rfilename, size, etag: etag.filter(|etag| is_checksum(etag)) }
    });
    Ok(Info { commit: answer.sha, files: files.collect() })
}

/// A file's address at a commit.
pub fn file_address(client: &Client, repo: &str, commit: &str, file: &str) -> Address {
    client.endpoint().join(&format!("{repo}/resolve/{commit}/{}", encode(file)))
}

/// Asks for what a list of files left out.
pub fn complete(
    client: &Client,
    repo: &str,
    commit: &str,
    file: &Remote,
    stop: &AtomicBool,
) -> Result<(u64, String)> {
    if let (Some(size), Some(etag)) = (file.size, &file.etag) {
        return Ok((size, etag.clone()));
    }
    let address = file_address(client, repo, commit, &file.name);
    let about = About { repo, revision: commit, file: Some(&file.name) };
    let head = client.briefly(stop, || client.ask(&address, Wanted::Head, about))?;
    let etag = head.header("x-linked-etag").or_else(|| head.header("etag"));
    let etag = etag.map(|e| e.trim_start_matches("W/").trim_matches('"').to_string());
    let length = || if head.is_redirect() { None } else { head.header("content-length") };
    let size = head.header("x-linked-size").or_else(length).and_then(|n| n.parse().ok());
    match (size, etag.filter(|etag| is_checksum(etag))) {
        (Some(size), Some(etag)) => Ok((size, etag)),
        _ => {
            let what = "it gives no checksum or no length, without which a file is not taken";
            Err(Error::Answer { url: address.public(), what: what.into() })
        }
    }
}

/// SHA-256 or SHA-1 in small hexadecimal digits: no other name gets into the cache.
fn is_checksum(etag: &str) -> bool {
    is_hex(etag, 64) || is_hex(etag, 40)
}

pub fn is_hex(text: &str, n: usize) -> bool {
    text.len() == n && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
