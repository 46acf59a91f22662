//! Who owns whom, and what follows from it?
//!
//! A pure model of owner references. It is fed every change in order and says which objects have to be
//! looked at again; looking at one gives the next single step.

use pointsman_model::Text;
use pointsman_objects::OwnerReference;
use pointsman_rules::Kind;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::write::delete::{FOREGROUND, ORPHAN};

/// An object, by kind and local key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub kind: &'static Kind,
    /// `namespace/name` or `name`.
    pub key: Arc<str>,
}

impl Place {
    fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }
}

/// What the model needs of an object.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    pub uid: Text,
    pub owner_references: Vec<OwnerReference>,
    /// Set once deletion has started.
    pub deletion_timestamp: Option<String>,
    /// What holds the object.
    pub finalizers: Vec<String>,
}

impl Meta {
    /// Whether it is deleted, and there until its dependents are gone.
    fn waits(&self) -> bool {
        self.deletion_timestamp.is_some() && self.finalizers.iter().any(|held| held == FOREGROUND)
    }
}

/// The next step for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Nothing,
    /// Delete it, in the foreground if it has dependents of its own that must go first.
    Delete {
        /// The identity that was looked at.
        uid: Text,
        /// Whether its dependents go first.
        foreground: bool,
    },
    /// Remove references to owners that are gone or that wait for it.
    Release {
        /// The identities of those owners.
        owners: Vec<Text>,
    },
    /// Let dependents go, then remove the orphan finalizer.
    Orphan {
        /// Who is let go.
        dependents: Vec<Place>,
    },
    /// Remove the finalizer, nothing waits for it any more.
    Unblock { finalizer: &'static str },
}

/// All objects and their owner references.
#[derive(Debug, Default)]
pub struct Graph {
    objects: HashMap<Place, Meta>,
    dependents: HashMap<Text, BTreeSet<Place>>,
    dirty: BTreeSet<Place>,
}

enum Owner {
    Solid,
    Waiting,
    Gone,
}

impl Graph {
    /// Takes in the new state of an object, `None` if it is gone.
    pub fn observe(&mut self, place: Place, meta: Option<Meta>) {
        let before = match &meta {
            Some(meta) => self.objects.insert(place.clone(), meta.clone()),
            None => self.objects.remove(&place),
        };
        if before == meta {
            return;
        }
        for owner in before.iter().flat_map(|before| &before.owner_references) {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(&place);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
            // An owner in foreground deletion may have waited for this.
            self.touch_owner(&place, owner);
        }
        let recreated = before.as_ref().map(|before| &before.uid) != meta.as_ref().map(|meta| &meta.uid);
        if let Some(before) = before.filter(|_| recreated) {
            self.touch_dependents(&before.uid);
        }
        let Some(meta) = meta else { return };
        for owner in &meta.owner_references {
            self.dependents
                .entry(owner.uid.clone())
                .or_default()
                .insert(place.clone());
        }
        if meta.deletion_timestamp.is_some() {
            self.touch_dependents(&meta.uid);
        }
        if !meta.owner_references.is_empty() || meta.deletion_timestamp.is_some() {
            self.dirty.insert(place);
        }
    }

    /// Takes one object that has to be looked at.
    pub fn pop(&mut self) -> Option<Place> {
        self.dirty.pop_first()
    }

    /// Puts an object back whose step failed.
    pub fn push(&mut self, place: Place) {
        self.dirty.insert(place);
    }

    /// The next step for an object.
    pub fn step(&self, place: &Place) -> Step {
        let Some(meta) = self.objects.get(place) else {
            return Step::Nothing;
        };
        let has = |finalizer: &str| meta.finalizers.iter().any(|held| held == finalizer);
        if meta.deletion_timestamp.is_some() {
            if has(ORPHAN) {
                let dependents: Vec<Place> = self.dependents_of(&meta.uid).cloned().collect();
                return match dependents.is_empty() {
                    true => Step::Unblock { finalizer: ORPHAN },
                    false => Step::Orphan { dependents },
                };
            }
            let blocked = self
                .dependents_of(&meta.uid)
                .any(|dependent| self.blocks(dependent, &meta.uid));
            if has(FOREGROUND) && !blocked {
                return Step::Unblock {
                    finalizer: FOREGROUND,
                };
            }
            return Step::Nothing;
        }
        self.step_as_dependent(place, meta)
    }

    fn step_as_dependent(&self, place: &Place, meta: &Meta) -> Step {
        if meta.owner_references.is_empty() {
            return Step::Nothing;
        }
        let (mut solid, mut others, mut waiting) = (false, Vec::new(), false);
        for reference in &meta.owner_references {
            match self.owner(place, reference) {
                Owner::Solid => solid = true,
                Owner::Waiting => {
                    waiting = true;
                    others.push(reference.uid.clone());
                }
                Owner::Gone => others.push(reference.uid.clone()),
            }
        }
        match (solid, others.is_empty()) {
            (true, true) => Step::Nothing,
            (true, false) => Step::Release { owners: others },
            (false, _) => {
                // One whose dependents wait already closes a circle: if it waited too, none of them would ever go.
                let waits = |dependent| self.objects.get(dependent).is_some_and(Meta::waits);
                let circle = self.dependents_of(&meta.uid).any(waits);
                let foreground = waiting && !circle && self.dependents_of(&meta.uid).next().is_some();
                Step::Delete {
                    uid: meta.uid.clone(),
                    foreground,
                }
            }
        }
    }

    fn owner(&self, dependent: &Place, reference: &OwnerReference) -> Owner {
        // Owners of kinds that are not served here cannot be judged, so they count as present.
        let Some(place) = owner_place(dependent, reference) else {
            return Owner::Solid;
        };
        match self.objects.get(&place) {
            Some(owner) if owner.uid == reference.uid && owner.waits() => Owner::Waiting,
            Some(owner) if owner.uid == reference.uid => Owner::Solid,
            _ => Owner::Gone,
        }
    }

    fn blocks(&self, dependent: &Place, owner: &str) -> bool {
        let references = self
            .objects
            .get(dependent)
            .into_iter()
            .flat_map(|meta| &meta.owner_references);
        references
            .into_iter()
            .any(|reference| &*reference.uid == owner && reference.block_owner_deletion)
    }

    fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Place> {
        self.dependents.get(uid).into_iter().flatten()
    }

    fn touch_dependents(&mut self, uid: &str) {
        if let Some(dependents) = self.dependents.get(uid) {
            self.dirty.extend(dependents.iter().cloned());
        }
    }

    fn touch_owner(&mut self, dependent: &Place, reference: &OwnerReference) {
        let Some(owner) = owner_place(dependent, reference) else {
            return;
        };
        if self
            .objects
            .get(&owner)
            .is_some_and(|meta| meta.deletion_timestamp.is_some())
        {
            self.dirty.insert(owner);
        }
    }
}

/// Where an owner lives: in the dependent's namespace, or cluster-wide.
fn owner_place(dependent: &Place, reference: &OwnerReference) -> Option<Place> {
    let kind = Kind::by_type(&reference.api_version, &reference.kind)?;
    let namespace = dependent.namespace();
    if kind.namespaced() && namespace.is_empty() {
        return None;
    }
    let namespace = if kind.namespaced() { namespace } else { "" };
    Some(Place {
        kind: kind.stored(),
        key: crate::keys::local(namespace, &reference.name).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(plural: &str, group: &str, name: &str) -> Place {
        let kind = Kind::by_resource(group, "v1", plural).unwrap();
        Place {
            kind,
            key: format!("a/{name}").into(),
        }
    }

    fn set(name: &str) -> Place {
        place("replicasets", "apps", name)
    }

    fn pod(name: &str) -> Place {
        place("pods", "", name)
    }

    fn meta(uid: &str) -> Meta {
        Meta {
            uid: uid.into(),
            ..Meta::default()
        }
    }

    fn owned(uid: &str, owners: &[(&str, &str)]) -> Meta {
        let owner = |(name, uid): &(&str, &str)| OwnerReference {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: (*name).into(),
            uid: (*uid).into(),
            block_owner_deletion: true,
            controller: false,
        };
        Meta {
            owner_references: owners.iter().map(owner).collect(),
            ..meta(uid)
        }
    }

    fn deleting(meta: Meta, finalizer: &str) -> Meta {
        Meta {
            deletion_timestamp: Some("t".into()),
            finalizers: vec![finalizer.into()],
            ..meta
        }
    }

    fn drained(graph: &mut Graph) -> Vec<(Place, Step)> {
        let mut steps = Vec::new();
        while let Some(place) = graph.pop() {
            let step = graph.step(&place);
            if step != Step::Nothing {
                steps.push((place, step));
            }
        }
        steps
    }

    #[test]
    fn a_circle_of_owners_is_cut_where_it_closes() {
        let mut graph = Graph::default();
        let ring = [
            ("a", "ua", ("c", "uc")),
            ("b", "ub", ("a", "ua")),
            ("c", "uc", ("b", "ub")),
        ];
        for (name, uid, owner) in ring {
            graph.observe(set(name), Some(owned(uid, &[owner])));
        }
        drained(&mut graph);
        let mut seen = Vec::new();
        // What the server would do: one in the foreground waits, others are gone at once.
        graph.observe(set("a"), Some(deleting(owned("ua", &[("c", "uc")]), FOREGROUND)));
        while let Some((at, step)) = drained(&mut graph).pop() {
            let (name, uid, owner) = ring.into_iter().find(|(name, ..)| set(name) == at).unwrap();
            match &step {
                Step::Delete { foreground: true, .. } => {
                    graph.observe(at, Some(deleting(owned(uid, &[owner]), FOREGROUND)));
                }
                _ => graph.observe(at, None),
            }
            seen.push((name, matches!(step, Step::Delete { .. })));
        }
        assert_eq!(seen, [("b", true), ("c", true), ("b", false), ("a", false)]);
    }

    #[test]
    fn a_dependent_goes_when_its_last_owner_is_gone() {
        let mut graph = Graph::default();
        graph.observe(set("r"), Some(meta("u1")));
        graph.observe(pod("p"), Some(owned("u2", &[("r", "u1")])));
        assert_eq!(drained(&mut graph), []);
        graph.observe(set("r"), None);
        assert_eq!(
            drained(&mut graph),
            [(
                pod("p"),
                Step::Delete {
                    uid: "u2".into(),
                    foreground: false
                }
            )]
        );
    }

    #[test]
    fn an_owner_of_the_same_name_but_another_identity_does_not_count() {
        let mut graph = Graph::default();
        graph.observe(set("r"), Some(meta("new")));
        graph.observe(pod("p"), Some(owned("u2", &[("r", "old")])));
        assert!(matches!(drained(&mut graph)[..], [(_, Step::Delete { .. })]));
    }

    #[test]
    fn an_owner_that_is_replaced_takes_its_dependents_with_it() {
        let mut graph = Graph::default();
        graph.observe(set("r"), Some(meta("u1")));
        graph.observe(pod("p"), Some(owned("u2", &[("r", "u1")])));
        assert_eq!(drained(&mut graph), []);
        graph.observe(set("r"), Some(meta("u9")));
        assert!(matches!(drained(&mut graph)[..], [(_, Step::Delete { .. })]));
    }

    #[test]
    fn one_solid_owner_keeps_the_dependent_and_the_gone_one_is_released() {
        let mut graph = Graph::default();
        graph.observe(set("r"), Some(meta("u1")));
        graph.observe(pod("p"), Some(owned("u2", &[("r", "u1"), ("gone", "u0")])));
        assert_eq!(
            drained(&mut graph),
            [(
                pod("p"),
                Step::Release {
                    owners: vec!["u0".into()]
                }
            )]
        );
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        let mut graph = Graph::default();
        graph.observe(set("r"), Some(meta("u1")));
        graph.observe(pod("p"), Some(owned("u2", &[("r", "u1")])));
        drained(&mut graph);
        graph.observe(set("r"), Some(deleting(meta("u1"), FOREGROUND)));
        assert_eq!(
            drained(&mut graph),
            [(
                pod("p"),
                Step::Delete {
                    uid: "u2".into(),
                    foreground: false
                }
            )]
        );
        graph.observe(pod("p"), None);
        assert_eq!(
            drained(&mut graph),
            [(
                set("r"),
                Step::Unblock {
                    finalizer: FOREGROUND
                }
            )]
        );
    }

    #[test]
    fn orphaning_lets_dependents_go_first() {
        let mut graph = Graph::default();
        graph.observe(set("r"), Some(meta("u1")));
        graph.observe(pod("p"), Some(owned("u2", &[("r", "u1")])));
        drained(&mut graph);
        graph.observe(set("r"), Some(deleting(meta("u1"), ORPHAN)));
        assert_eq!(
            drained(&mut graph),
            [(
                set("r"),
                Step::Orphan {
                    dependents: vec![pod("p")]
                }
            )]
        );
        graph.observe(pod("p"), Some(meta("u2")));
        assert_eq!(
            drained(&mut graph),
            [(set("r"), Step::Unblock { finalizer: ORPHAN })]
        );
    }

    #[test]
    fn owners_of_unknown_kinds_are_left_alone() {
        let mut graph = Graph::default();
        let mut dependent = owned("u2", &[("r", "u1")]);
        dependent.owner_references[0].kind = "Unheard".into();
        graph.observe(pod("p"), Some(dependent));
        assert_eq!(drained(&mut graph), []);
    }
}
