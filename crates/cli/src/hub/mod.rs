//! Names of models: `lapidary pull`, `ls`, `show` and `rm`.

pub mod ls;
pub mod pull;
pub mod rm;
pub mod show;

use anyhow::Result;
use lapidary::hub::{Error, Given, Name, given};

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

/// Whether a failure only says that the files are not here.
fn is_absent(e: &Error) -> bool {
    matches!(e, Error::NotHere { .. })
}
