//! Who of several replicas leads?
//!
//! One task keeps the Lease; everybody else reads [`Role`] from a channel. Leadership that could not be
//! renewed in time is given up by our own clock, before others may take it.

use crate::client::Client;
use crate::error::ApiError;
use crate::lease::{Decision, Observed, Terms};
use crate::resource::Resource;
use jiff::Timestamp;
use pointsman_objects::lease::{Lease, LeaseSpec};
use serde_json::json;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Where this replica stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Somebody else leads, or nobody does yet.
    Waiting {
        /// The present leader, if known.
        leader: Option<String>,
    },
    Leading {
        /// When the former leader was last alive, if there was one.
        former: Option<Timestamp>,
    },
}

impl Role {
    /// Whether we lead.
    pub fn leads(&self) -> bool {
        matches!(self, Self::Leading { .. })
    }
}

/// Contends for one Lease.
pub struct Election {
    client: Client,
    namespace: String,
    name: String,
    terms: Terms,
    observed: Observed,
    start: Instant,
}

impl Election {
    /// A contender for the Lease `namespace/name`.
    pub fn new(client: Client, namespace: &str, name: &str, terms: Terms) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            terms,
            observed: Observed::default(),
            start: Instant::now(),
        }
    }

    /// Contends until `stop` turns true, then gives the lease back. Tells the role through `role`.
    pub async fn run(mut self, role: watch::Sender<Role>, mut stop: watch::Receiver<bool>) {
        let mut renewed: Option<Instant> = None;
        loop {
            let began = Instant::now();
            let former = self.former();
            // A hanging request must not keep us from noticing that our time is up.
            let attempt = tokio::time::timeout(self.patience(renewed), self.attempt());
            match attempt.await {
                Ok(Ok(true)) => {
                    if renewed.is_none() {
                        tracing::info!(lease = %self.name, identity = %self.terms.identity, "leading");
                        role.send_replace(Role::Leading { former });
                    }
                    renewed = Some(began);
                }
                Ok(Ok(false)) => self.demote(&role, &mut renewed),
                Ok(Err(error)) => tracing::debug!(lease = %self.name, %error, "no word about the lease"),
                Err(_) => tracing::debug!(lease = %self.name, "no word about the lease in time"),
            }
            if renewed.is_some_and(|renewed| renewed.elapsed() >= self.terms.renew_deadline) {
                tracing::warn!(lease = %self.name, "the lease could not be renewed in time");
                self.demote(&role, &mut renewed);
            }
            let wait = self.terms.retry.mul_f64(1.0 + fastrand::f64() / 5.0);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if renewed.is_some() {
            role.send_replace(Role::Waiting { leader: None });
            self.release().await;
        }
    }

    /// How long an attempt may take: a leader's until its deadline, but not less than a moment.
    fn patience(&self, renewed: Option<Instant>) -> Duration {
        let left = renewed.map(|renewed| self.terms.renew_deadline.saturating_sub(renewed.elapsed()));
        left.unwrap_or(self.terms.renew_deadline)
            .max(Duration::from_millis(100))
    }

    fn former(&self) -> Option<Timestamp> {
        self.observed.last_renewal()
    }

    fn demote(&self, role: &watch::Sender<Role>, renewed: &mut Option<Instant>) {
        if renewed.take().is_some() {
            tracing::warn!(lease = %self.name, leader = self.observed.holder(), "leading no more");
        }
        let leader = self
            .observed
            .holder()
            .filter(|holder| *holder != self.terms.identity);
        role.send_replace(Role::Waiting {
            leader: leader.map(str::to_owned),
        });
    }

    /// One look at the lease and, where that is right, one write. True when it is ours now.
    async fn attempt(&mut self) -> Result<bool, ApiError> {
        let api = self.client.api(Resource::LEASES, Some(&self.namespace));
        let lease = match api.get::<Lease>(&self.name).await {
            Ok(lease) => Some(lease),
            Err(ApiError::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        self.observed.see(lease, self.start.elapsed());
        let written = match self
            .observed
            .decide(&self.terms, self.start.elapsed(), Timestamp::now())
        {
            Decision::Wait => return Ok(false),
            Decision::Create(spec) => api.create::<Lease>(self.body(&spec, None)).await,
            Decision::Write(spec, version) => {
                api.replace::<Lease>(&self.name, self.body(&spec, Some(&version)))
                    .await
            }
        };
        match written {
            Ok(lease) => {
                self.observed.see(Some(lease), self.start.elapsed());
                Ok(true)
            }
            // Somebody was faster; the next look shows who.
            Err(ApiError::Conflict(_) | ApiError::AlreadyExists(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn release(&mut self) {
        let Some((spec, version)) = self.observed.release(&self.terms, Timestamp::now()) else {
            return;
        };
        let api = self.client.api(Resource::LEASES, Some(&self.namespace));
        let body = self.body(&spec, Some(&version));
        let released = tokio::time::timeout(Duration::from_secs(2), api.replace::<Lease>(&self.name, body));
        match released.await {
            Ok(Ok(_)) => tracing::info!(lease = %self.name, "gave the lease back"),
            Ok(Err(error)) => tracing::info!(lease = %self.name, %error, "could not give the lease back"),
            Err(_) => tracing::info!(lease = %self.name, "could not give the lease back in time"),
        }
    }

    fn body(&self, spec: &LeaseSpec, version: Option<&str>) -> Vec<u8> {
        let mut metadata = json!({ "name": self.name, "namespace": self.namespace });
        if let Some(version) = version {
            metadata["resourceVersion"] = version.into();
        }
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec,
        });
        lease.to_string().into_bytes()
    }
}
