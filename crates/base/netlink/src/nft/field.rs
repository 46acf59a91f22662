//! What does a component of a key or of data mean?
//!
//! The kernel only wants a length. `nft` also wants to know what it is, in the type number (six bits for
//! each component) and in the user data (the expression it would be compared with), so that it can print
//! `10.0.0.1 . tcp . 80` and read it back.

use super::userdata::{push_number, push_record};

/// The type number `nft` uses for a component or a concatenation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u32);

/// One component, named after the expression that fills it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// `ip saddr`
    IpSaddr,
    /// `ip daddr`
    IpDaddr,
    /// `ip6 saddr`
    Ip6Saddr,
    /// `ip6 daddr`
    Ip6Daddr,
    /// `meta l4proto`
    L4Proto,
    /// `th dport`
    ThDport,
    /// `meta mark`
    Mark,
    /// `meta priority`
    Priority,
    /// `numgen random mod N`
    Random {
        /// The N that is printed with the declaration; any rule may draw modulo something else.
        modulus: u32,
    },
}

/// Numbers `nft` gives its expressions in user data.
mod typeof_expr {
    pub const PAYLOAD: u32 = 7;
    pub const META: u32 = 9;
    pub const CONCAT: u32 = 13;
    pub const NUMGEN: u32 = 23;
}

/// Records of a described expression.
const EXPR: u8 = 0;
const DATA: u8 = 1;

impl Field {
    /// The length in bytes, before padding.
    pub const fn len(self) -> usize {
        match self {
            Self::Ip6Saddr | Self::Ip6Daddr => 16,
            Self::L4Proto => 1,
            Self::ThDport => 2,
            _ => 4,
        }
    }

    /// Whether the component is empty, which none is.
    pub const fn is_empty(self) -> bool {
        false
    }

    /// The type number.
    pub const fn type_id(self) -> TypeId {
        TypeId(match self {
            Self::Random { .. } => 4,
            Self::IpSaddr | Self::IpDaddr => 7,
            Self::Ip6Saddr | Self::Ip6Daddr => 8,
            Self::L4Proto => 12,
            Self::ThDport => 13,
            Self::Mark => 19,
            Self::Priority => 23,
        })
    }

    /// The type number of a concatenation.
    pub fn concatenated(fields: &[Self]) -> TypeId {
        TypeId(fields.iter().fold(0, |id, field| id << 6 | field.type_id().0))
    }

    /// The length of a concatenation: each component fills whole registers. A single one is not padded.
    pub fn concatenated_len(fields: &[Self]) -> u32 {
        let length: usize = match fields {
            [one] => one.len(),
            many => many.iter().map(|field| field.len().next_multiple_of(4)).sum(),
        };
        u32::try_from(length).unwrap_or(u32::MAX)
    }

    /// The byte order `nft` records: 0 for a concatenation, 1 host, 2 network.
    pub(super) fn byte_order(fields: &[Self]) -> u32 {
        match fields {
            [Self::Mark | Self::Priority | Self::Random { .. } | Self::L4Proto] => 1,
            [_] => 2,
            _ => 0,
        }
    }

    /// The user data record body that lets `nft` print `typeof …`.
    pub(super) fn describe(fields: &[Self]) -> Vec<u8> {
        if let [one] = fields {
            return one.describe_one();
        }
        let mut parts = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            push_record(
                &mut parts,
                u8::try_from(index).unwrap_or(u8::MAX),
                &field.describe_one(),
            );
        }
        let mut blob = Vec::new();
        push_number(&mut blob, EXPR, typeof_expr::CONCAT);
        push_record(&mut blob, DATA, &parts);
        blob
    }

    fn describe_one(self) -> Vec<u8> {
        // Protocol and field numbers of nft: 11 is the generic transport header, 12 IPv4, 13 IPv6.
        let (expr, parts): (u32, Vec<u32>) = match self {
            Self::IpSaddr => (typeof_expr::PAYLOAD, vec![12, 11]),
            Self::IpDaddr => (typeof_expr::PAYLOAD, vec![12, 12]),
            Self::Ip6Saddr => (typeof_expr::PAYLOAD, vec![13, 8]),
            Self::Ip6Daddr => (typeof_expr::PAYLOAD, vec![13, 9]),
            Self::ThDport => (typeof_expr::PAYLOAD, vec![11, 2]),
            Self::L4Proto => (typeof_expr::META, vec![16]),
            Self::Mark => (typeof_expr::META, vec![3]),
            Self::Priority => (typeof_expr::META, vec![2]),
            Self::Random { modulus } => (typeof_expr::NUMGEN, vec![1, modulus, 0]),
        };
        let mut body = Vec::new();
        for (index, number) in (0..).zip(parts) {
            push_number(&mut body, index, number);
        }
        let mut blob = Vec::new();
        push_number(&mut blob, EXPR, expr);
        push_record(&mut blob, DATA, &body);
        blob
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concatenation_has_the_number_and_length_nft_gives_it() {
        let key = [
            Field::IpDaddr,
            Field::L4Proto,
            Field::ThDport,
            Field::Random { modulus: 10 },
        ];
        assert_eq!(Field::concatenated(&key), TypeId(0x001c_c344));
        assert_eq!(Field::concatenated_len(&key), 16);
        // The same bytes as nft 1.0.6 sends for `typeof ip daddr . meta l4proto . th dport . numgen random mod 10`.
        let expected = "00040d0000000158\
            00140004070000 00010c00040c00000001040c000000\
            010e00040900000001060004 10000000\
            02140004070000 00010c00040b000000010402000000\
            031a0004170000 000112000401000000 01040a000000020400000000"
            .replace(' ', "");
        let described: String = Field::describe(&key)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(described, expected);
    }
}
