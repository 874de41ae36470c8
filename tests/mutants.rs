//! The suites that notice most of the mutants, in one executable: `scripts/mutants.sh` builds it anew
//! for each, and one link costs less than sixteen. Not part of `cargo test`, which runs the suites
//! themselves.

#[path = "circle.rs"]
mod circle;
mod common;
#[path = "found.rs"]
mod found;
#[path = "leaks.rs"]
mod leaks;
#[path = "learnt_order.rs"]
mod learnt_order;
#[path = "malformed.rs"]
mod malformed;
#[path = "movable.rs"]
mod movable;
#[path = "movable_ladder.rs"]
mod movable_ladder;
#[path = "movable_owners.rs"]
mod movable_owners;
#[path = "movable_sanitize.rs"]
mod movable_sanitize;
#[path = "movable_threads.rs"]
mod movable_threads;
#[path = "pass_faults.rs"]
mod pass_faults;
#[path = "plan.rs"]
mod plan;
#[path = "pool_conformance/main.rs"]
mod pool_conformance;
#[path = "pool_model.rs"]
mod pool_model;
#[path = "sanitize.rs"]
mod sanitize;
#[path = "soft_limit.rs"]
mod soft_limit;
