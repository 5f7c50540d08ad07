/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a recipe can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no recipe of that name.
    #[error("there is no recipe `{name}`; there are {known}, or give the path of a .toml file")]
    UnknownRecipe {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A recipe file does not parse.
    #[error("recipe: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// A rule of a recipe is wrong.
    #[error("recipe, rule `{rule}`: {what}")]
    Rule {
        /// Its pattern.
        rule: String,
        /// What is wrong with it.
        what: String,
    },
    /// The program is at fault.
    #[error(transparent)]
    Program(#[from] lapidary_program::Error),
}
