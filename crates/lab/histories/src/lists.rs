//! Is every list exactly the state of the revision that it names, and new enough?

use crate::explain::seconds;
use crate::history::{Answer, Freshness, History, Listing, Operation, Request, Revision};
use crate::timeline::Timeline;

pub fn check(history: &History, timeline: &Timeline) -> Vec<String> {
    let mut problems = Vec::new();
    for operation in &history.operations {
        let (Request::List(freshness), Some((_, Answer::Listed(listing)))) =
            (operation.request, &operation.answer)
        else {
            continue;
        };
        let shown = |key| listing.objects.get(&key).map(|seen| seen.content);
        if !timeline.was(listing.revision, |_| true, shown) {
            problems.push(format!("a list is not the state of its revision: {operation}"));
        }
        let least = match freshness {
            Freshness::Newest => continue, // part of the order of operations
            Freshness::Any => answered_before(history, operation),
            Freshness::NotOlderThan(revision) | Freshness::Exactly(revision) => revision,
        };
        let exact = matches!(freshness, Freshness::Exactly(_));
        if listing.revision < least || (exact && listing.revision > least) {
            let when = seconds(operation.start);
            problems.push(format!(
                "a list is too old: server {} had shown revision {least} before {when}: {operation}",
                operation.server
            ));
        }
    }
    problems
}

/// The newest revision that the same server had answered when the operation started.
fn answered_before(history: &History, operation: &Operation) -> Revision {
    let others = history.operations.iter();
    let revisions = others.filter_map(|other| match &other.answer {
        Some((end, answer)) if *end < operation.start && other.server == operation.server => match answer {
            Answer::Written(seen) | Answer::Found(seen) => Some(seen.revision),
            Answer::Listed(Listing { revision, .. }) if !exact(other.request) => Some(*revision),
            _ => None,
        },
        _ => None,
    });
    revisions.max().unwrap_or(0)
}

fn exact(request: Request) -> bool {
    matches!(request, Request::List(Freshness::Exactly(_)))
}
