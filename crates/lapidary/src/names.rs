//! Models by name: where their files are, bringing them here, and which backend runs them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_hub::{
    Candidate, Choice, Entry, Error as HubError, Found, Given, Hub, Name, Offer, Table, Variant,
    Watch, given,
};

use crate::error::{Error, Result};
use crate::load::{Load, devices};
use crate::model::{Model, PEBBLE};
use crate::plan::Plan;

/// Where a model's files are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// What is opened.
    pub path: PathBuf,
    /// The GGUF file with the towers.
    pub towers: Option<PathBuf>,
    /// The recipe to quantise it by.
    pub recipe: Option<String>,
    /// Its name, if it was named.
    pub name: Option<String>,
}

/// What stands where a model stands.
enum Meant {
    /// A path, whether there is something or not.
    Path,
    /// A name of the table, or a repository.
    Name(Name),
}

/// Finds the files of a path or a name on this machine. A path that exists wins over a name.
///
/// A name whose files are not here is [`HubError::NotHere`]; [`pull`] brings them.
pub fn locate(model: impl AsRef<Path>) -> Result<Located> {
    let model = model.as_ref();
    match meant(model)? {
        Meant::Path => Ok(Located { path: model.to_path_buf(), ..Located::default() }),
        Meant::Name(name) => Ok(located(&name, Hub::from_env()?.find(&name)?)),
    }
}

/// Downloads a model of this name, unless it is here and up to date. What this machine's memory
/// can't hold is refused before the first byte.
///
/// ```no_run
/// use lapidary::hub::Watch;
///
/// let tell = |p: &lapidary::hub::Progress| eprintln!("{} of {} bytes", p.done, p.total);
/// lapidary::pull("gemma4:e2b", &Watch { tell: Some(&tell), stop: None })?;
/// let model = lapidary::Model::open("gemma4:e2b")?;
/// # Ok::<(), lapidary::Error>(())
/// ```
pub fn pull(name: &str, watch: &Watch) -> Result<Located> {
    let name = Name::parse(name)?;
    let hub = Hub::from_env()?;
    let offer = hub.ask(&name)?;
    check_memory(&offer)?;
    Ok(located(&name, hub.pull(&offer, watch)?))
}

/// Refuses a download that this machine could not run, where its shape is known before it is here.
pub fn check_memory(offer: &Offer) -> Result<()> {
    let Name::Known { entry, variant, .. } = &offer.name else { return Ok(()) };
    if offer.missing == 0 {
        return Ok(());
    }
    let Some(Ok(plan)) = plan_of(entry, variant, &Load::default().sequences(1)) else {
        return Ok(());
    };
    match plan.shortage() {
        Some(why) => Err(Error::TooLarge { name: offer.name.to_string(), why: why.to_string() }),
        None => Ok(()),
    }
}

/// What a variant would take on this machine, by its shape alone. A drafter takes nothing by itself.
pub fn plan_of(entry: &Entry, variant: &Variant, load: &Load) -> Option<Result<Plan>> {
    if variant.is_drafter() {
        return None;
    }
    let model = Model::synthetic(&entry.shape, variant.recipe_in_memory());
    Some(model.and_then(|model| load.plan(&model)))
}

/// The backend that runs a model here, and why: the one that is asked for; else the platform's
/// default, `auto`'s choice, or why there is none.
pub fn choose_backend(asked: Option<&str>) -> Result<Choice, String> {
    let found = devices();
    let candidate = |backend: &crate::load::BackendInfo| Candidate {
        name: backend.name.into(),
        unusable: match &backend.devices {
            Ok(devices) if devices.is_empty() => Some("it finds no device".into()),
            Ok(_) => None,
            Err(why) => Some(why.clone()),
        },
    };
    let candidates: Vec<Candidate> = found.iter().map(candidate).collect();
    let auto = found.iter().find(|backend| backend.is_auto);
    let auto = auto.map(|backend| backend.name.to_string());
    let os = std::env::consts::OS;
    let platform = (os, Table::get().platform(os));
    lapidary_hub::choose(
        asked,
        platform,
        &candidates,
        auto.ok_or_else(|| "no backend finds a device".into()),
    )
}

/// The backend that the platform prefers; `None` where it prefers none, or none of them works here.
pub(crate) fn platform_backend() -> Option<String> {
    if Table::get().platform(std::env::consts::OS).is_empty() {
        return None;
    }
    // If nothing can be used, `auto` says why.
    choose_backend(None).ok().map(|choice| choice.backend)
}

fn meant(model: &Path) -> Result<Meant> {
    let Some(text) = model.to_str().filter(|text| *text != PEBBLE) else { return Ok(Meant::Path) };
    let is_family = || Table::get().has_family(&text.to_lowercase());
    match given(text) {
        Ok(Given::Name(name)) => Ok(Meant::Name(name)),
        Ok(Given::Path) => Ok(Meant::Path),
        // A word that is near no name, or a sentence, is looked for as a path, and not found.
        Err(HubError::Unknown { close: false, .. }) if !text.contains(':') && !is_family() => {
            Ok(Meant::Path)
        }
        Err(HubError::Name { .. }) if text.contains(char::is_whitespace) => Ok(Meant::Path),
        Err(e) => Err(e.into()),
    }
}

fn located(name: &Name, found: Found) -> Located {
    Located {
        path: found.model,
        towers: found.towers,
        recipe: found.recipe,
        name: Some(name.to_string()),
    }
}

impl From<HubError> for Error {
    fn from(e: HubError) -> Self {
        Error::Hub(Arc::new(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    #[test]
    fn what_is_there_is_a_path_and_what_is_near_a_name_is_asked_about() {
        let here = env!("CARGO_MANIFEST_DIR");
        for path in [here, "pebble", "no such model", "nonsense", "./gemma4:e2b", "x.gguf"] {
            let located = locate(path).unwrap();
            assert_eq!((located.path.as_path(), located.name), (Path::new(path), None), "{path}");
        }
        let near = locate("gema4:e2b").unwrap_err();
        assert!(near.to_string().contains("did you mean gemma4:e2b"), "{near}");
        assert_eq!(near.code(), ErrorCode::NotFound);
        let unknown = locate("gemma4:e9b").unwrap_err();
        assert_eq!(unknown.code(), ErrorCode::NotFound);
    }

    #[test]
    fn every_error_of_the_hub_has_a_code_of_the_table() {
        let cancelled = Error::from(HubError::Cancelled);
        assert_eq!(cancelled.code(), ErrorCode::Cancelled);
        let offline = Error::from(HubError::Offline { what: "x".into() });
        assert_eq!(offline.code(), ErrorCode::Network);
        assert_eq!(ErrorCode::of(&HubError::Cancelled), Some(ErrorCode::Cancelled));
    }

    #[test]
    fn a_backend_that_is_asked_for_is_never_replaced() {
        assert_eq!(choose_backend(Some("cpu")).unwrap().backend, "cpu");
        let refused = choose_backend(Some("abacus")).unwrap_err();
        assert!(refused.contains("no backend `abacus`"), "{refused}");
        assert!(choose_backend(None).is_ok());
    }
}
