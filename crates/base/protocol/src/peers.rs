//! Whom does a node not reach?
//!
//! A node that asks others whether they are there says in an annotation of its own Lease whom it does not
//! reach: names of Nodes, sorted, with commas between them. An empty text says that it reaches all it
//! asks; a Lease without the annotation, such as a kubelet's, says nothing. It is written with the
//! heartbeat, and besides only when it changes.

use std::time::Duration;

/// The annotation, on Leases.
pub const ANNOTATION: &str = "pointsman.io/unreachable-peers";

/// Reasons of the events on a Node by which the controllers tell what followed from that, with the votes.
pub const WITHDRAWN: &str = "TrafficWithdrawn";
pub const RESTORED: &str = "TrafficRestored";

/// The Lease in `kube-system` by which the controllers list the nodes that are withdrawn, in this annotation. It is written
/// when that changes, and every [`RENEW`] while there are any; one that is older than [`FRESH`] says nothing.
pub const LIST_LEASE: &str = "pointsman-withdrawn-nodes";
pub const LIST_NAMESPACE: &str = "kube-system";
pub const LIST_ANNOTATION: &str = "pointsman.io/withdrawn-nodes";
/// Beside it, who voted: a line per node, of the first [`MOST_VOTES`], since every proxy gets the Lease.
pub const VOTES_ANNOTATION: &str = "pointsman.io/withdrawn-votes";
pub const RENEW: Duration = Duration::from_secs(10);
pub const FRESH: Duration = Duration::from_secs(30);

/// The most names that are read of a node's opinion. Nobody asks that many, so more are somebody's mistake.
pub const MOST: usize = 64;
/// The most names that are listed as withdrawn, and read.
pub const MOST_LISTED: usize = 256;
/// The most nodes whose votes are listed.
pub const MOST_VOTES: usize = 32;

/// The annotation's value.
pub fn encode<'a>(unreachable: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = unreachable.into_iter().collect();
    names.sort_unstable();
    names.dedup();
    names.join(",")
}

/// The names in a node's opinion. Anything that is no name is some node's that does not exist.
pub fn decode(text: &str) -> impl Iterator<Item = &str> {
    names(text).take(MOST)
}

/// The names in the list of withdrawn nodes.
pub fn decode_list(text: &str) -> impl Iterator<Item = &str> {
    names(text).take(MOST_LISTED)
}

/// The votes about withdrawn nodes; whatever is said of a node is one line.
pub fn encode_votes<'a>(votes: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let lines = votes.into_iter().take(MOST_VOTES);
    lines.map(|(node, votes)| format!("{node}: {votes}\n")).collect()
}

/// Nodes, and what is said of each.
pub fn decode_votes(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(": "))
        .take(MOST_VOTES)
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(names in prop::collection::btree_set("[a-z0-9.-]{1,20}", 0..MOST)) {
            let text = encode(names.iter().map(String::as_str));
            let read: BTreeSet<String> = decode(&text).map(str::to_owned).collect();
            prop_assert_eq!(&read, &names);
            prop_assert_eq!(encode(read.iter().map(String::as_str)), text);
        }

        #[test]
        fn votes_are_read_as_they_were_written(votes in prop::collection::btree_map("[a-z0-9.-]{1,20}", "[a-z0-9(),:; -]{0,40}", 0..40)) {
            let text = encode_votes(votes.iter().map(|(node, said)| (&**node, said.clone())));
            let read: Vec<(&str, &str)> = decode_votes(&text).collect();
            let written: Vec<(&str, &str)> = votes.iter().map(|(node, said)| (&**node, &**said)).take(MOST_VOTES).collect();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn any_text_is_a_bounded_number_of_names(text in any::<String>()) {
            prop_assert!(decode(&text).count() <= MOST && decode_list(&text).count() <= MOST_LISTED);
            prop_assert!(decode_votes(&text).count() <= MOST_VOTES);
        }
    }
}
