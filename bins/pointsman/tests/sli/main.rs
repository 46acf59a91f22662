//! The collector against a running API server, with programmers that say what the test wants.

mod accuracy;
mod gate;
mod killed;
mod measured;
mod page;
mod programmer;
mod services;
mod site;
mod traces;
