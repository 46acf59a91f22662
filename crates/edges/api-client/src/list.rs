//! How is a collection read once, by somebody who does not follow it?

use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::ApiError;
use crate::watch::Scope;
use crate::watch::decode::Page;

impl Client {
    /// Reads all objects of a scope, page by page. An object that cannot be read is named in the log and
    /// left out.
    pub async fn list<T: DeserializeOwned>(&self, scope: &Scope) -> Result<Vec<T>, ApiError> {
        let mut objects = Vec::new();
        let mut token = String::new();
        loop {
            let page: Page = self.get_path(&scope.page_path(&token)).await?;
            for item in &page.items {
                match serde_json::from_str(item.get()) {
                    Ok(object) => objects.push(object),
                    Err(error) => {
                        tracing::warn!(resource = scope.resource.plural, %error, "ignoring an object that cannot be read");
                    }
                }
            }
            token = page.metadata.r#continue;
            if token.is_empty() {
                return Ok(objects);
            }
        }
    }
}
