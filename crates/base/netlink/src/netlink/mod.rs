//! What does a netlink message look like?
//!
//! A stream of messages, each a header, a four-byte netfilter header and a tree of attributes padded to
//! four bytes. Numbers of netfilter subsystems are big-endian, lengths are in host order.

mod attribute;
mod message;
mod reply;

pub use attribute::{Attribute, Attributes, Malformed, Writer};
pub use message::{HEADER_LEN, Header, Message, Messages, NETFILTER_HEADER_LEN, flags, kind};
pub use reply::{Errno, ErrorReply};
