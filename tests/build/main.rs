//! The build: how it finds a toolkit, what it commits, and what an application that depends on the crate gets.

#[path = "../../build/arch.rs"]
mod arch;
mod architectures;
mod bindings;
mod circles;
#[path = "../../build/discovery.rs"]
mod discovery;
mod documents;
#[cfg(feature = "rustacuda")]
mod downstream;
mod example_kernels;
mod layers;
#[path = "../../build/objects.rs"]
mod objects;
mod own_kernel;
mod seeded_bugs;
mod toolkit_discovery;
#[path = "../../build/variables.rs"]
mod variables;
