//! What this room makes of files, against what transformers' own processors make of them.

mod films;
mod hashes;
mod patches;
mod pictures;
mod reference;
mod sounds;
mod specs;
