/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a program can't be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is at fault.
    #[error(transparent)]
    Program(#[from] lapidary_program::Error),
    /// The program does not fit.
    #[error("{0}")]
    OutOfMemory(String),
    /// There is no such backend.
    #[error("there is no backend `{name}`; this build has {known}")]
    UnknownBackend {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// There is no such device.
    #[error("there is no device `{id}`; this machine has {known}")]
    UnknownDevice {
        /// What was asked for.
        id: String,
        /// What there is.
        known: String,
    },
    /// The backend can't be used on this machine.
    #[error("backend `{backend}` can't be used here: {reason}")]
    Unavailable {
        /// Which.
        backend: &'static str,
        /// Why.
        reason: String,
    },
    /// The backend lacks ops that a method needs.
    #[error("backend `{backend}` can't run method `{method}`: it lacks {ops}")]
    MissingOps {
        /// Which.
        backend: &'static str,
        /// The method.
        method: String,
        /// Their kinds.
        ops: String,
    },
    /// The caller fed something that the method does not take.
    #[error("method `{method}`: {what}")]
    Feed {
        /// The method.
        method: String,
        /// What is wrong.
        what: String,
    },
    /// The call was told to stop.
    #[error("stopped")]
    Stopped,
    /// The ticket is not one of this engine's, or its results were taken.
    #[error("there is no call {0} under way")]
    UnknownTicket(u64),
    /// The device failed.
    #[error("device failed: {0}")]
    Device(String),
}
