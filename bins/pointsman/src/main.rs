//! One program for the whole path from a pod's health to every node's rules.

fn main() {}
