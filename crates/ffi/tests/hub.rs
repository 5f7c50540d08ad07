//! Names and downloads as other languages call them, from a hub on this machine.

#[path = "../../hub/tests/hub/server.rs"]
#[allow(dead_code)]
mod server;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lapidary_ffi::{ErrorCode, Hub, HubOptions, LapidaryError, Model, OpenOptions};
use pollster::block_on;

use server::Server;

const REPO: &str = "tiny/gemma";

fn options(server: &Server, cache: &Path) -> HubOptions {
    HubOptions {
        cache: Some(cache.display().to_string()),
        endpoint: Some(server.url()),
        token: Some(String::new()),
        offline: false,
    }
}

fn publish(server: &Server) {
    server.add(REPO, "config.json", br#"{"model_type": "gemma3_text"}"#.to_vec(), false);
    let weights = (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    server.add(REPO, "model.safetensors", weights, true);
}

fn code<T>(result: Result<T, LapidaryError>) -> ErrorCode {
    match result {
        Ok(_) => panic!("it went well"),
        Err(LapidaryError::Failed { code, .. }) => code,
    }
}

#[test]
fn a_model_is_offered_downloaded_listed_and_removed() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    publish(&server);
    let options = options(&server, cache.path());
    let hub = Hub::new(Some(options.clone())).unwrap();
    let name = || REPO.to_string();
    assert!(!block_on(hub.is_downloaded(name())).unwrap());
    let open = OpenOptions { hub: Some(options), ..OpenOptions::default() };
    assert_eq!(code(block_on(Model::open(name(), Some(open.clone())))), ErrorCode::NotFound);
    let offer = block_on(hub.offer(name())).unwrap();
    assert!(offer.total_bytes > 200_000 && offer.missing_bytes == offer.total_bytes, "{offer:?}");

    let download = hub.download(name());
    let mut last = 0;
    while let Some(told) = block_on(download.next()) {
        assert!(told.done >= last && told.done <= told.total, "{told:?}");
        assert_eq!(told.total, offer.total_bytes);
        last = told.done;
    }
    let path = block_on(download.finish()).unwrap();
    assert!(Path::new(&path).join("config.json").is_file(), "{path}");
    assert!(block_on(hub.is_downloaded(name())).unwrap());
    let listed = block_on(hub.list()).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].repo.as_str(), &listed[0].path), (REPO, &path));
    // It is found there, and found to be no model.
    assert_eq!(code(block_on(Model::open(name(), Some(open)))), ErrorCode::InvalidProgram);
    assert!(block_on(hub.remove(name())).unwrap() >= 200_000);
    assert_eq!(code(block_on(hub.remove(name()))), ErrorCode::NotFound);
    assert!(block_on(hub.list()).unwrap().is_empty());
}

#[test]
fn a_download_that_is_given_up_ends_at_once() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    publish(&server);
    server.faults(|faults| faults.delay = Some(Duration::from_millis(200)));
    let hub = Hub::new(Some(options(&server, cache.path()))).unwrap();
    let download = hub.download(REPO.into());
    download.cancel();
    assert_eq!(code(block_on(download.finish())), ErrorCode::Cancelled);
    assert!(block_on(download.next()).is_none());
    drop(download);
    assert!(!block_on(hub.is_downloaded(REPO.into())).unwrap());
}

#[test]
fn what_goes_wrong_has_a_code() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let options = options(&server, cache.path());
    let hub = |options: HubOptions| Hub::new(Some(options)).unwrap();
    let finish = |hub: Arc<Hub>, name: &str| block_on(hub.download(name.into()).finish());
    assert_eq!(code(finish(hub(options.clone()), "no/such")), ErrorCode::NotFound);
    assert_eq!(code(finish(hub(options.clone()), "a/../b")), ErrorCode::InvalidArgument);
    let offline = HubOptions { offline: true, ..options };
    assert_eq!(code(finish(hub(offline), REPO)), ErrorCode::Network);
}

#[test]
fn the_table_of_released_models_is_there() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let hub = Hub::new(Some(options(&server, cache.path()))).unwrap();
    let models = hub.models();
    let e2b = models.iter().find(|model| model.name == "gemma4:e2b").unwrap();
    assert!(e2b.input.iter().any(|input| input == "audio") && e2b.parameters > 1_000_000_000);
    let default: Vec<_> = e2b.variants.iter().filter(|variant| variant.is_default).collect();
    assert!(default.len() == 1 && default[0].name == "gemma4:e2b", "{default:?}");
}
