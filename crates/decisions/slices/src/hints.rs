//! Which zone or node should prefer each endpoint?

use crate::pack::{Draft, Member};
use crate::plan::FamilyFacts;
use crate::topology::{self, ZoneCapacity};
use pointsman_model::Text;
use pointsman_objects::endpoint_slice::{AddressType, Hints};
use pointsman_objects::service::TrafficMode;

/// A hint while it is being decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint<'a> {
    pub zone: Option<&'a Text>,
    pub node: Option<&'a Text>,
}

/// Something the Service's owner should know about its hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HintEvent {
    /// Topology-aware hints are on in a family. Comes with every plan; tell it once.
    Enabled(AddressType),
    /// Topology-aware hints were asked for and cannot be given in a family.
    Disabled(AddressType, String),
}

impl HintEvent {
    /// The event's reason, as upstream names it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Enabled(_) => "TopologyAwareHintsEnabled",
            Self::Disabled(..) => "TopologyAwareHintsDisabled",
        }
    }

    /// The event's type, `Normal` or `Warning`.
    pub fn event_type(&self) -> &'static str {
        match self {
            Self::Enabled(_) => "Normal",
            Self::Disabled(..) => "Warning",
        }
    }

    /// The event's message.
    pub fn message(&self) -> String {
        match self {
            Self::Enabled(family) => format!("endpoints carry zone hints, addressType: {}", family.name()),
            Self::Disabled(family, why) => format!("{why}, addressType: {}", family.name()),
        }
    }
}

impl Hint<'_> {
    /// The hint as it is written.
    pub fn to_hints(self) -> Option<Box<Hints>> {
        if self == Self::default() {
            return None;
        }
        Some(Box::new(Hints {
            zones: self.zone.into_iter().cloned().collect(),
            nodes: self.node.into_iter().cloned().collect(),
        }))
    }

    fn shown_by(self, existing: Option<&Hints>) -> bool {
        let (zones, nodes): (&[Text], &[Text]) =
            existing.map_or((&[], &[]), |hints| (&hints.zones, &hints.nodes));
        zones.iter().eq(self.zone) && nodes.iter().eq(self.node)
    }
}

/// Sets the hint of every member, and marks slices that only need a write for their hints.
pub(crate) fn decide<'a>(
    mode: TrafficMode,
    family: AddressType,
    zones: &'a ZoneCapacity,
    drafts: &mut [Draft<'a>],
    facts: &mut FamilyFacts,
    events: &mut Vec<HintEvent>,
) {
    match mode {
        TrafficMode::None => remove(drafts),
        TrafficMode::PreferClose | TrafficMode::PreferSameZone | TrafficMode::PreferSameNode => {
            for draft in drafts {
                for member in &mut draft.members {
                    member.hint = own_place(member, mode);
                }
                draft.rehint = differs_where_ready(draft);
            }
        }
        TrafficMode::Auto => match topology::assign(zones, drafts) {
            Ok(counts) => {
                for draft in drafts {
                    draft.rehint = differs_where_ready(draft);
                }
                facts.hinted_zones = counts;
                events.push(HintEvent::Enabled(family));
            }
            Err(why) => {
                remove(drafts);
                events.push(HintEvent::Disabled(family, why.to_string()));
            }
        },
    }
}

fn remove(drafts: &mut [Draft<'_>]) {
    for draft in drafts {
        for member in &mut draft.members {
            member.hint = Hint::default();
        }
        draft.rehint = draft.members.iter().any(|member| hints_before(member).is_some());
    }
}

fn own_place<'a>(member: &Member<'a>, mode: TrafficMode) -> Hint<'a> {
    if !member.desired.ready() {
        return Hint::default();
    }
    Hint {
        zone: member.desired.zone,
        node: member
            .desired
            .pod
            .node_name
            .as_ref()
            .filter(|_| mode == TrafficMode::PreferSameNode),
    }
}

/// Hints of unready endpoints do not matter, so they alone never cause a write.
fn differs_where_ready(draft: &Draft<'_>) -> bool {
    draft
        .members
        .iter()
        .any(|member| member.desired.ready() && !member.hint.shown_by(hints_before(member)))
}

/// The hints an endpoint carries now.
pub(crate) fn hints_before<'a>(member: &Member<'a>) -> Option<&'a Hints> {
    member.before.and_then(|endpoint| endpoint.hints.as_deref())
}
