//! How are the habits of Go's JSON read?

use std::collections::BTreeMap;
use std::net::IpAddr;

use pointsman_model::{Few, Labels, Moment, Text, parse_ip};
use serde::{Deserialize, Deserializer};

/// Reads `null` as the default value: Go writes empty lists and structs as `null`.
pub fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a map of texts; `null` values are empty.
pub(crate) fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
    let pairs: BTreeMap<String, Option<String>> = nullable(deserializer)?;
    Ok(Labels::new(
        pairs
            .into_iter()
            .map(|(key, value)| (key, value.unwrap_or_default())),
    ))
}

/// Reads a time; one that cannot be read is absent.
pub(crate) fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Moment>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    Ok(text.as_deref().and_then(Moment::parse))
}

/// An empty text is an absent one.
pub(crate) fn non_empty(text: Option<String>) -> Option<Text> {
    text.filter(|text| !text.is_empty()).map(Into::into)
}

/// The texts that are addresses.
pub(crate) fn addresses<'a>(texts: impl IntoIterator<Item = &'a str>) -> Few<IpAddr> {
    texts.into_iter().filter_map(|text| parse_ip(text).ok()).collect()
}
