//! What are tables, chains and sets called?

use std::borrow::Cow;
use std::fmt;

/// The protocol family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 packets.
    Ip,
    /// IPv6 packets.
    Ip6,
    Inet,
}

impl Family {
    /// The kernel's number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }

    /// The family with this number, if it is one of ours.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Inet),
            2 => Some(Self::Ip),
            10 => Some(Self::Ip6),
            _ => None,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        })
    }
}

/// The name of a table, chain or set: 1 to 255 bytes without a zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Cow<'static, str>);

/// A text the kernel would not take as a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a name of 1 to 255 bytes")]
pub struct BadName(pub String);

impl Name {
    /// A name fixed at compile time; a bad one does not compile in a constant.
    pub const fn fixed(text: &'static str) -> Self {
        assert!(is_name(text.as_bytes()), "not a name of 1 to 255 bytes");
        Self(Cow::Borrowed(text))
    }

    /// A name made at run time.
    pub fn try_new(text: impl Into<String>) -> Result<Self, BadName> {
        let text = text.into();
        if is_name(text.as_bytes()) {
            Ok(Self(Cow::Owned(text)))
        } else {
            Err(BadName(text))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const fn is_name(text: &[u8]) -> bool {
    let mut index = 0;
    while index < text.len() {
        if text[index] == 0 {
            return false;
        }
        index += 1;
    }
    !text.is_empty() && text.len() < 256
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
