//! What is the protocol of a port?

use serde::{Deserialize, Deserializer, Serialize};

/// Transport protocol of a port as an object names it; the data path's own type knows no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// Also what an absent protocol means.
    #[default]
    Tcp,
    Udp,
    Sctp,
    /// A protocol we do not know; matches nothing we would write.
    Other,
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("" | "TCP") => Self::Tcp,
            Some("UDP") => Self::Udp,
            Some("SCTP") => Self::Sctp,
            Some(_) => Self::Other,
        })
    }
}
