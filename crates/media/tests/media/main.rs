//! What this room makes of files, against what transformers' own processors make of them.

mod audio;
mod hashes;
mod images;
mod patches;
mod reference;
mod specs;
mod videos;
