//! The engine for Kotlin, Swift and TypeScript.
