//! Names of models, and the files behind them.
//!
//! - [`Name`] is `gemma4:e2b`, `gemma4:31b-it-int4`, or any `org/repo[:quant][@revision]` of the hub;
//!   [`given`] tells it from a path.
//! - [`Table`] lists every released Gemma 3 and 4 with its variants.
//! - [`Hub::find`] looks in Hugging Face's cache, [`Hub::ask`] asks the hub what a download would
//!   bring, and [`Hub::pull`] brings it.
//! - [`choose`] says which backend runs it, and why.
//!
//! Nothing here knows how a model is opened or run.

mod address;
mod api;
mod cache;
mod choose;
mod download;
mod error;
mod http;
mod hub;
mod name;
mod select;
mod settings;
mod table;

pub use choose::{Candidate, Choice, choose};
pub use download::{Progress, Step, Transfer};
pub use error::{Error, Result, bytes};
pub use http::Patience;
pub use hub::{Cached, Found, Hub, Offer, Watch};
pub use name::{Given, Name, given};
pub use settings::Settings;
pub use table::{Entry, Format, Licence, Table, Variant};
