//! Which ConfigMaps and Secrets do a pod's containers and volumes read?

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pointsman_api_client::{ApiError, Client, Resource};
use pointsman_objects::nullable;
use pointsman_pod_lifecycle::env::Holder;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The objects that were asked for and exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects(BTreeMap<(Holder, String), BTreeMap<String, Vec<u8>>>);

/// What a ConfigMap or Secret holds, as the API carries it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Contents {
    #[serde(deserialize_with = "nullable")]
    data: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    binary_data: BTreeMap<String, String>,
}

impl Objects {
    /// Reads objects of one namespace. One that does not exist is left out; any other failure is the
    /// caller's to repeat.
    pub async fn read(
        client: &Client,
        namespace: &str,
        needed: &[(Holder, String)],
    ) -> Result<Self, ApiError> {
        let mut objects = Self::default();
        for (holder, name) in needed {
            let resource = match holder {
                Holder::ConfigMap => Resource::core("configmaps"),
                Holder::Secret => Resource::core("secrets"),
            };
            match client.api(resource, Some(namespace)).get::<Contents>(name).await {
                Ok(contents) => objects.insert(*holder, name, contents),
                Err(ApiError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }

    pub(crate) fn insert(&mut self, holder: Holder, name: &str, contents: Contents) {
        let decoded = |(key, text): (String, String)| (key, BASE64_STANDARD.decode(text).unwrap_or_default());
        let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        match holder {
            Holder::ConfigMap => {
                let texts = contents.data.into_iter();
                data.extend(texts.map(|(key, text)| (key, text.into_bytes())));
                data.extend(contents.binary_data.into_iter().map(decoded));
            }
            Holder::Secret => data.extend(contents.data.into_iter().map(decoded)),
        }
        self.0.insert((holder, name.to_owned()), data);
    }

    /// All keys of an object, if it exists.
    pub fn bytes(&self, holder: Holder, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        self.0.get(&(holder, name.to_owned())).cloned()
    }

    /// All keys whose values are text, by object.
    pub fn texts(&self) -> BTreeMap<(Holder, String), BTreeMap<String, String>> {
        let text =
            |(key, bytes): (&String, &Vec<u8>)| Some((key.clone(), String::from_utf8(bytes.clone()).ok()?));
        let objects = self.0.iter();
        objects
            .map(|(key, data)| (key.clone(), data.iter().filter_map(text).collect()))
            .collect()
    }
}
