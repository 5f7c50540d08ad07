//! Names of models: `lapidary pull`, `ls`, `show` and `rm`.

pub mod ls;
pub mod pull;
pub mod rm;
pub mod show;

use anyhow::Result;
use lapidary::{Load, Model, Plan};
use lapidary_hub::{Candidate, Choice, Entry, Error, Given, Name, Table, Variant, given};

use crate::exit::Usage;

/// What `--backend` says where the user leaves the choice open.
const AUTO: &str = "auto";

/// A name that a command was given instead of a path.
fn name(text: &str) -> Result<Name> {
    match given(text) {
        Ok(Given::Name(name)) => Ok(name),
        Ok(Given::Path) if std::path::Path::new(text).exists() => {
            // A folder that is called as a repository does not hide it here.
            Name::parse(text).map_err(|_| {
                let what =
                    format!("{text} is a file or folder; `lapidary inspect {text}` shows it");
                Usage(what).into()
            })
        }
        Ok(Given::Path) => Err(Usage(format!("{text} is not the name of a model")).into()),
        Err(e) => Err(e.into()),
    }
}

/// The backend that a flag stands for: on systems for which the table has defaults, `auto` takes the
/// first of them that works here.
pub fn backend(asked: &str) -> String {
    let has_default = !Table::get().platform(std::env::consts::OS).is_empty();
    if asked != AUTO || !has_default {
        return asked.to_string();
    }
    // If nothing can be used, the library says why.
    choice(asked).map_or(asked.to_string(), |choice| choice.backend)
}

/// The backend that a flag stands for on this machine, with the reasons.
fn choice(asked: &str) -> Result<Choice, String> {
    let found = lapidary::devices();
    let candidates: Vec<Candidate> = found
        .iter()
        .map(|backend| Candidate {
            name: backend.name.into(),
            unusable: match &backend.devices {
                Ok(devices) if devices.is_empty() => Some("it finds no device".into()),
                Ok(_) => None,
                Err(why) => Some(why.clone()),
            },
        })
        .collect();
    let auto = found.iter().find(|backend| backend.is_auto);
    let auto = auto.map(|backend| backend.name.to_string());
    let os = std::env::consts::OS;
    lapidary_hub::choose(
        (asked != AUTO).then_some(asked),
        (os, Table::get().platform(os)),
        &candidates,
        auto.ok_or_else(|| "no backend finds a device".into()),
    )
}

/// What a variant would take on this machine, by its shape alone. A drafter takes nothing by itself.
fn plan(entry: &Entry, variant: &Variant, backend: &str) -> Option<lapidary::Result<Plan>> {
    if variant.is_drafter() {
        return None;
    }
    let model = Model::synthetic(&entry.shape, variant.recipe_in_memory());
    Some(model.and_then(|model| Load::default().backend(backend).sequences(1).plan(&model)))
}

/// Whether a failure only says that the files are not here.
fn is_absent(e: &Error) -> bool {
    matches!(e, Error::NotHere { .. })
}
