//! Which ConfigMaps and Secrets do a pod's containers and volumes read?

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pointsman_api_client::{ApiError, Client, Resource};
use pointsman_objects::nullable;
use pointsman_objects::pod_manifest::AccountToken;
use pointsman_pod_lifecycle::env::Holder;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The objects that were asked for and exist, and what else a pod is made of.
#[derive(Clone, Default)]
pub struct Objects {
    held: BTreeMap<(Holder, String), BTreeMap<String, Vec<u8>>>,
    /// Tokens of the pod's account, by what was asked for.
    pub tokens: BTreeMap<AccountToken, String>,
    /// The variables by which programs find the API server.
    pub api_server: Vec<(String, String)>,
    /// The node's own `/etc/resolv.conf`.
    pub resolv_conf: String,
}

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
        self.held.insert((holder, name.to_owned()), data);
    }

    /// All keys of an object, if it exists.
    pub fn bytes(&self, holder: Holder, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        self.held.get(&(holder, name.to_owned())).cloned()
    }

    /// All keys whose values are text, by object.
    pub fn texts(&self) -> BTreeMap<(Holder, String), BTreeMap<String, String>> {
        let text =
            |(key, bytes): (&String, &Vec<u8>)| Some((key.clone(), String::from_utf8(bytes.clone()).ok()?));
        let objects = self.held.iter();
        objects
            .map(|(key, data)| (key.clone(), data.iter().filter_map(text).collect()))
            .collect()
    }
}
