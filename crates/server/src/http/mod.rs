//! Sockets, headers and bodies: what stands between the network and the APIs.

mod body;
mod caller;
mod door;
mod guard;
mod page;
mod patient;
mod serve;
mod stream;
mod tell;

pub use body::{Json, read_json};
pub use caller::Caller;
pub use door::enter;
pub(crate) use door::note_route;
pub use guard::{Guard, Way};
pub(crate) use page::serve as page;
pub use page::{FILES, File};
pub use serve::{Outcome, Server};
pub use stream::{Frames, PING, events, lines};
pub use tell::{Out, Teller, Whole, tell, whole};
