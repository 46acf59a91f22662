//! Where is a field in the protobuf form of its type?

use super::{Field, ObjectType};

/// The place of a field in a protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtobufField {
    /// The field with the message that holds this one; see [`embedded_at`] for one that is in another.
    ///
    /// Upstream embeds some types in others: protobuf wraps them, JSON shows their fields as the
    /// outer type's own.
    pub within: Option<u32>,
    /// The number in its message.
    pub number: u32,
    /// Whether a zero, an empty text or `false` that was sent is a value.
    ///
    /// Go writes plain fields even when nobody set them, and leaves them out of JSON; what it
    /// writes for a pointer was set by someone.
    pub zero_counts: bool,
}

/// What a number stands for in a message.
#[derive(Clone, Copy, Debug)]
pub enum Member<'a> {
    Field(&'a Field, ProtobufField),
    /// A message whose fields belong to the outer type.
    Embedded,
}

impl ProtobufField {
    /// Reads `3`, `3*`, `2.3*` and `2.2.3`; `required` fields always count.
    pub(super) fn parse(text: &str, required: bool) -> Option<Self> {
        let (place, starred) = match text.strip_suffix('*') {
            Some(place) => (place, true),
            None => (text, false),
        };
        let mut within = None;
        let mut number = place;
        while let Some((outer, inner)) = number.split_once('.') {
            within = Some(embedded_at(within, parse_number(outer)?));
            number = inner;
        }
        Some(Self {
            within,
            number: parse_number(number)?,
            zero_counts: required || starred,
        })
    }

    /// The key in [`ObjectType::numbers`].
    pub(super) fn place(self) -> (Option<u32>, u32) {
        (self.within, self.number)
    }
}

/// One number for a message that is embedded at `number` of what is embedded at `within`.
pub fn embedded_at(within: Option<u32>, number: u32) -> u32 {
    /// Field numbers of embedded messages are small.
    const PLACES: u32 = 1 << 12;
    within.map_or(number, |within| {
        within.saturating_mul(PLACES).saturating_add(number)
    })
}

fn parse_number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number > 0)
}

impl ObjectType {
    /// What `number` stands for in the message of this type, or in the one embedded at `within`.
    pub fn member(&self, within: Option<u32>, number: u32) -> Option<Member<'_>> {
        if let Some(at) = self.numbers.get(&(within, number)) {
            let field = &self.fields[*at];
            return Some(Member::Field(field, field.protobuf?));
        }
        let embeds = || {
            let at = embedded_at(within, number);
            let inner = (Some(at), 0)..=(Some(at), u32::MAX);
            self.numbers.range(inner).next().is_some()
        };
        embeds().then_some(Member::Embedded)
    }
}
