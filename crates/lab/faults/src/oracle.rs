//! What do the recorded events say: were requests lost or sent astray that should not have been?

use std::collections::{BTreeMap, BTreeSet};

/// Microseconds since 1970; all events of a run are on one machine.
pub type Micros = i64;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The node it was sent from.
    pub node: String,
    /// When it was sent.
    pub sent: Micros,
    /// When its fate was known.
    pub done: Micros,
    /// Who answered, or why nobody did.
    pub outcome: Result<String, String>,
}

/// The pods that the Service's slices list, as read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// When the question was sent.
    pub asked: Micros,
    /// When the answer was there.
    pub answered: Micros,
    /// The newest version of the slices.
    pub version: u64,
    /// Pods that may get requests.
    pub listed: BTreeSet<String>,
}

/// What the slices of one version listed, as a watch reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub version: u64,
    /// Pods that might get requests; unknown where the watch had a gap.
    pub listed: Option<BTreeSet<String>>,
}

/// A node said how far its kernel is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub node: String,
    /// When it was received.
    pub received: Micros,
    /// Everything up to this version of slices is in its kernel.
    pub version: u64,
}

/// A time in which requests may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    pub cause: String,
    pub from: Micros,
    pub until: Micros,
}

/// Everything that was recorded of a run.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    pub nodes: BTreeSet<String>,
    pub requests: Vec<Request>,
    /// In order of time.
    pub sightings: Vec<Sighting>,
    /// Every version of the slices, in order.
    pub history: Vec<Version>,
    /// In order of time for each node.
    pub marks: Vec<Mark>,
    /// When faults excuse losses.
    pub windows: Vec<Window>,
    /// When everything was well again.
    pub steady: Option<Micros>,
}

/// What the oracle says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub sent: u64,
    /// Lost while a fault was in force, or a while later.
    pub lost_during: u64,
    /// Lost at any other time.
    pub lost_after: u64,
    /// Lost requests by what happened to them.
    pub reasons: BTreeMap<String, u64>,
    /// What must not be, in one sentence each.
    pub violations: Vec<String>,
}

/// Judges a run.
pub fn judge(recorded: &Recorded) -> Verdict {
    let mut verdict = Verdict {
        sent: recorded.requests.len() as u64,
        ..Verdict::default()
    };
    for request in &recorded.requests {
        let Err(why) = &request.outcome else { continue };
        *verdict.reasons.entry(why.clone()).or_default() += 1;
        match recorded.is_excused(request) {
            true => verdict.lost_during += 1,
            false => {
                verdict.lost_after += 1;
                verdict.violations.push(format!(
                    "a request from {} was lost ({why}) without a fault {}",
                    request.node,
                    recorded.place(request.sent)
                ));
            }
        }
    }
    verdict.violations.extend(recorded.astray());
    verdict
}

impl Recorded {
    /// Whether a fault was in force, or had been a while ago, while the request was under way.
    fn is_excused(&self, request: &Request) -> bool {
        let is_over = self.steady.is_some_and(|steady| request.sent > steady);
        let met = |window: &Window| request.sent <= window.until && request.done >= window.from;
        !is_over && self.windows.iter().any(met)
    }

    /// Says where in the run a moment lies.
    fn place(&self, moment: Micros) -> String {
        let seconds = |micros: Micros| micros as f64 / 1e6;
        let begun = self.requests.iter().map(|request| request.sent).min();
        let mut text = format!("at {:.2} s", seconds(moment - begun.unwrap_or(moment)));
        if let Some(last) = self.windows.iter().rfind(|window| window.from <= moment) {
            text += &format!(
                ", {:.2} s after {} began",
                seconds(moment - last.from),
                last.cause
            );
        }
        if let Some(steady) = self.steady.filter(|steady| moment > *steady) {
            text += &format!(", {:.2} s after all was well", seconds(moment - steady));
        }
        text
    }

    /// Requests answered by a pod that no kernel should have led to any more.
    fn astray(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (host, answers) in self.answers() {
            for (since, until) in self.absences(host) {
                let wrong = answers
                    .iter()
                    .filter(|request| request.sent > since && request.done < until);
                problems.extend(wrong.map(|request| {
                    format!(
                        "{host} answered a request from {} sent {:.3} s after every node had removed it, {}",
                        request.node,
                        (request.sent - since) as f64 / 1e6,
                        self.place(request.sent)
                    )
                }));
            }
        }
        problems
    }

    fn answers(&self) -> BTreeMap<&str, Vec<&Request>> {
        let mut answers: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
        for request in &self.requests {
            if let Ok(host) = &request.outcome {
                answers.entry(host).or_default().push(request);
            }
        }
        answers
    }

    /// The times in which all kernels knew that the pod is not listed: from the moment that every node had
    /// the version in which it was gone, to the last time that it was seen to be gone.
    fn absences(&self, host: &str) -> Vec<(Micros, Micros)> {
        let mut absences = Vec::new();
        let mut begun: Option<Micros> = None;
        let mut before = 0;
        for sighting in &self.sightings {
            // It may have come and gone between two looks.
            if sighting.listed.contains(host) || self.was_listed(host, before, sighting.version) {
                begun = None;
            }
            before = sighting.version;
            if sighting.listed.contains(host) {
                continue;
            }
            match begun {
                None => {
                    // Not known everywhere yet: a later sighting of the same absence may be.
                    begun = self
                        .everywhere(sighting.version)
                        .map(|everywhere| everywhere.max(sighting.answered));
                }
                Some(since) if since < sighting.asked => absences.push((since, sighting.asked)),
                Some(_) => {}
            }
        }
        // Each sighting made one that contains the one before.
        absences.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1 = later.1;
            }
            same
        });
        absences
    }

    /// Whether a version after `before`, up to `until`, may have listed the pod.
    fn was_listed(&self, host: &str, before: u64, until: u64) -> bool {
        self.history
            .iter()
            .filter(|entry| entry.version > before && entry.version <= until)
            .any(|entry| entry.listed.as_ref().is_none_or(|listed| listed.contains(host)))
    }

    /// When the last node had this version in its kernel.
    fn everywhere(&self, version: u64) -> Option<Micros> {
        let mut latest = Micros::MIN;
        for node in &self.nodes {
            let mut marks = self.marks.iter().filter(|mark| mark.node == *node);
            latest = latest.max(marks.find(|mark| mark.version >= version)?.received);
        }
        Some(latest)
    }
}

/// Which pods have not answered every node since a moment: `node pod` pairs.
pub fn silent<'a>(
    requests: impl IntoIterator<Item = &'a Request>,
    since: Micros,
    nodes: &BTreeSet<String>,
    pods: &BTreeSet<String>,
) -> BTreeSet<(String, String)> {
    let mut silent: BTreeSet<(String, String)> = nodes
        .iter()
        .flat_map(|node| pods.iter().map(move |pod| (node.clone(), pod.clone())))
        .collect();
    for request in requests.into_iter().filter(|request| request.sent > since) {
        if let Ok(host) = &request.outcome {
            silent.remove(&(request.node.clone(), host.clone()));
        }
    }
    silent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(sent: Micros, outcome: Result<&str, &str>) -> Request {
        Request {
            node: "n1".into(),
            sent,
            done: sent + 1,
            outcome: outcome.map(str::to_owned).map_err(str::to_owned),
        }
    }

    fn sighting(asked: Micros, version: u64, listed: &[&str]) -> Sighting {
        Sighting {
            asked,
            answered: asked + 2,
            version,
            listed: listed.iter().map(|pod| (*pod).to_owned()).collect(),
        }
    }

    fn mark(node: &str, received: Micros, version: u64) -> Mark {
        Mark {
            node: node.into(),
            received,
            version,
        }
    }

    fn recorded(requests: Vec<Request>) -> Recorded {
        Recorded {
            nodes: ["n1".to_owned(), "n2".to_owned()].into(),
            requests,
            sightings: vec![
                sighting(0, 1, &["a", "b"]),
                sighting(100, 5, &["b"]),
                sighting(200, 5, &["b"]),
                sighting(300, 5, &["b"]),
                sighting(400, 9, &["a", "b"]),
            ],
            marks: vec![mark("n1", 110, 5), mark("n2", 150, 6)],
            ..Recorded::default()
        }
    }

    #[test]
    fn nobody_may_be_sent_to_a_pod_that_every_kernel_has_removed() {
        let fine = vec![
            request(140, Ok("a")),
            request(250, Ok("b")),
            request(350, Ok("a")),
        ];
        assert_eq!(judge(&recorded(fine)).violations, Vec::<String>::new());
        let astray = judge(&recorded(vec![request(250, Ok("a"))]));
        assert_eq!(astray.violations.len(), 1, "{astray:?}");
        assert!(astray.violations[0].starts_with("a answered a request from n1"));
    }

    #[test]
    fn what_one_node_has_not_heard_of_is_not_known_everywhere() {
        let mut behind = recorded(vec![request(250, Ok("a"))]);
        behind.marks.pop();
        assert_eq!(judge(&behind).violations, Vec::<String>::new());
        behind.marks.push(mark("n2", 260, 6));
        assert_eq!(judge(&behind).violations, Vec::<String>::new());
    }

    #[test]
    fn a_pod_that_came_and_went_between_two_looks_may_answer() {
        let mut blink = recorded(vec![request(250, Ok("a"))]);
        blink.sightings[3].version = 8;
        let entry = |version: u64, listed: Option<&str>| Version {
            version,
            listed: listed.map(|pod| [pod.to_owned()].into()),
        };
        blink.history = vec![entry(7, Some("b"))];
        assert_eq!(judge(&blink).violations.len(), 1);
        blink.history = vec![entry(7, Some("a")), entry(8, Some("b"))];
        assert_eq!(judge(&blink).violations, Vec::<String>::new());
        blink.history = vec![entry(7, None)];
        assert_eq!(judge(&blink).violations, Vec::<String>::new());
    }

    #[test]
    fn losses_are_excused_by_faults_only_and_never_once_all_is_well() {
        let mut run = recorded(vec![
            request(5, Err("timeout")),
            request(50, Err("refused")),
            request(90, Err("refused")),
        ]);
        run.windows.push(Window {
            cause: "cut".into(),
            from: 10,
            until: 100,
        });
        run.steady = Some(80);
        let verdict = judge(&run);
        assert_eq!((verdict.sent, verdict.lost_during, verdict.lost_after), (3, 1, 2));
        assert_eq!(verdict.violations.len(), 2);
        assert_eq!(verdict.reasons["refused"], 2);
    }

    #[test]
    fn a_pod_is_silent_until_every_node_has_heard_it() {
        let (nodes, pods) = (["n1".to_owned()].into(), ["a".to_owned(), "b".to_owned()].into());
        let requests = [request(5, Ok("a")), request(20, Ok("b"))];
        let silent = silent(&requests, 10, &nodes, &pods);
        assert_eq!(silent, [("n1".to_owned(), "a".to_owned())].into());
    }
}
