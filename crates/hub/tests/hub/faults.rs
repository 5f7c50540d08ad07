//! What goes wrong between a hub and a disk.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lapidary_hub::{Error, Found, Hub, Patience, Progress, Result, Step, Watch};

use crate::server::{COMMIT, Server};
use crate::{REPO, check_blobs, hub, hub_of, name, noise, publish, settings};

fn pull(hub: &Hub) -> Result<Found> {
    hub.pull(&hub.ask(&name(REPO))?, &Watch::default())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn after_a_cut_anywhere_nothing_wrong_is_seen_and_the_rest_comes() {
    let server = Server::start();
    let size = 90_000;
    let files = publish(&server, size);
    let total = files.iter().map(|f| f.bytes.len() as u64).sum::<u64>();
    let cuts = noise(1500, 3);
    let mut resumed = 0;
    for cut in cuts.chunks(3) {
        let budget = u64::from(cut[0]) << 16 | u64::from(cut[1]) << 8 | u64::from(cut[2]);
        let budget = budget % total;
        let cache = folder();
        let impatient = Patience { retries: 0, first_wait: Duration::ZERO };
        server.faults(|f| f.budget = Some(budget));
        let cut_off = hub(&server, cache.path()).patience(impatient);
        let broken = pull(&cut_off).unwrap_err();
        assert_eq!(broken.code(), "network_error", "{budget}: {broken}");
        check_blobs(cache.path(), &files);
        assert!(cut_off.find(&name(REPO)).is_err(), "{budget}");

        server.heal();
        server.requests();
        let whole = hub(&server, cache.path());
        let offer = whole.ask(&name(REPO)).unwrap();
        assert_eq!(offer.total, total);
        let found = whole.pull(&offer, &Watch::default()).unwrap();
        assert_eq!(check_blobs(cache.path(), &files), 2, "{budget}");
        assert_eq!(whole.find(&name(REPO)).unwrap(), found);
        // What had come is not asked for again.
        let sent: u64 = server.bodies().iter().map(|r| r.sent).sum();
        assert_eq!(sent, offer.missing, "{budget}");
        resumed += u64::from(offer.missing < total);
        let blobs = cache.path().join("models--tiny--gemma/blobs");
        assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 2, "nothing is left over");
    }
    assert_eq!(cuts.chunks(3).len(), 500);
    assert!(resumed > 100, "{resumed}");
}

#[test]
fn a_connection_that_breaks_again_and_again_is_taken_up_where_it_broke() {
    let server = Server::start();
    let files = publish(&server, 200_000);
    let cache = folder();
    server.faults(|f| f.cut_each = Some(5000));
    pull(&hub(&server, cache.path())).unwrap();
    assert_eq!(check_blobs(cache.path(), &files), 2);
    let sent: u64 = server.bodies().iter().map(|r| r.sent).sum();
    assert_eq!(sent, files.iter().map(|f| f.bytes.len() as u64).sum::<u64>());
}

#[test]
fn x6_wrong_bytes_never_get_a_name() {
    let server = Server::start();
    let files = publish(&server, 60_000);
    let cache = folder();
    server.faults(|f| f.is_damaged = true);
    let hub = hub(&server, cache.path());
    let refused = pull(&hub).unwrap_err();
    assert!(matches!(refused, Error::Checksum { .. }), "{refused}");
    assert_eq!(check_blobs(cache.path(), &files), 0);
    let blobs = cache.path().join("models--tiny--gemma/blobs");
    assert_eq!(std::fs::read_dir(&blobs).unwrap().count(), 0, "nothing of it is kept");
    server.heal();
    pull(&hub).unwrap();
    assert_eq!(check_blobs(cache.path(), &files), 2);
}

#[test]
fn what_an_earlier_run_left_damaged_is_brought_again() {
    let server = Server::start();
    let files = publish(&server, 90_000);
    let cache = folder();
    let impatient = Patience { retries: 0, first_wait: Duration::ZERO };
    server.faults(|f| f.budget = Some(70_000));
    pull(&hub(&server, cache.path()).patience(impatient)).unwrap_err();
    let blobs = cache.path().join("models--tiny--gemma/blobs");
    let partial = blobs.join(format!("{}.lapidary.incomplete", files[1].etag()));
    let size = std::fs::metadata(&partial).unwrap().len();
    std::fs::write(&partial, vec![0; usize::try_from(size).unwrap()]).unwrap();
    server.heal();
    pull(&hub(&server, cache.path())).unwrap();
    assert_eq!(check_blobs(cache.path(), &files), 2);
}

#[test]
fn a_file_of_ranges_that_lies_is_not_believed() {
    let server = Server::start();
    let files = publish(&server, 50_000);
    for lie in
        ["", "lapidary 1 50000 0\n1", "lapidary 1 50000 16384\n11111111", "lapidary 2 x", "\n"]
    {
        let cache = folder();
        let blobs = cache.path().join("models--tiny--gemma/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        let file = |end: &str| blobs.join(format!("{}.lapidary.{end}", files[1].etag()));
        std::fs::write(file("ranges"), lie).unwrap();
        std::fs::write(file("incomplete"), noise(50_000, 1)).unwrap();
        pull(&hub(&server, cache.path())).unwrap();
        assert_eq!(check_blobs(cache.path(), &files), 2, "{lie:?}");
    }
}

#[test]
fn a_server_without_ranges_sends_whole_files() {
    let server = Server::start();
    let files = publish(&server, 90_000);
    let cache = folder();
    server.faults(|f| f.no_ranges = true);
    pull(&hub(&server, cache.path())).unwrap();
    assert_eq!(check_blobs(cache.path(), &files), 2);
}

#[test]
fn a_slow_server_is_waited_for() {
    let server = Server::start();
    let files = publish(&server, 90_000);
    let cache = folder();
    server.faults(|f| f.delay = Some(Duration::from_millis(5)));
    pull(&hub(&server, cache.path())).unwrap();
    assert_eq!(check_blobs(cache.path(), &files), 2);
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let server = Server::start();
    publish(&server, 100);
    let hub_at = |path: &Path| hub(&server, path);
    let cache = folder();
    server.faults(|f| {
        f.answers.extend([(429, vec![("Retry-After", "1".into())]), (503, vec![]), (500, vec![])]);
    });
    let start = Instant::now();
    pull(&hub_at(cache.path())).unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
    // Who never has time is given up.
    let cache = folder();
    server.faults(|f| f.answers.extend((0..9).map(|_| (503, vec![]))));
    let refused = pull(&hub_at(cache.path())).unwrap_err();
    assert!(matches!(refused, Error::Status { status: 503, .. }), "{refused}");
    assert_eq!(refused.code(), "network_error");
}

#[test]
fn x6_the_token_goes_to_the_hub_alone() {
    let server = Server::start();
    publish(&server, 60_000);
    server.faults(|f| f.token = Some("hf_secret".into()));
    let cache = folder();
    let with_token = settings(&server, cache.path()).token("hf_secret");
    pull(&hub_of(with_token)).unwrap();
    let requests = server.requests();
    let cdn: Vec<_> = requests.iter().filter(|r| r.is_cdn).collect();
    assert!(cdn.len() >= 4, "ranges come from the other server: {requests:?}");
    assert!(cdn.iter().all(|r| r.authorization.is_none()), "{cdn:?}");
    let hub = requests.iter().filter(|r| !r.is_cdn);
    assert!(hub.clone().count() > 2);
    hub.for_each(|r| assert_eq!(r.authorization.as_deref(), Some("Bearer hf_secret")));
}

#[test]
fn who_may_not_read_is_told_what_to_do() {
    let server = Server::start();
    publish(&server, 100);
    let cache = folder();
    let anonymous = hub(&server, cache.path());
    let known = hub_of(settings(&server, cache.path()).token("hf_known"));
    let said = |hub: &Hub| pull(hub).unwrap_err();

    server.faults(|f| f.is_gated = true);
    let gated = said(&anonymous);
    let text = gated.to_string();
    assert!(matches!(gated, Error::Gated { has_token: false, .. }), "{gated}");
    assert!(text.contains(&format!("{}/{REPO}", server.url())), "{text}");
    assert!(text.contains("HF_TOKEN") && text.contains("hf auth login"), "{text}");
    let gated = said(&known);
    assert!(matches!(gated, Error::Gated { has_token: true, .. }), "{gated}");
    assert!(!gated.to_string().contains("HF_TOKEN"), "{gated}");
    server.heal();

    server.faults(|f| f.token = Some("hf_other".into()));
    assert!(matches!(said(&known), Error::Token { .. }));
    server.heal();

    let no = |text: &str| anonymous.ask(&name(text)).unwrap_err();
    assert!(matches!(no("tiny/none"), Error::NoRepo { .. }));
    assert!(matches!(no("tiny/gemma@v9"), Error::NoRevision { .. }));
    assert!(matches!(no("tiny/gemma:Q4_0"), Error::NoFiles { .. }));
    assert_eq!(check_blobs(cache.path(), &[]), 0);
}

#[test]
fn a_hub_that_lists_no_checksums_is_asked_for_each_file() {
    let server = Server::start();
    let files = publish(&server, 40_000);
    server.faults(|f| f.is_terse = true);
    let cache = folder();
    pull(&hub(&server, cache.path())).unwrap();
    assert_eq!(check_blobs(cache.path(), &files), 2);
    // Without one that can be checked, nothing is taken: it would be part of a path, too.
    for etag in ["../../../evil", "x", &"G".repeat(64)] {
        let cache = folder();
        server.faults(|f| f.etag = Some(etag.into()));
        let refused = pull(&hub(&server, cache.path())).unwrap_err();
        assert!(refused.to_string().contains("no checksum"), "{refused}");
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
    }
}

#[test]
fn x6_files_that_would_lie_elsewhere_are_not_taken() {
    let server = Server::start();
    publish(&server, 100);
    for evil in ["../evil.json", "/etc/evil.json", "a/config.json", "..\\evil.gguf", ".hidden.gguf"]
    {
        server.add(REPO, evil, b"evil".to_vec(), false);
    }
    let cache = folder();
    let found = pull(&hub(&server, cache.path())).unwrap();
    let names: Vec<String> =
        found.files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into()).collect();
    assert_eq!(names, ["config.json", "model.safetensors"]);
}

#[test]
fn a_disk_that_is_too_small_is_told_before_the_first_byte() {
    let server = Server::start();
    publish(&server, 100);
    server.faults(|f| f.lie = Some(1 << 60));
    let cache = folder();
    let hub = hub(&server, cache.path());
    let offer = hub.ask(&name(REPO)).unwrap();
    server.requests();
    let refused = hub.pull(&offer, &Watch::default()).unwrap_err();
    assert!(matches!(refused, Error::Disk { .. }), "{refused}");
    assert!(refused.to_string().contains("HF_HUB_CACHE"), "{refused}");
    assert!(server.requests().is_empty());
}

#[test]
fn x6_offline_asks_nobody() {
    let server = Server::start();
    publish(&server, 100);
    let cache = folder();
    pull(&hub(&server, cache.path())).unwrap();
    server.requests();
    let mut offline = settings(&server, cache.path());
    offline.offline = true;
    let offline = hub_of(offline);
    assert!(offline.find(&name(REPO)).is_ok());
    assert!(matches!(offline.ask(&name(REPO)), Err(Error::Offline { .. })));
    assert!(server.requests().is_empty());
}

#[test]
fn two_at_once_bring_a_file_once() {
    let server = Server::start();
    let files = publish(&server, 300_000);
    let cache = folder();
    server.faults(|f| f.delay = Some(Duration::from_millis(1)));
    std::thread::scope(|scope| {
        let pulls: Vec<_> =
            (0..3).map(|_| scope.spawn(|| pull(&hub(&server, cache.path())).unwrap())).collect();
        let found: Vec<Found> = pulls.into_iter().map(|p| p.join().unwrap()).collect();
        assert!(found.windows(2).all(|w| w[0] == w[1]));
    });
    assert_eq!(check_blobs(cache.path(), &files), 2);
    let sent: u64 = server.bodies().iter().map(|r| r.sent).sum();
    assert_eq!(sent, files.iter().map(|f| f.bytes.len() as u64).sum::<u64>());
}

#[test]
fn it_can_be_ended_and_taken_up() {
    let server = Server::start();
    let files = publish(&server, 200_000);
    let cache = folder();
    let hub = hub(&server, cache.path());
    let offer = hub.ask(&name(REPO)).unwrap();
    let stop = AtomicBool::new(false);
    let tell = |p: &Progress| {
        assert_eq!(p.total, offer.total);
        assert!(p.done <= p.total, "{p:?}");
        if p.step == Step::Downloading && p.done > 100_000 {
            stop.store(true, Ordering::SeqCst);
        }
    };
    let watch = Watch { tell: Some(&tell), stop: Some(&stop) };
    assert!(matches!(hub.pull(&offer, &watch), Err(Error::Cancelled)));
    check_blobs(cache.path(), &files);
    assert!(hub.find(&name(REPO)).is_err());
    assert!(hub.ask(&name(REPO)).unwrap().missing < offer.total);
    assert_eq!(pull(&hub).unwrap().commit, COMMIT);
    assert_eq!(check_blobs(cache.path(), &files), 2);
}
