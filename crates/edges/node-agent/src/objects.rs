//! Which ConfigMaps and Secrets do a pod's containers and volumes read?

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use pointsman_api_client::{ApiError, Client, Resource};
use pointsman_objects::value::map_at;
use pointsman_pod_lifecycle::env::Holder;
use serde_json::Value;
use std::collections::BTreeMap;

/// The objects that were asked for and exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects(BTreeMap<(Holder, String), BTreeMap<String, Vec<u8>>>);

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
            match client.api(resource, Some(namespace)).get::<Value>(name).await {
                Ok(object) => objects.insert(*holder, name, &object),
                Err(ApiError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }

    /// Takes in an object as the API carries it.
    pub fn insert(&mut self, holder: Holder, name: &str, object: &Value) {
        let field = |field: &str| map_at(object, &[field]).into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let decoded = |value: &Value| BASE64_STANDARD.decode(text(value)).unwrap_or_default();
        let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        match holder {
            Holder::ConfigMap => {
                data.extend(field("data").map(|(key, value)| (key.clone(), text(value).into_bytes())));
                data.extend(field("binaryData").map(|(key, value)| (key.clone(), decoded(value))));
            }
            Holder::Secret => data.extend(field("data").map(|(key, value)| (key.clone(), decoded(value)))),
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
